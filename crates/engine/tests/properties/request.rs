//! Random workloads.

use agentaflow_engine::labels::{Expr, Labels, NodeTerm, Op, Selector, Toleration, TolerationOp};
use agentaflow_engine::{
    AffinityKind, Gate, GpuRequest, MiB, MigProfile, MilliCpu, MilliGpu, NodePreference, OnFault,
    Priority, Request, Role, Span, TaskAffinity, TokenAccess, Topology, TopologySpread, Workload,
};
use proptest::prelude::*;

use crate::cluster::{MODELS, choice};

/// A task label, or none.
pub fn labels() -> impl Strategy<Value = Labels> {
    prop_oneof![3 => Just(None), 1 => Just(Some("a")), 1 => Just(Some("b"))]
        .prop_map(|app| app.map(|app| ("app".into(), app.into())).into_iter().collect())
}

/// A selector for that label.
pub fn selector() -> impl Strategy<Value = Selector> {
    prop_oneof![Just("a"), Just("b")].prop_map(|app| Selector {
        match_labels: [("app".into(), app.into())].into(),
        exprs: Vec::new(),
    })
}

fn gpu() -> impl Strategy<Value = GpuRequest> {
    let profile = prop_oneof![
        Just("1g.5gb"),
        Just("2g.10gb"),
        Just("3g.20gb"),
        Just("1g.10gb"),
        Just("1g.6gb")
    ];
    prop_oneof![
        2 => Just(GpuRequest::None),
        4 => (1..4_u32).prop_map(GpuRequest::Whole),
        3 => prop_oneof![Just(100), Just(333), Just(500), Just(700), Just(1000)]
            .prop_map(|milli| GpuRequest::Fraction(MilliGpu::new(milli).unwrap())),
        2 => (1..45_u64).prop_map(|gib| GpuRequest::Memory(MiB(gib * 1000))),
        2 => (profile, 1..4_u32)
            .prop_map(|(profile, count)| GpuRequest::Mig { profile: MigProfile::new(profile).unwrap(), count }),
    ]
}

fn domain() -> impl Strategy<Value = String> {
    prop_oneof![Just("node"), Just("rack"), Just("zone")].prop_map(str::to_owned)
}

fn affinity() -> impl Strategy<Value = TaskAffinity> {
    (any::<bool>(), selector(), domain(), prop::option::weighted(0.4, 1..100_u32)).prop_map(
        |(near, selector, key, weight)| TaskAffinity {
            kind: if near { AffinityKind::Affinity } else { AffinityKind::AntiAffinity },
            selector,
            key,
            weight,
        },
    )
}

fn spread() -> impl Strategy<Value = TopologySpread> {
    (selector(), domain(), 1..3_u32, any::<bool>(), 0..3_u32, any::<(bool, bool)>()).prop_map(
        |(selector, key, max_skew, required, least, (ignore, honor))| TopologySpread {
            selector,
            key,
            max_skew,
            required,
            min_domains: least,
            ignore_node_affinity: ignore,
            honor_taints: honor,
        },
    )
}

fn term() -> impl Strategy<Value = NodeTerm> {
    (1..4_u8).prop_map(|rack| NodeTerm {
        exprs: vec![Expr {
            key: "rack".into(),
            op: Op::In,
            values: vec![format!("r{rack}").as_str().into()],
        }],
        names: Vec::new(),
    })
}

fn seldom<T: std::fmt::Debug>(
    chance: f64,
    of: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(chance, of)
}

pub fn request() -> impl Strategy<Value = Request> {
    let device =
        (gpu(), 0..6_u8, 0..10_u8, seldom(0.2, 0..4_usize), seldom(0.2, 0..4_usize), 0..5_u8);
    let amounts = (0..9_u64, 0..9_u64, 0..10_u64, 0..8_u64);
    let usage = prop_oneof![
        Just(TokenAccess::Exclusive),
        Just(TokenAccess::Shared),
        Just(TokenAccess::OneNode),
        Just(TokenAccess::OneTask)
    ];
    let nodes = (seldom(0.1, term()), seldom(0.1, term()), seldom(0.04, 0..4_u8), 0..3_u8);
    let affinities = prop_oneof![15 => Just(0..=0), 1 => Just(1..=1), 1 => Just(1..=2)]
        .prop_flat_map(|count| prop::collection::vec(affinity(), count));
    let spreads = prop_oneof![17 => Just(0..=0), 1 => Just(1..=1), 1 => Just(1..=2)]
        .prop_flat_map(|count| prop::collection::vec(spread(), count));
    let terms = (labels(), affinities, spreads, seldom(0.12, usage));
    (device, amounts, nodes, terms).prop_map(|(device, amounts, nodes, terms)| {
        let (gpu, exclusive, large, model, preferred, nvlink) = device;
        let one_of = |model: Option<usize>| model.map(|model| MODELS[model].0.into());
        Request {
            gpu,
            exclusive: exclusive == 0 && gpu != GpuRequest::None,
            min_gpu_memory: MiB(if large == 0 { 30_000 } else { 0 }),
            models: one_of(model).into_iter().collect(),
            preferred_model: one_of(preferred),
            nvlink: nvlink == 0,
            cpu: MilliCpu(amounts.0 * 1000),
            memory: MiB(amounts.1 * 1024),
            storage: MiB(amounts.2.saturating_sub(8) * 100),
            resources: (amounts.3 == 0).then(|| ("fpga".into(), 1)).into_iter().collect(),
            tokens: terms.3.map(|usage| ("port".into(), usage)).into_iter().collect(),
            node: nodes.2.map(|node| format!("n{node}").into()),
            node_selector: Labels::new(),
            required_nodes: nodes.0.into_iter().collect(),
            preferred_nodes: nodes
                .1
                .map(|term| NodePreference { weight: 50, term })
                .into_iter()
                .collect(),
            tolerations: (nodes.3 == 0)
                .then(|| Toleration { op: TolerationOp::Exists, ..Toleration::default() })
                .into_iter()
                .collect(),
            labels: terms.0,
            affinity: terms.1,
            spread: terms.2,
        }
    })
}

/// Requests of a gang's tasks, sometimes different. Such a gang has no terms, because the order in which its
/// tasks find nodes is not specified.
fn requests() -> impl Strategy<Value = (Request, Vec<Role>)> {
    let role = (1..3_u32, request());
    let roles = prop::collection::vec(role, 1..3);
    (request(), seldom(0.12, roles)).prop_map(|(first, roles)| {
        let Some(roles) = roles else { return (first, Vec::new()) };
        let free = |request: Request| Request { affinity: vec![], spread: vec![], ..request };
        let role = |(tasks, request)| Role { tasks, request: free(request).into() };
        (free(first), roles.into_iter().map(role).collect())
    })
}

/// The limits, and priorities of users and of Kubernetes.
pub const PRIORITIES: [Priority; 11] = [
    Priority::MIN,
    Priority(-1),
    Priority(0),
    Priority(1),
    Priority(4),
    Priority(5),
    Priority(6),
    Priority(7),
    Priority(100_000),
    Priority(2_000_001_000),
    Priority::MAX,
];

/// A workload; name and queue are set at submission.
pub fn workload() -> impl Strategy<Value = Workload> {
    let gang =
        (prop_oneof![3 => Just(1_u32), 1 => 2..5_u32], seldom(0.3, (any::<bool>(), domain())));
    let rights = (0..11_u8, any::<bool>(), 0..5_u8, seldom(0.2, 0..3_u64), seldom(0.3, 0..2_u8));
    let other =
        (seldom(0.6, 1..20_u64), seldom(0.3, choice()), 0..5_u8, seldom(0.06, 0..3_u8), 0..6_u8);
    (requests(), gang, rights, other).prop_map(|((request, roles), gang, rights, other)| Workload {
        roles,
        queue: if other.4 == 5 { "root".into() } else { format!("q{}", other.4).into() },
        tasks: gang.0,
        topology: gang
            .1
            .map(|(same, key)| if same { Topology::Same(key) } else { Topology::Spread(key) }),
        priority: PRIORITIES[usize::from(rights.0)],
        precedence: rights.2 / 2,
        preemptible: rights.1,
        may_preempt: rights.2 > 0,
        min_runtime: rights.3.map(Span::minutes),
        grace: Span::seconds(10 * u64::from(rights.2)),
        budgets: rights.4.map(|budget| format!("b{budget}").into()).into_iter().collect(),
        estimate: other.0.map(Span::minutes),
        strategy: other.1,
        on_fault: if other.2 == 0 { OnFault::Keep } else { OnFault::Requeue },
        gate: other.3.map(gate),
        ..Workload::new("w", request)
    })
}

pub fn gate(kind: u8) -> Gate {
    match kind {
        0 => Gate::Budget("spent".into()),
        1 => Gate::PodsMissing { have: 1, need: 2 },
        _ => Gate::Paused("by hand".into()),
    }
}

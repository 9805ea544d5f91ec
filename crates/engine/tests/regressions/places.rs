//! Placement and GPU shares.

use std::sync::Arc;

use agentaflow_engine::labels::{Effect, Selector, Taint};
use agentaflow_engine::{
    AffinityKind, DeviceSelection, Event, ForeignGpu, ForeignUse, GpuRequest, MiB, MigMode,
    MigProfile, MilliCpu, MilliGpu, Node, Policy, Priority, Queue, Quota, Request, Scheduler, Span,
    TaskAffinity, Topology, Workload, WorkloadId,
};

use crate::{NOW, node, share, started, starts, submit, tell, whole, with};

#[test]
fn an_exhausted_model_quota_excludes_that_model_only() {
    let mut mixed = node("n", 3);
    mixed.gpus[2].model = "NVIDIA A30".into();
    mixed.gpus[2].memory = MiB(24_576);
    let mut engine = with(vec![mixed]);
    let limit = Quota { models: [("NVIDIA A30".into(), 0)].into(), ..Quota::default() };
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue { limit, ..Queue::new("team") })));
    submit(&mut engine, share("small", 100));
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("small".into()));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("pair", 2) });
    assert!(starts(&mut engine, "pair"));
}

#[test]
fn slices_do_not_overlap_foreign_use() {
    let mut split = node("n", 1);
    split.gpus[0].mig = MigMode::Free;
    let mut engine = with(vec![split]);
    let half = ForeignGpu::Share(MilliGpu::new(431).expect("a share"));
    let uses = ForeignUse { gpus: [("g0".into(), half)].into(), ..ForeignUse::default() };
    tell(
        &mut engine,
        Event::ForeignUseUpdated { node: "n".into(), id: "f".into(), usage: Box::new(uses) },
    );
    let gpu = GpuRequest::Mig { profile: MigProfile::new("2g.10gb").expect("a profile"), count: 3 };
    submit(&mut engine, Workload::new("slices", Request { gpu, ..Request::default() }));
    assert!(!starts(&mut engine, "slices"));
}

#[test]
fn exclusive_slices_of_one_task_do_not_conflict() {
    let mut split = node("n", 2);
    split.gpus[0].mig = MigMode::Free;
    split.gpus[1].mig = MigMode::Free;
    let mut engine = with(vec![split]);
    let gpu = GpuRequest::Mig { profile: MigProfile::new("1g.5gb").expect("a profile"), count: 2 };
    submit(
        &mut engine,
        Workload::new("slices", Request { gpu, exclusive: true, ..Request::default() }),
    );
    assert!(starts(&mut engine, "slices"));
}

#[test]
fn a_gang_spread_over_an_unknown_label_never_fits_and_gets_no_reservation() {
    let mut engine = with(vec![node("n", 2)]);
    engine
        .apply(
            NOW,
            Event::PolicyUpdated(Box::new(Policy { patience: Span(0), ..Policy::default() })),
        )
        .expect("settings");
    let topology = Some(Topology::Spread("rack".into()));
    submit(&mut engine, Workload { tasks: 2, topology, ..whole("gang", 1) });
    submit(&mut engine, whole("single", 2));
    assert!(starts(&mut engine, "single"));
    let reason = engine.explain(NOW, &"gang".into()).and_then(|explained| explained.reason);
    assert!(
        matches!(reason, Some(agentaflow_engine::WaitReason::Gang { fits_when_empty: false, .. })),
        "{reason:?}"
    );
}

#[test]
fn a_preemptor_does_not_start_against_new_anti_affinity() {
    let mut engine = with(vec![node("n", 2)]);
    submit(&mut engine, Workload { preemptible: true, priority: Priority(1), ..whole("low", 2) });
    engine.decide(NOW);
    let mut high = Workload { priority: Priority(9), ..whole("high", 1) };
    Arc::make_mut(&mut high.request).labels.insert("app".into(), "a".into());
    submit(&mut engine, high);
    engine.decide(NOW);
    let away = TaskAffinity {
        kind: AffinityKind::AntiAffinity,
        selector: Selector { match_labels: [("app".into(), "a".into())].into(), exprs: Vec::new() },
        key: "node".into(),
        weight: None,
    };
    let uses = ForeignUse { anti_affinity: vec![away], ..ForeignUse::default() };
    tell(
        &mut engine,
        Event::ForeignUseUpdated { node: "n".into(), id: "f".into(), usage: Box::new(uses) },
    );
    tell(&mut engine, Event::TaskStopped { workload: "low".into(), task: 0 });
    assert!(!starts(&mut engine, "high"));
}

#[test]
fn one_gpu_cannot_be_two_whole_gpus_of_a_task() {
    let mut engine = with(vec![Node { device_selection: DeviceSelection::Node, ..node("n", 2) }]);
    submit(&mut engine, whole("pair", 2));
    engine.decide(NOW);
    let twice = Event::DevicesReported {
        workload: "pair".into(),
        task: 0,
        gpus: vec!["g0".into(), "g0".into()],
    };
    assert!(engine.apply(NOW, twice).is_err());
}

#[test]
fn many_large_foreign_uses_never_panic() {
    let mut engine = with(vec![node("n", 1)]);
    for number in 0..1200 {
        let gpus = [("g0".into(), ForeignGpu::Memory(MiB(1 << 20)))].into();
        let uses =
            ForeignUse { gpus, gpu_count: 1, cpu: MilliCpu(1 << 46), ..ForeignUse::default() };
        let id = format!("f{number}").into();
        engine
            .apply(NOW, Event::ForeignUseUpdated { node: "n".into(), id, usage: Box::new(uses) })
            .ok();
    }
    submit(&mut engine, whole("a", 1));
    assert!(!starts(&mut engine, "a"));
    assert!(engine.explain(NOW, &"a".into()).is_some());
}

#[test]
fn slices_moved_to_one_gpu_do_not_overlap() {
    let mut split = node("n", 2);
    split.gpus[0].mig = MigMode::Free;
    split.gpus[1].mig = MigMode::Free;
    let mut engine = with(vec![split]);
    let gpu = GpuRequest::Mig { profile: MigProfile::new("1g.5gb").expect("a profile"), count: 3 };
    submit(&mut engine, Workload::new("slices", Request { gpu, ..Request::default() }));
    assert!(starts(&mut engine, "slices"));
    let gpus = vec!["g1".into(), "g1".into(), "g1".into()];
    tell(&mut engine, Event::DevicesReported { workload: "slices".into(), task: 0, gpus });
    assert_eq!(engine.lint(), Vec::new());
}

#[test]
fn a_gang_in_one_domain_is_not_misled_by_its_first_task() {
    let tight = Node { cpu: MilliCpu(5000), rank: 0, ..node("tight", 1) };
    let wide = Node { cpu: MilliCpu(10_000), rank: 1, ..node("wide", 4) };
    let mut engine = with(vec![tight, wide]);
    engine
        .apply(
            NOW,
            Event::PolicyUpdated(Box::new(Policy { patience: Span(0), ..Policy::default() })),
        )
        .expect("settings");
    let request = Request {
        gpu: GpuRequest::Whole(1),
        cpu: MilliCpu(5000),
        tokens: [("volume".into(), agentaflow_engine::TokenAccess::OneNode)].into(),
        ..Request::default()
    };
    submit(
        &mut engine,
        Workload {
            tasks: 2,
            strategy: Some(agentaflow_engine::Strategy::Pack),
            ..Workload::new("gang", request)
        },
    );
    assert!(starts(&mut engine, "gang"));
}

#[test]
fn a_share_of_a_whole_only_gpu_takes_the_whole_gpu() {
    let memory = |id: &str, mib: u64| {
        Workload::new(id, Request { gpu: GpuRequest::Memory(MiB(mib)), ..Request::default() })
    };
    let mut engine = with(vec![Node { whole_gpus_only: true, ..node("counted", 3) }]);
    for workload in [memory("a", 1024), share("b", 100), memory("c", 1024), memory("d", 1024)] {
        submit(&mut engine, workload);
    }
    let plan = engine.decide(NOW);
    assert_eq!(engine.lint(), Vec::new());
    assert_eq!(started(&plan), ["a", "b", "c"].map(WorkloadId::from), "one GPU each");
    tell(&mut engine, Event::Finished("b".into()));
    assert!(starts(&mut engine, "d"));
    // A restored snapshot keeps the whole device.
    let mut again = Scheduler::restore(engine.snapshot()).expect("its own snapshot");
    submit(&mut again, share("e", 100));
    assert!(!starts(&mut again, "e"));
    // A whole device that is too small does not fit.
    let mut small = with(vec![Node { whole_gpus_only: true, ..node("counted", 1) }]);
    submit(&mut small, memory("huge", 50_000));
    assert!(!starts(&mut small, "huge"));
}

#[test]
fn repeated_taint_changes_keep_eligibility_correct() {
    let mut engine = with(vec![node("a", 1), node("b", 1)]);
    // Node controllers write timestamps into taints.
    for time in 0..1 << 16 {
        let taints = vec![
            Taint::new("leaves-at", time.to_string(), Effect::NoSchedule),
            Taint::new("leaves", "", Effect::PreferNoSchedule),
        ];
        tell(&mut engine, Event::NodeUpdated(Box::new(Node { taints, ..node("b", 1) })));
    }
    submit(&mut engine, whole("first", 1));
    submit(&mut engine, whole("second", 1));
    assert!(starts(&mut engine, "first"));
    let views = engine.workload(&"second".into()).map(|view| view.tasks.len());
    assert_eq!(views, Some(0), "it does not tolerate the taint of the only node with room");
}

#[test]
fn an_unknown_resource_fits_no_node() {
    let asks = |id: &str, names: &mut dyn Iterator<Item = String>| {
        let resources = names.map(|name| (name.into(), 1)).collect();
        Workload::new(id, Request { resources, ..Request::default() })
    };
    let mut engine = with(vec![Node { resources: [("nic".into(), 1)].into(), ..node("n", 1) }]);
    submit(&mut engine, asks("greedy", &mut (1..1 << 16).map(|number| format!("x{number}"))));
    submit(&mut engine, asks("lost", &mut ["elsewhere".to_owned()].into_iter()));
    submit(&mut engine, asks("found", &mut ["nic".to_owned()].into_iter()));
    let plan = engine.decide(NOW);
    assert_eq!(started(&plan), ["found".into()]);
}

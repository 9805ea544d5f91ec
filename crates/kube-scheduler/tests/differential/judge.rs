//! The engine's result for a pod, from the objects of the API server.

use agentaflow_engine::{
    AdoptedTask, AdoptedWorkload, BudgetId, Decision, Event, NodeId, Scheduler, Time, Workload,
};
use agentaflow_kube_core::slim::{
    CsiNode, DisruptionBudget, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    StorageCapacity, StorageClass, StorageDriver,
};
use agentaflow_kube_core::translate::{self, Namespaces, TranslationContext, Volumes};
use agentaflow_kube_scheduler::state::Settings;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::ListParams;
use std::collections::BTreeMap;

use crate::support::{OWNER, Share};

/// Snapshot of the cluster.
pub(crate) struct Sight {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    /// By node.
    drivers: BTreeMap<String, CsiNode>,
    volumes: Volumes,
    namespaces: Namespaces,
    budgets: Vec<DisruptionBudget>,
}

/// A preempted pod; ordered by priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Victim {
    pub(crate) priority: i32,
    /// Namespace and name.
    id: String,
}

impl Victim {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { priority: pod.spec.priority.unwrap_or(0), id: id_of(pod) }
    }
}

impl Sight {
    pub(crate) async fn take(share: &Share) -> Self {
        let client = share.client();
        let own = ListParams::default().labels(&share.node_selector());
        let all = ListParams::default();
        let (nodes, pods) = (Api::<Node>::all(client.clone()), Api::<Pod>::all(client.clone()));
        let spaces = Api::<Namespace>::all(client.clone());
        let claims = Api::<PersistentVolumeClaim>::all(client.clone());
        let things = Api::<PersistentVolume>::all(client.clone());
        let classes = Api::<StorageClass>::all(client);
        let (nodes, pods, spaces, claims, things, classes) = tokio::try_join!(
            nodes.list(&own),
            pods.list(&own),
            spaces.list(&all),
            claims.list(&own),
            things.list(&all),
            classes.list(&all),
        )
        .expect("lists of everything");
        let (mut volumes, mut namespaces) = (Volumes::default(), Namespaces::default());
        for claim in claims.items {
            volumes.set_claim(claim);
        }
        for volume in things.items {
            volumes.set_volume(volume);
        }
        for class in classes.items {
            volumes.set_class(class);
        }
        for space in &spaces.items {
            namespaces.set(space);
        }
        let drivers = storage(share, &mut volumes).await;
        let budgets = share.api::<DisruptionBudget>().list(&all).await.expect("budgets").items;
        Self { nodes: nodes.items, pods: pods.items, drivers, volumes, namespaces, budgets }
    }

    /// The snapshot without a pod.
    pub(crate) fn without(mut self, pod: &Pod) -> Self {
        self.pods.retain(|other| other.metadata.uid != pod.metadata.uid);
        self
    }

    /// Pods on a node that are not terminating.
    pub(crate) fn settled(&self) -> impl Iterator<Item = &Pod> {
        let settled =
            |pod: &&Pod| pod.spec.node_name.is_some() && pod.metadata.deletion_timestamp.is_none();
        self.pods.iter().filter(settled)
    }

    /// A node object for a message.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name))
    }

    /// The engine's node for a pod, or the reason for none. With `only`, every other node is full.
    pub(crate) fn place(&self, pod: &Pod, only: Option<&str>) -> Result<String, String> {
        let around = self.around();
        let asked = translate::pod(pod, &around).map_err(|obstacle| obstacle.to_string())?;
        let mut engine = self.engine(only, |id| id.ends_with(['0', '2', '4', '6', '8']));
        let workload = Workload {
            priority: translate::priority(pod),
            may_preempt: false,
            ..Workload::new("the-new-one", asked.request)
        };
        submit_and_place(&mut engine, workload)
    }

    /// Priorities of the pending pods that the engine places in one pass, highest first.
    pub(crate) fn order(&self) -> Vec<i32> {
        let mut engine = self.engine(None, |_| true);
        let mut priorities = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| pod.spec.node_name.is_none()) {
            let workload = Workload { may_preempt: false, ..self.workload(pod) };
            priorities.insert(workload.id.clone(), workload.priority.0);
            tell(&mut engine, Event::Submitted(Box::new(workload)));
        }
        let mut placed: Vec<i32> = engine
            .decide(Time(1))
            .decisions
            .iter()
            .filter_map(|decision| match decision {
                Decision::Place(placement) => Some(priorities[&placement.workload]),
                _ => None,
            })
            .collect();
        placed.sort_unstable_by(|a, b| b.cmp(a));
        placed
    }

    /// Pods that the engine preempts for a pod, highest priority first.
    pub(crate) fn victims(&self, pod: &Pod) -> Vec<Victim> {
        let mut engine = self.engine(None, |_| true);
        tell(&mut engine, Event::Submitted(Box::new(self.workload(pod))));
        let plan = engine.decide(Time(1));
        let victims = plan.decisions.iter().flat_map(|decision| match decision {
            Decision::Preempt { victims, .. } => victims.as_slice(),
            _ => &[],
        });
        let mut found: Vec<Victim> = victims
            .filter_map(|victim| Some(Victim::of(self.pod(victim.workload.as_str())?)))
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found
    }

    /// Number of disruption budgets that allow fewer evictions than these.
    pub(crate) fn violated_budgets(&self, victims: &[Victim]) -> usize {
        let pods: Vec<&Pod> = victims.iter().filter_map(|victim| self.pod(&victim.id)).collect();
        let exceeds = |budget: &&DisruptionBudget| {
            let evicted = pods.iter().filter(|pod| protects(budget, pod)).count();
            evicted as i32 > budget.status.disruptions_allowed
        };
        self.budgets.iter().filter(exceeds).count()
    }

    fn pod(&self, id: &str) -> Option<&Pod> {
        self.pods.iter().find(|pod| id_of(pod) == id)
    }

    /// The snapshot with so many allocatable GPUs of a node.
    pub(crate) fn with_gpus(mut self, node: &str, gpus: usize) -> Self {
        let named = |other: &&mut Node| other.metadata.name.as_deref() == Some(node);
        let amounts = &mut self.nodes.iter_mut().find(named).expect("the node").status.allocatable;
        let amount = Quantity(gpus.to_string());
        amounts.get_or_insert_default().insert("nvidia.com/gpu".to_owned(), amount);
        self
    }

    fn workload(&self, pod: &Pod) -> Workload {
        let asked = translate::pod(pod, &self.around()).expect("a request");
        Workload {
            priority: translate::priority(pod),
            preemptible: true,
            budgets: self.budgets.iter().filter(|all| protects(all, pod)).map(budget_id).collect(),
            ..Workload::new(id_of(pod), asked.request)
        }
    }

    fn around(&self) -> TranslationContext<'_> {
        TranslationContext { volumes: &self.volumes, namespaces: &self.namespaces }
    }

    /// An engine with this snapshot; with `only`, no other node accepts a pod. Pods with the name `ours` count as placed by the
    /// engine.
    fn engine(&self, only: Option<&str>, ours: impl Fn(&str) -> bool) -> Scheduler {
        let mut engine = Scheduler::default();
        let policy = Settings::new("agentaflow").policy;
        tell(&mut engine, Event::PolicyUpdated(Box::new(policy)));
        for node in &self.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let mut view = translate::node(node, None, self.drivers.get(name));
            self.volumes.lift_limits(&mut view.node);
            if only.is_some_and(|only| only != view.node.id.as_str()) {
                view.node.resources.insert("pods".into(), 0);
            }
            tell(&mut engine, Event::NodeUpdated(Box::new(view.node)));
        }
        for budget in &self.budgets {
            let allowed = budget.status.disruptions_allowed.max(0) as u32;
            tell(&mut engine, Event::BudgetUpdated { id: budget_id(budget), allowed });
        }
        for pod in &self.pods {
            let Some(node) = pod.spec.node_name.as_deref().map(NodeId::from) else { continue };
            let id = id_of(pod);
            let event = match translate::pod(pod, &self.around()) {
                Ok(_) if ours(&id) => adopted(pod, node, self.workload(pod)),
                _ => {
                    let uses = Box::new(translate::foreign(pod, &self.around()));
                    Event::ForeignUseUpdated { node, id: id.into(), usage: uses }
                }
            };
            tell(&mut engine, event);
        }
        engine
    }
}

/// Reads drivers, their limits on each node, and the remaining capacity.
async fn storage(share: &Share, volumes: &mut Volumes) -> BTreeMap<String, CsiNode> {
    let (own, all) = (ListParams::default().labels(&share.node_selector()), ListParams::default());
    let (nodes, drivers) = (share.cluster_api::<CsiNode>(), share.cluster_api::<StorageDriver>());
    let capacities = share.api::<StorageCapacity>();
    let (nodes, drivers, capacities) =
        tokio::try_join!(nodes.list(&own), drivers.list(&own), capacities.list(&all))
            .expect("lists of storage");
    for driver in &drivers.items {
        volumes.set_driver(driver);
    }
    for capacity in capacities.items {
        volumes.set_capacity(capacity);
    }
    let named = |node: CsiNode| (node.metadata.name.clone().unwrap_or_default(), node);
    let nodes: BTreeMap<String, CsiNode> = nodes.items.into_iter().map(named).collect();
    for node in nodes.values() {
        volumes.set_csi_node(node);
    }
    nodes
}

fn budget_id(budget: &DisruptionBudget) -> BudgetId {
    budget.metadata.name.clone().unwrap_or_default().into()
}

fn protects(budget: &DisruptionBudget, pod: &Pod) -> bool {
    let labels = translate::labels(pod.metadata.labels.as_ref());
    let selector = budget.spec.selector.as_ref();
    selector.is_some_and(|selector| {
        translate::selector(selector).is_ok_and(|selector| selector.matches(&labels))
    })
}

fn id_of(pod: &Pod) -> String {
    let (name, space) = (pod.metadata.name.clone(), pod.metadata.namespace.clone());
    format!("{}/{}", space.unwrap_or_default(), name.unwrap_or_default())
}

fn adopted(pod: &Pod, node: NodeId, workload: Workload) -> Event {
    let seat = AdoptedTask {
        task: 0,
        node,
        devices: None,
        confirmed: true,
        terminating: pod.metadata.deletion_timestamp.is_some(),
    };
    Event::Adopted(Box::new(AdoptedWorkload {
        workload,
        tasks: vec![seat],
        finished: std::collections::BTreeSet::new(),
        lost: Vec::new(),
        placed_at: Time(0),
    }))
}

fn submit_and_place(engine: &mut Scheduler, workload: Workload) -> Result<String, String> {
    let id = workload.id.clone();
    tell(engine, Event::Submitted(Box::new(workload)));
    for decision in engine.decide(Time(1)).decisions {
        if let Decision::Place(placement) = decision {
            return Ok(placement.node.to_string());
        }
    }
    let explanation = engine.explain(Time(1), &id);
    Err(format!("{:?}", explanation.and_then(|explanation| explanation.reason)))
}

#[track_caller]
fn tell(engine: &mut Scheduler, event: Event) {
    engine.apply(Time(0), event).expect("the engine takes what is translated");
}

/// The share's label as JSON.
pub(crate) fn owner(share: &Share) -> (String, serde_json::Value) {
    (OWNER.to_owned(), share.id.clone().into())
}

//! The engine's result for a pod, from the objects of the API server.

use agentaflow_engine::{
    AdoptedTask, AdoptedWorkload, Decision, Event, NodeId, Request, Scheduler, Time, Workload,
    WorkloadId,
};
use agentaflow_kube_core::slim::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
};
use agentaflow_kube_core::translate::{self, Namespaces, TranslationContext, Volumes};
use kube::Api;
use kube::api::ListParams;

use crate::support::{OWNER, Share};

/// Snapshot of the cluster.
pub(crate) struct Sight {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    volumes: Volumes,
    namespaces: Namespaces,
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
        Self { nodes: nodes.items, pods: pods.items, volumes, namespaces }
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
        let mut engine = self.engine(only);
        ask(&mut engine, asked.request)
    }

    fn around(&self) -> TranslationContext<'_> {
        TranslationContext { volumes: &self.volumes, namespaces: &self.namespaces }
    }

    /// An engine with this snapshot; with `only`, no other node accepts a pod. Every second pod counts as placed by the engine.
    fn engine(&self, only: Option<&str>) -> Scheduler {
        let mut engine = Scheduler::default();
        for node in &self.nodes {
            let mut view = translate::node(node, None, None);
            self.volumes.lift_limits(&mut view.node);
            if only.is_some_and(|only| only != view.node.id.as_str()) {
                view.node.resources.insert("pods".into(), 0);
            }
            tell(&mut engine, Event::NodeUpdated(Box::new(view.node)));
        }
        for pod in &self.pods {
            let Some(node) = pod.spec.node_name.as_deref().map(NodeId::from) else { continue };
            let (name, space) = (pod.metadata.name.clone(), pod.metadata.namespace.clone());
            let id = format!("{}/{}", space.unwrap_or_default(), name.unwrap_or_default());
            let ours = id.ends_with(['0', '2', '4', '6', '8']);
            let event = match translate::pod(pod, &self.around()) {
                Ok(asked) if ours => adopted(pod, id, node, asked.request),
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

fn adopted(pod: &Pod, id: String, node: NodeId, request: Request) -> Event {
    let seat = AdoptedTask {
        task: 0,
        node,
        devices: None,
        confirmed: true,
        terminating: pod.metadata.deletion_timestamp.is_some(),
    };
    Event::Adopted(Box::new(AdoptedWorkload {
        workload: Workload::new(id, request),
        tasks: vec![seat],
        finished: std::collections::BTreeSet::new(),
        placed_at: Time(0),
    }))
}

fn ask(engine: &mut Scheduler, request: Request) -> Result<String, String> {
    let id = WorkloadId::from("the-new-one");
    tell(engine, Event::Submitted(Box::new(Workload::new(id.clone(), request))));
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

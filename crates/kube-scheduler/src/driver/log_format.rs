//! Formats actions and changes for the log. Pod bodies are omitted: they may contain secrets.

use agentaflow_kube_core::names;
use agentaflow_kube_core::slim;
use std::fmt;

use agentaflow_engine::NodeRanking;

use crate::state::{Action, Bind, Change, Object};

pub(crate) struct ActionSummary<'a>(pub(crate) &'a Action);

impl fmt::Display for ActionSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Action::Bind(bind) => binding(f, bind),
            Action::Evict { pod, reason } => write!(f, "evict {}: {reason}", pod.key),
            Action::Delete { pod, grace: None } => write!(f, "delete {}", pod.key),
            Action::Delete { pod, grace: Some(grace) } => {
                write!(f, "delete {} within {grace} s", pod.key)
            }
            Action::DeleteOrphan { pod, node } => {
                write!(f, "delete {} if node {node} does not exist", pod.key)
            }
            Action::Nominate { pod, node: Some(node) } => {
                write!(f, "nominate {node} for {}", pod.key)
            }
            Action::Nominate { pod, node: None } => write!(f, "nominate no node for {}", pod.key),
            Action::WriteCondition { pod, condition: why } => {
                write!(f, "condition of {}: {}: {}", pod.key, why.reason, why.message)
            }
            Action::LookUpOwner(owner) => {
                write!(f, "look up {} {}/{}", owner.kind, owner.namespace, owner.name)
            }
            Action::Create { workload, name, .. } => write!(f, "create pod {name} of {workload}"),
            Action::CreateService { workload, .. } => write!(f, "create service of {workload}"),
            Action::DeleteWorkload { workload, .. } => write!(f, "delete {workload}"),
            Action::WriteStatus { workload, status, .. } => {
                write!(f, "status of {workload}: {:?}", status.phase.unwrap_or_default())?;
                status.message.as_ref().map_or(Ok(()), |message| write!(f, ": {message}"))
            }
            Action::WriteQueueStatus { queue, .. } => write!(f, "status of queue {queue}"),
            Action::WriteNodeConditions { node, .. } => write!(f, "conditions of GPU node {node}"),
            Action::RemoveFinalizer { workload, .. } => {
                write!(f, "remove finalizer from {workload}")
            }
            Action::WriteReason { kind, unit, reason, .. } => {
                write!(f, "pending reason of {} {unit}: {reason}", kind.kind)
            }
            Action::Suspend { kind, unit, suspend, .. } => {
                write!(f, "{} {} {unit}", if *suspend { "suspend" } else { "resume" }, kind.kind)
            }
            Action::RecordEvent(event) => {
                let object = &event.object;
                write!(
                    f,
                    "event on {} {}: {}: {}",
                    object.kind, object.key, event.reason, event.message
                )
            }
        }
    }
}

/// Node scores of a placement.
pub(crate) struct RankingSummary<'a>(pub(crate) &'a NodeRanking);

impl fmt::Display for RankingSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeRanking { workload, task, strategy, fitting, nodes } = self.0;
        write!(f, "task {task} of {workload} by {strategy}; nodes that fit: {fitting};")?;
        for (at, (node, score)) in nodes.iter().enumerate() {
            write!(f, "{} {node} {score}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

fn binding(f: &mut fmt::Formatter<'_>, bind: &Bind) -> fmt::Result {
    write!(f, "bind {} to {}", bind.pod.key, bind.node)?;
    if let Some(gpus) = bind.annotations.get(names::POD_ASSIGNED_GPU) {
        write!(f, " ({gpus})")?;
    }
    if let Some((first, _)) = bind.claims.first() {
        write!(f, " after {} claims, the first {first}", bind.claims.len())?;
    }
    Ok(())
}

/// Kind and name of a changed object.
pub(crate) struct ChangeSummary<'a>(pub(crate) &'a Change);

impl fmt::Display for ChangeSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, object) = match self.0 {
            Change::Applied(object) => ("applied", object),
            Change::Deleted(object) => ("deleted", object),
        };
        let (kind, meta) = match &**object {
            Object::Pod(slim::Pod { metadata, .. }) => ("pod", metadata),
            Object::Node(slim::Node { metadata, .. }) => ("node", metadata),
            Object::GpuNode(slim::GpuNode { metadata, .. }) => ("GPU node", metadata),
            Object::Workload(slim::Workload { metadata, .. }) => ("workload", metadata),
            Object::Queue(slim::Queue { metadata, .. }) => ("queue", metadata),
            Object::Claim(slim::PersistentVolumeClaim { metadata, .. }) => ("claim", metadata),
            Object::Volume(slim::PersistentVolume { metadata, .. }) => ("volume", metadata),
            Object::Class(slim::StorageClass { metadata, .. }) => ("storage class", metadata),
            Object::CsiNode(slim::CsiNode { metadata, .. }) => ("CSI node", metadata),
            Object::Driver(slim::StorageDriver { metadata, .. }) => ("CSI driver", metadata),
            Object::Capacity(slim::StorageCapacity { metadata, .. }) => ("capacity", metadata),
            Object::Namespace(slim::Namespace { metadata, .. }) => ("namespace", metadata),
            Object::Priority(slim::PriorityClass { metadata, .. }) => ("priority class", metadata),
            Object::Budget(slim::DisruptionBudget { metadata, .. }) => ("budget", metadata),
            Object::PodGroup(slim::PodGroup { metadata, .. }) => ("pod group", metadata),
            Object::Job(kind, slim::JobObject { metadata, .. }) => (kind.kind, metadata),
            Object::NativeGroup(slim::NativePodGroup { metadata, .. }) => {
                ("native pod group", metadata)
            }
        };
        let (namespace, name) = (&meta.namespace, meta.name.as_deref().unwrap_or_default());
        match namespace.as_deref() {
            Some(namespace) => write!(f, "{verb} {kind} {namespace}/{name}"),
            None => write!(f, "{verb} {kind} {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Key, PodRef};
    use agentaflow_engine::Strategy;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn the_log_names_actions_and_objects_and_no_pod_bodies() {
        let check = |act: Action, text: &str| assert_eq!(ActionSummary(&act).to_string(), text);
        let pod = PodRef { key: Key::new("default", "train-0"), uid: "u".into() };
        let gpus = (names::POD_ASSIGNED_GPU.to_owned(), "gpu-7/GPU-1,gpu-7/GPU-2".to_owned());
        check(
            Action::Bind(Box::new(Bind {
                pod: pod.clone(),
                node: "gpu-7".into(),
                annotations: BTreeMap::from([gpus]),
                labels: BTreeMap::new(),
                claims: Vec::new(),
                plan: 1,
            })),
            "bind default/train-0 to gpu-7 (gpu-7/GPU-1,gpu-7/GPU-2)",
        );
        check(
            Action::Evict { pod, reason: "for default/urgent".to_owned() },
            "evict default/train-0: for default/urgent",
        );
        let body = json!({ "spec": { "containers": [{ "env": [{ "value": "secret" }] }] } });
        check(
            Action::Create {
                workload: Key::new("default", "train"),
                name: "train-0".to_owned(),
                body: Box::new(body),
            },
            "create pod train-0 of default/train",
        );
    }

    #[test]
    fn a_ranking_shows_the_scores_of_the_best_nodes() {
        let ranking = NodeRanking {
            workload: "default/train".into(),
            task: 1,
            strategy: Strategy::LeastUtilized,
            fitting: 3,
            nodes: vec![("gpu-7".into(), 12), ("gpu-2".into(), 4)],
        };
        let text =
            "task 1 of default/train by least_utilized; nodes that fit: 3; gpu-7 12, gpu-2 4";
        assert_eq!(RankingSummary(&ranking).to_string(), text);
    }

    #[test]
    fn a_change_shows_kind_and_name() {
        let mut node = slim::Node::default();
        node.metadata.name = Some("gpu-7".to_owned());
        let change = Change::Deleted(Box::new(Object::Node(node)));
        assert_eq!(ChangeSummary(&change).to_string(), "deleted node gpu-7");
    }
}

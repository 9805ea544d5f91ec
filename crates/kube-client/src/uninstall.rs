//! Removal of everything that agentaflow wrote to a cluster.
//!
//! The order matters: first the webhooks, so that no request waits for them; then the programs, which would write again;
//! then their traces on objects of users.

use agentaflow_kube_core::names;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

use super::{Cluster, Failure, list};

mod jobs;

/// Labels of the objects in `deploy/kubernetes`; the worker of `deploy/worker` is an installation of its own.
const PART_OF: &str =
    "app.kubernetes.io/part-of=agentaflow,app.kubernetes.io/name!=imagepod-gpu-worker";
/// Time for the programs to end after their deletion.
const ENDING: Duration = Duration::from_mins(1);

/// Kinds with labelled objects, as group, version, kind and scope. The programs come before their rights.
const PROGRAMS: [ResourceKind; 8] = [
    ResourceKind::cluster("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration"),
    ResourceKind::cluster("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration"),
    ResourceKind::cluster("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding"),
    ResourceKind::cluster("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"),
    ResourceKind::system("apps", "v1", "Deployment"),
    ResourceKind::system("apps", "v1", "DaemonSet"),
    ResourceKind::system("policy", "v1", "PodDisruptionBudget"),
    ResourceKind::system("", "v1", "Service"),
];
const RIGHTS: [ResourceKind; 5] = [
    ResourceKind::system("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    ResourceKind::system("rbac.authorization.k8s.io", "v1", "Role"),
    ResourceKind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
    ResourceKind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ResourceKind::system("", "v1", "ServiceAccount"),
];
/// Objects that the programs create without a label.
const CREATED: [(ResourceKind, &str); 4] = [
    (ResourceKind::system("coordination.k8s.io", "v1", "Lease"), names::SCHEDULER_DEPLOYMENT),
    (ResourceKind::system("", "v1", "ConfigMap"), names::SCHEDULER_CONFIG),
    (ResourceKind::system("", "v1", "ConfigMap"), "agentaflow-gpu-scheduler-memory"),
    (ResourceKind::system("", "v1", "Secret"), "agentaflow-webhook-certs"),
];
/// Labels and annotations that monitor, scheduler and commands write to nodes; administrators write the other ones.
const NODE_LABELS: [&str; 4] =
    [names::NODE_ENABLED, names::NODE_SCHEDULABLE, names::NODE_COUNT, names::NODE_TIER];
const NODE_ANNOTATIONS: [&str; 4] =
    [names::NODE_DEVICES, names::NODE_STATUS, names::NODE_LAST_UPDATE, names::NODE_CLOSED_GPUS];
/// Label and annotations that scheduler and monitor write to pods.
const POD_LABELS: [&str; 1] = [names::POD_MANAGED];
const POD_ANNOTATIONS: [&str; 4] =
    [names::POD_ASSIGNED_GPU, names::POD_ASSIGNED_NODE, names::POD_PRICE, names::POD_DEVICES];

/// Extent of a removal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uninstall {
    /// Report the changes only.
    pub dry_run: bool,
    /// Also delete the kinds of agentaflow with all `GPUWorkload`s, their pods and all queues, and the namespace.
    pub delete_workloads: bool,
}

/// Line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UninstallStep {
    Change(String),
    /// Left to the administrator, with a command.
    Advice(String),
}

#[derive(Clone, Copy, Debug)]
struct ResourceKind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// In the namespace of agentaflow.
    in_system: bool,
}

impl ResourceKind {
    const fn cluster(group: &'static str, version: &'static str, kind: &'static str) -> Self {
        Self { group, version, kind, in_system: false }
    }

    const fn system(group: &'static str, version: &'static str, kind: &'static str) -> Self {
        Self { group, version, kind, in_system: true }
    }

    fn resource(self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(self.group, self.version, self.kind))
    }
}

/// One removal in progress.
struct Removal<'a> {
    cluster: &'a Cluster,
    how: Uninstall,
    report: &'a mut dyn FnMut(UninstallStep),
}

impl Cluster {
    /// Removes agentaflow. Running pods stay, and without [`Uninstall::delete_workloads`] so do all `GPUWorkload`s and
    /// queues.
    pub async fn uninstall(
        &self,
        how: Uninstall,
        report: &mut dyn FnMut(UninstallStep),
    ) -> Result<(), Failure> {
        let mut removal = Removal { cluster: self, how, report };
        removal.programs().await?;
        removal.finalizers().await?;
        removal.traces().await?;
        removal.jobs().await?;
        removal.rights().await?;
        if how.delete_workloads {
            removal.kinds().await?;
        }
        Ok(())
    }
}

impl Removal<'_> {
    async fn programs(&mut self) -> Result<(), Failure> {
        for kind in PROGRAMS {
            self.delete_labelled(kind).await?;
        }
        if self.how.dry_run {
            return Ok(());
        }
        // A program that still runs would write its labels again.
        let pods = self.api(ResourceKind::system("", "v1", "Pod"));
        let deadline = Instant::now() + ENDING;
        while !list::all(&pods, ListParams::default().labels(PART_OF)).await?.is_empty() {
            if Instant::now() > deadline {
                let message = format!(
                    "pods of agentaflow in namespace {} do not end; run the command again later",
                    self.cluster.system
                );
                return Err(Failure::Other(message));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// Finalizers of earlier versions would keep deleted workloads for ever.
    async fn finalizers(&mut self) -> Result<(), Failure> {
        let workloads =
            self.api(ResourceKind::cluster(names::GROUP, names::VERSION, "GPUWorkload"));
        for workload in found(list::all(&workloads, ListParams::default()).await)? {
            let all = workload.metadata.finalizers.clone().unwrap_or_default();
            let kept: Vec<&String> = all.iter().filter(|name| *name != names::FINALIZER).collect();
            if kept.len() < all.len() {
                let version = &workload.metadata.resource_version;
                let patch = json!({"metadata": {"finalizers": kept, "resourceVersion": version}});
                let what = format!("finalizer {}", names::FINALIZER);
                self.patch("GPUWorkload", &workload, &patch, &what).await?;
            }
        }
        Ok(())
    }

    /// Labels and annotations on nodes and pods.
    async fn traces(&mut self) -> Result<(), Failure> {
        let nodes = self.api(ResourceKind::cluster("", "v1", "Node"));
        for node in list::all(&nodes, ListParams::default()).await? {
            self.remove_marks("Node", &node, &NODE_LABELS, &NODE_ANNOTATIONS).await?;
        }
        let managed = ListParams::default().labels(&format!("{}=true", names::POD_MANAGED));
        let pods = self.api(ResourceKind::cluster("", "v1", "Pod"));
        for pod in list::all(&pods, managed).await? {
            self.remove_marks("Pod", &pod, &POD_LABELS, &POD_ANNOTATIONS).await?;
        }
        Ok(())
    }

    async fn rights(&mut self) -> Result<(), Failure> {
        let reports = ResourceKind::system(names::GROUP, names::VERSION, "GPUNode");
        for one in found(list::all(&self.api(reports), ListParams::default()).await)? {
            self.delete(reports, &one.metadata.name.unwrap_or_default()).await?;
        }
        for (kind, name) in CREATED {
            if self.api(kind).get_opt(name).await?.is_some() {
                self.delete(kind, name).await?;
            }
        }
        for kind in RIGHTS {
            self.delete_labelled(kind).await?;
        }
        let classes = ResourceKind::cluster("scheduling.k8s.io", "v1", "PriorityClass");
        for name in (0..=names::HIGHEST_PRIORITY).map(names::priority_class_name) {
            if self.api(classes).get_opt(&name).await?.is_some() {
                self.delete(classes, &name).await?;
            }
        }
        Ok(())
    }

    /// Deletes the kinds, and with them all of their objects, then the namespace.
    async fn kinds(&mut self) -> Result<(), Failure> {
        let kind = ResourceKind::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        for name in ["gpuworkloads", "gpunodes", "gpuqueues"] {
            let name = format!("{name}.{}", names::GROUP);
            if self.api(kind).get_opt(&name).await?.is_some() {
                self.delete(kind, &name).await?;
            }
        }
        let namespace = ResourceKind::cluster("", "v1", "Namespace");
        let system = self.cluster.system.clone();
        if self.api(namespace).get_opt(&system).await?.is_some() {
            self.delete(namespace, &system).await?;
        }
        Ok(())
    }

    async fn delete_labelled(&mut self, kind: ResourceKind) -> Result<(), Failure> {
        let wanted = ListParams::default().labels(PART_OF);
        for one in found(list::all(&self.api(kind), wanted).await)? {
            self.delete(kind, &one.metadata.name.unwrap_or_default()).await?;
        }
        Ok(())
    }

    async fn delete(&mut self, kind: ResourceKind, name: &str) -> Result<(), Failure> {
        self.change(format!("delete {} {name}", kind.kind));
        if self.how.dry_run {
            return Ok(());
        }
        unless_gone(self.api(kind).delete(name, &DeleteParams::background()).await)
    }

    async fn remove_marks(
        &mut self,
        kind: &'static str,
        object: &DynamicObject,
        labels: &[&str],
        annotations: &[&str],
    ) -> Result<(), Failure> {
        let Some((patch, marks)) = marks(object, labels, annotations) else { return Ok(()) };
        self.patch(kind, object, &patch, &marks.join(", ")).await
    }

    async fn patch(
        &mut self,
        kind: &'static str,
        object: &DynamicObject,
        patch: &Value,
        what: &str,
    ) -> Result<(), Failure> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let namespace = object.metadata.namespace.as_deref();
        let shown = namespace.map(|space| format!("{space}/")).unwrap_or_default();
        self.change(format!("remove from {kind} {shown}{name}: {what}"));
        if self.how.dry_run {
            return Ok(());
        }
        let group = if kind == "GPUWorkload" { names::GROUP } else { "" };
        let resource = ResourceKind::cluster(group, "v1", kind).resource();
        let client = self.cluster.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(space) => Api::namespaced_with(client, space, &resource),
            None => Api::all_with(client, &resource),
        };
        unless_gone(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    fn change(&mut self, line: String) {
        (self.report)(UninstallStep::Change(line));
    }

    fn api(&self, kind: ResourceKind) -> Api<DynamicObject> {
        let (client, resource) = (self.cluster.client.clone(), kind.resource());
        if kind.in_system {
            Api::namespaced_with(client, &self.cluster.system, &resource)
        } else {
            Api::all_with(client, &resource)
        }
    }
}

/// A merge patch that removes the present ones of these labels and annotations, and their names; none if none is present.
fn marks(
    object: &DynamicObject,
    labels: &[&str],
    annotations: &[&str],
) -> Option<(Value, Vec<String>)> {
    let metadata = &object.metadata;
    let mut names = Vec::new();
    let mut parts = Map::new();
    let present = [
        ("labels", metadata.labels.as_ref(), labels),
        ("annotations", metadata.annotations.as_ref(), annotations),
    ];
    for (part, has, wanted) in present {
        let here = wanted.iter().filter(|name| has.is_some_and(|all| all.contains_key(**name)));
        let here: Vec<String> = here.map(|name| (*name).to_owned()).collect();
        if !here.is_empty() {
            let cleared = here.iter().map(|name| (name.clone(), Value::Null)).collect();
            parts.insert(part.to_owned(), Value::Object(cleared));
            names.extend(here);
        }
    }
    (!names.is_empty()).then(|| (json!({ "metadata": parts }), names))
}

/// The object may have been deleted in the meantime.
fn unless_gone<T>(done: kube::Result<T>) -> Result<(), Failure> {
    match done.map_err(Failure::from) {
        Ok(_) | Err(Failure::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A kind that the cluster does not serve has no objects.
fn found<K>(listed: Result<Vec<K>, Failure>) -> Result<Vec<K>, Failure> {
    match listed {
        Err(Failure::NotFound(_)) => Ok(Vec::new()),
        listed => listed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_administrators_stay() {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {
            "name": "n",
            "labels": {names::NODE_COUNT: "8", "zone": "a"},
            "annotations": {names::NODE_PRICE: "2.50", names::NODE_STATUS: "{}"},
        }});
        let node: DynamicObject = serde_json::from_value(node).expect("a node");
        let (patch, found) = marks(&node, &NODE_LABELS, &NODE_ANNOTATIONS).expect("marks");
        assert_eq!(found, [names::NODE_COUNT, names::NODE_STATUS]);
        let expected = json!({"metadata": {
            "labels": {names::NODE_COUNT: null},
            "annotations": {names::NODE_STATUS: null},
        }});
        assert_eq!(patch, expected);
        let plain = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        let plain: DynamicObject = serde_json::from_value(plain).expect("a node");
        assert_eq!(marks(&plain, &NODE_LABELS, &NODE_ANNOTATIONS), None);
    }
}

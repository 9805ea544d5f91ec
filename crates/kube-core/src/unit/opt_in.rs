//! Pod sets of a job that the scheduler places.

use super::read::{PodSet, UnitSpec};
use crate::names;
use crate::slim::{JobObject, Pod};
use crate::translate;

/// Facts around a job that decide on its pod sets.
#[derive(Clone, Copy, Debug)]
pub struct OptIn<'a> {
    pub scheduler: &'a str,
    /// The webhook runs: pods that are opted in get the scheduler's name.
    pub admission: bool,
    /// The label of the namespace opts in every GPU pod.
    pub namespace: bool,
    /// Kueue is installed: it manages jobs with its label.
    pub kueue: bool,
}

impl OptIn<'_> {
    /// True if the object may be a unit: no other program manages its suspend field, and the user did not opt out.
    pub fn may_manage(self, object: &JobObject) -> bool {
        let annotation = |name: &str| object.metadata.annotations.as_ref()?.get(name);
        let labels = object.metadata.labels.as_ref();
        let has_label = |name: &str| labels.is_some_and(|labels| labels.contains_key(name));
        let managed_by = object.spec.get("managedBy").and_then(serde_json::Value::as_str);
        annotation(names::UNIT).is_none_or(|value| value.trim() != "false")
            && !(self.kueue && has_label(names::KUEUE_QUEUE))
            && !has_label(names::WORKER_AGENT)
            && managed_by.is_none_or(|name| BUILT_IN.contains(&name))
    }

    /// Pod sets that the scheduler places; empty if the job is not a unit.
    pub fn own_sets<'s>(self, object: &JobObject, spec: &'s UnitSpec) -> Vec<&'s PodSet> {
        if !self.may_manage(object) || spec.sets.iter().any(|set| names_group(&set.template)) {
            return Vec::new();
        }
        let asked = is_annotated(object.metadata.annotations.as_ref());
        spec.sets.iter().filter(|set| self.takes(asked, &set.template)).collect()
    }

    /// Pod set of a job that names a pod group: the job is no unit, and takes turns with other gangs under a quota.
    pub fn grouped_set<'s>(self, object: &JobObject, spec: &'s UnitSpec) -> Option<&'s PodSet> {
        let mut sets = spec.sets.iter().filter(|_| self.may_manage(object));
        sets.find(|set| names_group(&set.template) && self.takes(false, &set.template))
    }

    fn takes(self, asked: bool, template: &Pod) -> bool {
        let named = template.spec.scheduler_name.as_deref().unwrap_or_default();
        if named == self.scheduler {
            return true;
        }
        let free = ["", "default-scheduler"].contains(&named);
        let asked = asked || is_annotated(template.metadata.annotations.as_ref());
        let gpu = || !translate::gpu_resources(template).is_empty();
        self.admission && free && (asked || (self.namespace && gpu()))
    }
}

/// Values of `spec.managedBy` that name the kind's own controller.
const BUILT_IN: [&str; 5] = [
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "trainer.kubeflow.org/trainjob-controller",
    "ray.io/kuberay-operator",
    "kubeflow.org/training-operator",
];

fn is_annotated(annotations: Option<&std::collections::BTreeMap<String, String>>) -> bool {
    let mut names = annotations.into_iter().flat_map(|all| all.keys());
    names.any(|name| name.starts_with(names::PREFIX))
}

/// True if the pods belong to a pod group that the user wrote.
fn names_group(template: &Pod) -> bool {
    let label = template.metadata.labels.as_ref().and_then(|labels| labels.get(names::POD_GROUP));
    label.is_some_and(|name| !name.is_empty()) || template.spec.scheduling_group.is_some()
}

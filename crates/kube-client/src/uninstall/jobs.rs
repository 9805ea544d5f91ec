//! Jobs that the webhook suspended: without a scheduler nothing resumes them.

use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::JobObject;
use agentaflow_kube_core::unit::{KINDS, UnitKind, UnitSpec, read};
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::{Removal, UninstallStep, found, list, unless_gone};
use crate::Failure;

impl Removal<'_> {
    /// Removes the pending reasons and lists the jobs that stay suspended.
    pub(super) async fn jobs(&mut self) -> Result<(), Failure> {
        for kind in KINDS.iter().filter(|kind| kind.can_suspend()) {
            let jobs: Api<JobObject> = Api::all_with(self.cluster.client.clone(), &kind);
            for job in found(list::all(&jobs, ListParams::default()).await)? {
                self.remove_pending_reason(kind, &job).await?;
                if waits_for_scheduler(&job, &read(kind, &job)) {
                    (self.report)(UninstallStep::Advice(resume_command(kind, &job)));
                }
            }
        }
        Ok(())
    }

    async fn remove_pending_reason(
        &mut self,
        kind: &'static UnitKind,
        job: &JobObject,
    ) -> Result<(), Failure> {
        if annotation(job, names::UNIT_REASON).is_none() {
            return Ok(());
        }
        let (space, name) = place(job);
        let reason = names::UNIT_REASON;
        self.change(format!("remove from {} {space}/{name}: {reason}", kind.kind));
        if self.how.dry_run {
            return Ok(());
        }
        let patch = json!({"metadata": {"annotations": {reason: null}}});
        let kind = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let resource = ApiResource::from_gvk(&kind);
        let jobs: Api<DynamicObject> =
            Api::namespaced_with(self.cluster.client.clone(), space, &resource);
        unless_gone(jobs.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await)
    }
}

/// Suspended by the webhook or by a preemption. A job that its user holds stays as it is.
fn waits_for_scheduler(job: &JobObject, spec: &UnitSpec) -> bool {
    let template = |name: &str| {
        spec.sets.iter().any(|set| set.template.spec.scheduler_name.as_deref() == Some(name))
    };
    let is_held = annotation(job, names::UNIT_HOLD) == Some("true");
    let is_ours = annotation(job, names::UNIT_REASON).is_some() || template(names::SCHEDULER_NAME);
    spec.suspended && !spec.ended && is_ours && !is_held
}

fn resume_command(kind: &UnitKind, job: &JobObject) -> String {
    let (space, name) = place(job);
    let steps = kind.suspend.split('/').skip(1).collect::<Vec<_>>();
    let patch =
        steps.into_iter().rev().fold(Value::Bool(false), |value, step| json!({step: value}));
    format!(
        "{} {space}/{name} stays suspended; to resume it: kubectl patch {}.{} {name} -n {space} \
         --type=merge -p '{patch}'",
        kind.kind, kind.plural, kind.group
    )
}

fn annotation<'a>(job: &'a JobObject, name: &str) -> Option<&'a str> {
    job.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Namespace and name.
fn place(job: &JobObject) -> (&str, &str) {
    let (space, name) = (job.metadata.namespace.as_deref(), job.metadata.name.as_deref());
    (space.unwrap_or_default(), name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentaflow_kube_core::unit::of_owner;

    fn job(annotations: &Value, scheduler: &str, suspend: bool) -> JobObject {
        let job = json!({
            "metadata": {"name": "train", "namespace": "ml", "annotations": annotations},
            "spec": {"suspend": suspend, "template": {"spec": {"schedulerName": scheduler,
                "containers": []}}},
        });
        serde_json::from_value(job).expect("a job")
    }

    #[test]
    fn only_jobs_suspended_for_the_scheduler_are_listed() {
        let kind = of_owner("batch/v1", "Job").expect("a kind");
        let check = |annotations: Value, scheduler: &str, suspend: bool, expected: bool| {
            let job = job(&annotations, scheduler, suspend);
            assert_eq!(waits_for_scheduler(&job, &read(kind, &job)), expected, "{job:?}");
        };
        check(json!({}), "agentaflow", true, true);
        check(json!({names::UNIT_REASON: "2 of 4 pods"}), "other", true, true);
        check(json!({names::UNIT_HOLD: "true"}), "agentaflow", true, false);
        check(json!({}), "agentaflow", false, false);
        check(json!({}), "other", true, false);
    }

    #[test]
    fn the_command_sets_the_suspend_field_of_the_kind() {
        let command = |group: &str, kind: &str| {
            resume_command(of_owner(group, kind).expect("a kind"), &job(&json!({}), "", true))
        };
        assert!(command("batch/v1", "Job").ends_with(
            "kubectl patch jobs.batch train -n ml --type=merge -p '{\"spec\":{\"suspend\":false}}'"
        ));
        assert!(
            command("kubeflow.org/v1", "PyTorchJob")
                .ends_with("-p '{\"spec\":{\"runPolicy\":{\"suspend\":false}}}'")
        );
    }
}

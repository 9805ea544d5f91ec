//! Jobs that become units: suspended at creation, with the name of the scheduler in their pod templates.

use agentaflow_kube_core::slim::JobObject;
use agentaflow_kube_core::unit::{self, OptIn, UnitKind, UnitSpec};
use serde_json::{Value, json};

use super::pods::Rules;
use super::review::{AdmissionResult, Request};

/// Suspends a new job that is opted in; the scheduler resumes it when all its pods have a place.
pub(super) fn take(rules: Rules<'_>, request: &Request) -> AdmissionResult {
    let object = &request.object;
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let kind = unit::of_owner(text("apiVersion"), text("kind"));
    let Some(kind) = kind.filter(|_| request.operation == "CREATE" && !is_part(object)) else {
        return AdmissionResult::default();
    };
    let Ok(job) = serde_json::from_value::<JobObject>(object.clone()) else {
        return AdmissionResult::default();
    };
    let opt_in = OptIn {
        scheduler: rules.scheduler,
        admission: true,
        namespace: rules.opted_in,
        kueue: false,
    };
    let spec = unit::read(kind, &job);
    if opt_in.own_sets(&job, &spec).is_empty() {
        return AdmissionResult::default();
    }
    if let Some(why) = spec.exception {
        let warning = format!("agentaflow starts the pods of this job one by one: {why}");
        return AdmissionResult { warnings: vec![warning], ..AdmissionResult::default() };
    }
    let mut patch = name_scheduler(opt_in, &job, &spec);
    if !spec.suspended {
        patch.extend(suspend(kind, object));
    }
    AdmissionResult { patch, ..AdmissionResult::default() }
}

/// True if the controller of another job created the object.
fn is_part(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    owners.into_iter().any(|owner| {
        let kind = unit::of_owner(&text(&owner["apiVersion"]), &text(&owner["kind"]));
        owner["controller"] == true && kind.is_some()
    })
}

fn name_scheduler(opt_in: OptIn<'_>, job: &JobObject, spec: &UnitSpec) -> Vec<Value> {
    let own = opt_in.own_sets(job, spec).into_iter();
    let unnamed =
        own.filter(|set| set.template.spec.scheduler_name.as_deref() != Some(opt_in.scheduler));
    let add = |pointer: &str| {
        let path = format!("{pointer}/spec/schedulerName");
        json!({"op": "add", "path": path, "value": opt_in.scheduler})
    };
    unnamed.map(|set| add(&set.pointer)).collect()
}

/// The patch that sets the suspend field, and creates the objects around it.
fn suspend(kind: &UnitKind, object: &Value) -> Option<Value> {
    let mut path = kind.suspend;
    let mut value = json!(true);
    loop {
        let (above, field) = path.rsplit_once('/')?;
        if object.pointer(above).is_some_and(Value::is_object) {
            return Some(json!({"op": "add", "path": path, "value": value}));
        }
        value = json!({ field: value });
        path = above;
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_kube_core::names;

    use super::*;

    const RULES: Rules<'static> =
        Rules { scheduler: "agentaflow", home: "agentaflow", opted_in: false };

    #[expect(clippy::needless_pass_by_value, reason = "the tests write literals")]
    fn job(spec: Value) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec})
    }

    fn template(scheduler: &str) -> Value {
        let limits = json!({names::GPU_RESOURCE: "2"});
        json!({"spec": {"schedulerName": scheduler,
            "containers": [{"name": "main", "resources": {"limits": limits}}]}})
    }

    fn patch(rules: Rules<'_>, object: Value) -> Vec<Value> {
        let operation = "CREATE".to_owned();
        take(rules, &Request { operation, object, ..Request::default() }).patch
    }

    fn suspends(path: &str) -> Value {
        json!({"op": "add", "path": path, "value": true})
    }

    #[test]
    fn a_job_that_names_the_scheduler_is_suspended() {
        let named = job(json!({"template": template("agentaflow")}));
        assert_eq!(patch(RULES, named), [suspends("/spec/suspend")]);
        let unnamed = job(json!({"template": template("default-scheduler")}));
        assert_eq!(patch(RULES, unnamed), Vec::<Value>::new());
        let suspended = job(json!({"suspend": true, "template": template("agentaflow")}));
        assert_eq!(patch(RULES, suspended), Vec::<Value>::new());
    }

    #[test]
    fn an_opted_in_job_gets_the_name_of_the_scheduler_in_its_templates() {
        let name = json!({"op": "add", "path": "/spec/template/spec/schedulerName",
            "value": "agentaflow"});
        let expected = [name, suspends("/spec/suspend")];
        let unnamed = job(json!({"template": template("default-scheduler")}));
        assert_eq!(patch(Rules { opted_in: true, ..RULES }, unnamed.clone()), expected);
        let mut annotated = unnamed;
        annotated["metadata"]["annotations"] = json!({names::PRIORITY: "3"});
        assert_eq!(patch(RULES, annotated), expected);
    }

    #[test]
    fn the_fields_around_the_suspend_field_are_created() {
        let specs = json!({"Master": {"template": template("agentaflow")}});
        let pytorch = json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {}, "spec": {"pytorchReplicaSpecs": specs}});
        let expected = json!({"op": "add", "path": "/spec/runPolicy", "value": {"suspend": true}});
        assert_eq!(patch(RULES, pytorch), [expected]);
    }

    #[test]
    fn jobs_of_a_job_set_are_left_to_it() {
        let mut part = job(json!({"template": template("agentaflow")}));
        part["metadata"]["ownerReferences"] = json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet", "name": "s", "uid": "1", "controller": true}]);
        assert_eq!(patch(RULES, part.clone()), Vec::<Value>::new());
        part["metadata"]["ownerReferences"][0]["apiVersion"] = json!("batch/v1");
        part["metadata"]["ownerReferences"][0]["kind"] = json!("CronJob");
        assert_eq!(patch(RULES, part), [suspends("/spec/suspend")]);
    }

    #[test]
    fn a_job_that_cannot_be_a_unit_is_admitted_with_a_warning() {
        let jobs =
            json!([{"name": "a", "template": {"spec": {"template": template("agentaflow")}}}]);
        let object = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {}, "spec": {"replicatedJobs": jobs,
                "startupPolicy": {"startupPolicyOrder": "InOrder"}}});
        let operation = "CREATE".to_owned();
        let result = take(RULES, &Request { operation, object, ..Request::default() });
        assert_eq!((result.patch.len(), result.warnings.len()), (0, 1));
    }
}

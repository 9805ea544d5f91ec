//! Checks that the pods of a workload can be created, and that the user may create pods.

use agentaflow_kube_core::crd::{GpuQueue, GpuQueueSpec, GpuWorkload, GpuWorkloadSpec};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, Status};
use kube::{Client, Resource};
use serde_json::Value;

use super::namespace_quota;
use super::queues::{Queues, serves};
use super::review::{AdmissionResult, Problem, Request};
use super::template;

/// Validates a new workload or a changed spec.
pub(super) async fn validate(
    client: &Client,
    scheduler: &str,
    request: &Request,
) -> AdmissionResult {
    if !request.changes_spec() {
        return AdmissionResult::default();
    }
    if request.changes_template() {
        let message = "cannot be changed: delete the object and create it with the new value";
        return AdmissionResult::refuse(Problem::at("spec.podTemplate", message));
    }
    let workload: GpuWorkload = match serde_json::from_value(request.object.clone()) {
        Ok(workload) => workload,
        Err(error) => {
            return AdmissionResult::refuse(format!("cannot decode the workload: {error}"));
        }
    };
    let refused = may_create_pods(client, &request.user_info, &request.namespace).await;
    if !refused.problems.is_empty() {
        return refused;
    }
    let mut result = template::check(&workload.spec);
    match all_queues(client).await {
        Ok(queues) => result.add(queue(&workload.spec, &request.namespace, &queues)),
        Err(error) => result.add(unchecked("the queues", &error)),
    }
    // A dry run is pointless for a known problem; on an update the template is unchanged.
    if result.problems.is_empty() && request.operation == "CREATE" {
        result.add(dry_run(client, scheduler, &request.namespace, &workload).await);
    }
    result
}

pub(super) async fn all_queues(client: &Client) -> Result<Queues, kube::Error> {
    let api: Api<DynamicObject> =
        Api::all_with(client.clone(), &ApiResource::erase::<GpuQueue>(&()));
    // A cached list is sufficient and spares the API server's store.
    let queues = api.list(&ListParams::default().match_any()).await?;
    let spec = |queue: &DynamicObject| serde_json::from_value(queue.data["spec"].clone()).ok();
    let named = |queue: DynamicObject| Some((queue.metadata.name.clone()?, spec(&queue)?));
    Ok(queues.into_iter().filter_map(named).collect())
}

/// The scheduler creates the pods of a workload: a user without permission to create pods must not create workloads.
async fn may_create_pods(client: &Client, user: &UserInfo, namespace: &str) -> AdmissionResult {
    let attributes = ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        verb: Some("create".to_owned()),
        resource: Some("pods".to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    match reviews.create(&PostParams::default(), &review).await {
        Ok(review) if review.status.as_ref().is_some_and(|status| status.allowed) => {
            AdmissionResult::default()
        }
        Ok(_) => {
            let user = user.username.as_deref().unwrap_or("unknown");
            AdmissionResult::forbid(format!(
                "a GPUWorkload creates pods, but user `{user}` cannot create pods in namespace `{namespace}`: ask \
                 an administrator for the verb `create` on `pods`"
            ))
        }
        Err(error) => unchecked("whether you may create pods", &error),
    }
}

/// The queue must exist, admit the namespace and allow the priority.
fn queue(spec: &GpuWorkloadSpec, namespace: &str, queues: &Queues) -> AdmissionResult {
    let open = || queues.iter().filter(|(_, queue)| serves(queue, namespace));
    let (name, queue) = match &spec.queue {
        Some(name) => match queues.get(name) {
            Some(queue) if serves(queue, namespace) => (name, queue),
            found => {
                let names: Vec<_> = open().map(|(name, _)| format!("`{name}`")).collect();
                let remedy = if names.is_empty() {
                    "no queue does; omit `queue`, or ask an administrator for one".to_owned()
                } else {
                    format!("use one that does: {}", names.join(", "))
                };
                let wrong = if found.is_some() { "does not serve" } else { "does not exist for" };
                let message =
                    format_args!("GPUQueue `{name}` {wrong} namespace `{namespace}`; {remedy}");
                return AdmissionResult::refuse(Problem::at("spec.queue", message));
            }
        },
        None => match of_namespace(namespace, queues) {
            Some(found) => found,
            None => return AdmissionResult::default(),
        },
    };
    if spec.priority <= queue.max_priority {
        return AdmissionResult::default();
    }
    let message = format_args!(
        "{} exceeds the limit of queue `{name}`; use {} or less",
        spec.priority, queue.max_priority
    );
    AdmissionResult::refuse(Problem::at("spec.priority", message))
}

/// Queue of a workload that names none: the only queue that lists the namespace, otherwise the only queue for all
/// namespaces.
fn of_namespace<'a>(namespace: &str, queues: &'a Queues) -> Option<(&'a String, &'a GpuQueueSpec)> {
    let only = |name: &str| {
        let mut named =
            queues.iter().filter(|(_, queue)| queue.namespaces.iter().any(|own| own == name));
        named.next().filter(|_| named.next().is_none())
    };
    only(namespace).or_else(|| only("*"))
}

/// Creates the pod as a dry run, and compares the pods of a gang with the quotas of the namespace.
async fn dry_run(
    client: &Client,
    scheduler: &str,
    namespace: &str,
    workload: &GpuWorkload,
) -> AdmissionResult {
    let name = workload.metadata.name.as_ref().or(workload.metadata.generate_name.as_ref());
    let name = name.map_or("workload", String::as_str);
    let body = match template::pod(name, namespace, &workload.spec, scheduler) {
        Ok(pod) => pod.to_string().into_bytes(),
        Err(refusal) => return refusal,
    };
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let path = Pod::url_path(&(), Some(namespace));
    let request = match kube::core::Request::new(path).create(&parameters, body) {
        Ok(request) => strict(request),
        Err(error) => return AdmissionResult::refuse(Problem::at("spec.podTemplate", error)),
    };
    match client.request::<Value>(request).await {
        Ok(pod) => {
            let warnings = namespace_quota::warnings(client, namespace, &workload.spec, pod).await;
            AdmissionResult { warnings, ..AdmissionResult::default() }
        }
        Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => {
            workload_problems(&status)
        }
        Err(error) => unchecked("spec.podTemplate", &error),
    }
}

/// Requests strict validation: otherwise the API server drops unknown fields silently.
fn strict(request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    let (mut parts, body) = request.into_parts();
    let with = format!("{}&fieldValidation=Strict", parts.uri);
    if let Ok(uri) = with.parse() {
        parts.uri = uri;
    }
    http::Request::from_parts(parts, body)
}

/// Turns the API server's error about the pod into problems of the workload.
fn workload_problems(status: &Status) -> AdmissionResult {
    // Exhausted quota is a reason to wait, not to reject.
    if status.message.contains("exceeded quota") {
        let message = format!("its pods wait for the quota of the namespace: {}", status.message);
        return AdmissionResult { warnings: vec![message], ..AdmissionResult::default() };
    }
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let problems: Vec<_> = causes
        .filter(|cause| !cause.field.is_empty())
        .map(|cause| Problem::at(format!("spec.podTemplate.{}", cause.field), &cause.message))
        .collect();
    if problems.is_empty() {
        return AdmissionResult::refuse(Problem::at("spec.podTemplate", &status.message));
    }
    AdmissionResult { problems, ..AdmissionResult::default() }
}

fn unchecked(what: &str, error: &kube::Error) -> AdmissionResult {
    tracing::warn!(%error, "admission cannot check {what}");
    let why = match error {
        kube::Error::Api(status) => status.message.clone(),
        _ => "the API server did not respond".to_owned(),
    };
    AdmissionResult::refuse(format!("{what} could not be checked ({why}); try again"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn queues() -> Queues {
        let queue = |spec| serde_json::from_value(spec).unwrap();
        [
            ("research".to_owned(), queue(json!({"namespaces": ["team"], "maxPriority": 7}))),
            ("students".to_owned(), queue(json!({"namespaces": ["school"], "maxPriority": 3}))),
        ]
        .into()
    }

    fn check(namespace: &str, name: Option<&str>, priority: u8, words: &[&str]) {
        let spec = json!({
            "gpuMemoryRequired": 0, "podTemplate": {}, "queue": name, "priority": priority,
        });
        let result = queue(&serde_json::from_value(spec).unwrap(), namespace, &queues());
        let message = result.message();
        assert_eq!(
            message.is_empty(),
            words.is_empty(),
            "{namespace} {name:?} {priority}: {message}"
        );
        for word in words {
            assert!(message.contains(word), "no `{word}` in: {message}");
        }
    }

    #[test]
    fn a_workloads_queue_must_exist_serve_its_namespace_and_allow_its_priority() {
        check("team", Some("research"), 7, &[]);
        check("team", None, 7, &[]);
        check("elsewhere", None, 10, &[]);
        check("team", Some("research"), 8, &["spec.priority: 8", "`research`", "use 7 or less"]);
        check("school", None, 5, &["`students`", "use 3 or less"]);
        check(
            "team",
            Some("gone"),
            5,
            &["spec.queue", "does not exist", "use one that does: `research`"],
        );
        check("team", Some("students"), 1, &["does not serve namespace `team`", "`research`"]);
        check("elsewhere", Some("students"), 1, &["omit `queue`"]);
    }

    fn status(status: Value) -> Status {
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn the_api_servers_words_name_the_field_of_the_workload() {
        let invalid = status(json!({
            "status": "Failure", "code": 422, "reason": "Invalid",
            "message": "Pod \"x\" is invalid: spec.containers[0].image: Required value",
            "details": {"causes": [
                {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers[0].image"},
            ]},
        }));
        assert_eq!(
            workload_problems(&invalid).problems,
            [Problem::at("spec.podTemplate.spec.containers[0].image", "Required value")]
        );
        let forbidden = status(json!({
            "status": "Failure", "code": 403, "reason": "Forbidden", "message": "violates PodSecurity",
        }));
        assert_eq!(
            workload_problems(&forbidden).problems,
            [Problem::at("spec.podTemplate", "violates PodSecurity")]
        );
    }

    #[test]
    fn a_quota_that_is_used_up_lets_the_workload_wait() {
        let exceeded = status(json!({
            "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "pods \"x\" is forbidden: exceeded quota: gpus, requested: 1, used: 4, limited: 4",
        }));
        let result = workload_problems(&exceeded);
        assert!(result.problems.is_empty() && result.warnings.len() == 1, "{result:?}");
    }
}

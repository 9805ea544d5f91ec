//! Tests of bindings and claims with late or unexpected responses of the API server.

use super::*;
use crate::LeaseTimes;
use crate::state::PodRef;

fn bind() -> Bind {
    Bind {
        pod: PodRef { key: Key::new("default", "train-0"), uid: "one".into() },
        node: "gpu-7".into(),
        annotations: std::collections::BTreeMap::new(),
        labels: std::collections::BTreeMap::new(),
        claims: Vec::new(),
        plan: 1,
    }
}

/// An API server that is too busy for a while, then binds.
fn busy(times: usize) -> ApiServer {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let asked = std::sync::Arc::new(asked);
    let answer = move |request: http::Request<kube::client::Body>| {
        let posted = request.method() == http::Method::POST;
        let number = asked.fetch_add(usize::from(posted), std::sync::atomic::Ordering::Relaxed);
        let (code, body) = match posted {
            true if number < times => (429, json!({"kind": "Status", "code": 429})),
            true => (201, json!({"kind": "Status", "code": 201})),
            false => (200, json!({"metadata": {"name": "a", "uid": "one"}})),
        };
        let body = kube::client::Body::from(body.to_string().into_bytes());
        let answer = http::Response::builder().status(code).body(body);
        std::future::ready(answer.map_err(std::io::Error::other))
    };
    ApiServer::new(
        kube::Client::new(tower::service_fn(answer), "default"),
        std::sync::Arc::default(),
    )
}

#[tokio::test]
async fn a_binding_waits_for_an_api_server_that_is_too_busy() {
    let (leadership, permits) =
        (Leadership::new(Instant::now(), LeaseTimes::default()), Semaphore::new(1));
    let permits = WritePermits { leadership: &leadership, permits: &permits };
    let retries = BackoffPolicy::new(Duration::ZERO, Duration::ZERO);
    let found = bind_with_retries(&busy(9), permits, None, &bind(), retries).await;
    assert_eq!(found, BindResult::Bound);
}

#[test]
fn a_binding_is_given_up_only_when_it_is_known_not_to_have_happened() {
    let unknown = || Err(Failure::Unknown("no answer".to_owned()));
    let refused = || Some(BindResult::Refused("why".to_owned()));
    let check = |found, may_try, is_settled, expected| {
        assert_eq!(result_of(found, may_try, is_settled, "why"), expected);
    };
    check(Ok(Some(BindResult::Bound)), false, false, Some(BindResult::Bound));
    check(Ok(None), true, true, None);
    check(Ok(None), false, false, None);
    check(Ok(None), false, true, refused());
    check(unknown(), true, true, None);
    check(unknown(), false, true, None);
}

#[test]
fn a_volume_that_was_set_aside_for_another_claim_is_left_to_it() {
    let check = |holder: serde_json::Value, expected: bool| {
        let found = belongs_to_another_claim(&holder, &Key::new("ml", "data"), "one");
        assert_eq!(found, expected, "{holder}");
    };
    check(serde_json::Value::Null, false);
    check(json!({"namespace": "ml", "name": "data"}), false);
    check(json!({"namespace": "ml", "name": "data", "uid": "one"}), false);
    check(json!({"namespace": "ml", "name": "data", "uid": "two"}), true);
    check(json!({"namespace": "ml", "name": "more"}), true);
    check(json!({"namespace": "other", "name": "data"}), true);
}

#[test]
fn the_node_that_was_chosen_for_a_claim_is_not_written_over() {
    let check = |chosen: Option<&str>, phase: &str, expected: Result<bool, &str>| {
        let claim = json!({
            "metadata": {"uid": "one", "resourceVersion": "7",
                "annotations": chosen.map(|node| json!({SELECTED_NODE: node}))},
            "status": {"phase": phase},
        });
        let claim = serde_json::from_value(claim).expect("a claim");
        let body = selection_patch(&claim, "a").map_err(|error| error.to_string());
        assert_eq!(
            body.as_ref().map(Option::is_some).map_err(String::as_str),
            expected,
            "{chosen:?} {phase}"
        );
        if let Ok(Some(body)) = body {
            assert_eq!(body["metadata"]["resourceVersion"], "7");
            assert_eq!(body["metadata"]["annotations"][SELECTED_NODE], "a");
        }
    };
    check(None, "Pending", Ok(true));
    check(Some("a"), "Pending", Ok(false));
    check(Some("b"), "Pending", Err("its volume is being provisioned for node `b`"));
    check(Some("b"), "Bound", Ok(false));
}

#[test]
fn a_bound_pod_is_bound_even_while_it_ends_and_only_an_unbound_one_is_gone() {
    let bind = bind();
    let check = |uid: &str, node: Option<&str>, ending: bool, expected: Option<BindResult>| {
        let pod = json!({
            "metadata": {
                "name": "train-0",
                "namespace": "default",
                "uid": uid,
                "deletionTimestamp": ending.then_some("2030-01-01T00:00:00Z"),
            },
            "spec": { "nodeName": node },
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        assert_eq!(binding_result(&pod, &bind), expected, "{uid} {node:?} {ending}");
    };
    check("one", Some("gpu-7"), false, Some(BindResult::Bound));
    check("one", Some("gpu-7"), true, Some(BindResult::Bound));
    check("one", Some("gpu-8"), true, Some(BindResult::BoundToOther("gpu-8".into())));
    check("one", None, true, Some(BindResult::Gone));
    check("one", None, false, None);
    check("two", Some("gpu-7"), false, Some(BindResult::Gone));
}

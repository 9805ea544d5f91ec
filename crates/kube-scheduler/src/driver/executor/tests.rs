//! Rate of status writes beside bindings.

use super::*;
use crate::LeaseTimes;
use crate::state::Key;

/// Time in which the API server answers: the rate must not depend on it.
const LATENCY: Duration = Duration::from_millis(50);

/// An API server that counts conditions.
fn slow(conditions: &Arc<AtomicUsize>) -> ApiServer {
    let conditions = conditions.clone();
    let answer = move |request: http::Request<kube::client::Body>| {
        let is_condition = request.method() == http::Method::PATCH;
        conditions.fetch_add(usize::from(is_condition), Ordering::Relaxed);
        async {
            tokio::time::sleep(LATENCY).await;
            let body = kube::client::Body::from(b"{}".to_vec());
            http::Response::builder().body(body).map_err(std::io::Error::other)
        }
    };
    ApiServer::new(kube::Client::new(tower::service_fn(answer), "default"), Arc::default())
}

fn condition(number: usize) -> Action {
    let key = Key::new("default", &format!("p-{number}"));
    let condition = PendingCondition {
        reason: "Unschedulable",
        message: "no room".into(),
        already_false: false,
        priority: 0,
    };
    Action::WriteCondition { pod: PodRef { key, uid: "u".into() }, condition }
}

#[tokio::test]
async fn status_writes_have_a_rate_while_bindings_are_in_flight_and_none_otherwise() {
    let conditions = Arc::default();
    let leadership = Leadership::new(Instant::now(), LeaseTimes::default());
    let (sender, _results) = mpsc::unbounded_channel();
    let executor = Executor::new(slow(&conditions), leadership, "one", sender, Arc::default());
    executor.shared.binding.fetch_add(1, Ordering::AcqRel);
    let began = Instant::now();
    executor.submit((0..400).map(condition).collect());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let beside = conditions.load(Ordering::Relaxed);
    let most = began.elapsed().as_millis() / BUSY_INTERVAL.as_millis() + 1;
    assert!(beside as u128 <= most, "{beside} writes, more than {most}");
    assert!(beside >= 40, "{beside} writes in a second");
    executor.shared.binding.store(0, Ordering::Release);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = conditions.load(Ordering::Relaxed) - beside;
    assert!(after >= 100, "{after} writes in half a second after the bindings");
}

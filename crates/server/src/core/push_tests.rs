//! Push agents whose probes fail.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::account::Role;
use agentaflow_api::agent::AgentRegistration;
use agentaflow_api::billing::LedgerKind;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::job::{Job, JobCreate, JobSpec, JobStatus, JobStatusUpdate};
use agentaflow_api::node::NodeRegistration;
use agentaflow_api::units::{Cores, Dollars};

use super::handle::{Caller, Core, Registrant, Worker};
use super::node::PushReach;
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::store::{Change, EventFilter, LedgerFilter, UserRow, open_sqlite};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Heartbeat interval of the node; it is lost after three of them.
const INTERVAL: Duration = Duration::from_millis(50);

async fn start(dir: &std::path::Path) -> Core {
    let settings = Settings::new("127.0.0.1:0".parse().unwrap(), dir.to_owned());
    let store = open_sqlite(dir).await.unwrap();
    let secrets = Arc::new(Keyring::load(&dir.join("secret-key")).unwrap());
    Core::start(Arc::new(settings), store, secrets).await.unwrap().0
}

async fn user(core: &Core) -> Caller {
    let user = UserRow {
        username: "ana".into(),
        role: Role::User,
        active: true,
        default_queue: "root".into(),
        ..UserRow::default()
    };
    let write = core.write(Box::new(move |_, ids, _| {
        ids.0.user.0 += 1;
        let user = UserRow { id: ids.0.user, ..user };
        Ok((vec![Change::User(Box::new(user.clone()))], user))
    }));
    Caller { user: Arc::new(write.await.unwrap()), by_cookie: false }
}

/// A push node with one GPU at $36 an hour, whose agent answers.
async fn push_node(core: &Core) -> NodeId {
    let token = Registrant::Token { limited: None };
    let node = NodeRegistration {
        node_name: "pushed".into(),
        gpu_count: Some(1),
        gpu_type: Some("NVIDIA A100".into()),
        gpu_memory_total: Some(40_960),
        cpu_cores: Some(Cores(16_000)),
        memory_total: Some(65_536),
        price_per_gpu_hour: Some(Dollars(36_000_000)),
        api_endpoint: Some("http://127.0.0.1:1".into()),
        ..NodeRegistration::default()
    };
    let node = core.register_node(node, HERE, token).await.unwrap().id;
    let mut config = serde_json::Map::new();
    config.insert("heartbeat_interval_ms".into(), (INTERVAL.as_millis() as u64).into());
    let agent = AgentRegistration {
        agent_id: "worker".into(),
        node_id: Some(node),
        config,
        ..AgentRegistration::default()
    };
    core.register_agent(agent, HERE, token).await.unwrap();
    core.record_probe(node, PushReach::Answers);
    node
}

async fn job(core: &Core, id: JobId) -> Job {
    core.show_job(core.store().job(id).await.unwrap().unwrap())
}

async fn until(core: &Core, id: JobId, status: JobStatus) {
    for _ in 0..500 {
        if job(core, id).await.status == status {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", job(core, id).await);
}

async fn report(core: &Core, id: JobId, node: NodeId, status: JobStatus, seconds: f64) {
    let update = JobStatusUpdate {
        job_id: Some(id),
        status: Some(status),
        duration_seconds: Some(seconds),
        ..JobStatusUpdate::default()
    };
    core.job_status(id, update, Worker::Node(node), HERE).await.unwrap();
}

async fn was_lost(core: &Core, id: JobId) -> bool {
    let filter = EventFilter { job: Some(id), limit: 100, ..EventFilter::default() };
    let events = core.store().events(&filter).await.unwrap();
    events.iter().any(|event| event.kind == EventKind::NodeLost)
}

#[tokio::test]
async fn a_late_result_of_an_unreachable_worker_is_accepted_and_billed_once() {
    let dir = tempfile::tempdir().unwrap();
    let core = start(dir.path()).await;
    let caller = user(&core).await;
    let node = push_node(&core).await;
    let spec = JobSpec { docker_image: Some("x".into()), gpu_count: Some(1), ..JobSpec::default() };
    let create = JobCreate { spec, ..JobCreate::default() };
    let id = core.submit(&caller, create, None, None).await.unwrap().0.id;
    until(&core, id, JobStatus::Scheduled).await;
    report(&core, id, node, JobStatus::Running, 0.0).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        core.record_probe(node, PushReach::Unreachable);
        tokio::time::sleep(2 * INTERVAL).await;
    }
    for _ in 0..500 {
        if was_lost(&core, id).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(was_lost(&core, id).await);
    assert_eq!(job(&core, id).await.status, JobStatus::Running, "the job waits for its worker");
    report(&core, id, node, JobStatus::Completed, 1.0).await;
    let done = job(&core, id).await;
    assert_eq!((done.status, done.attempt), (JobStatus::Completed, 1));
    let filter = LedgerFilter { job: Some(id), limit: 10, ..LedgerFilter::default() };
    let booked = core.store().ledger(&filter).await.unwrap();
    let [usage] = &booked[..] else { panic!("{booked:?}") };
    assert_eq!(usage.kind, LedgerKind::Usage);
    // One second at $36 an hour.
    assert!((9_500..100_000).contains(&usage.micros.0), "{usage:?}");
}

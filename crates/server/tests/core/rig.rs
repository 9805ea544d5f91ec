//! A core on a SQLite file, with agents that a test controls.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

use agentaflow_api::account::Role;
use agentaflow_api::agent::AgentRegistration;
use agentaflow_api::event::EventKind;
use agentaflow_api::explain::Explanation;
use agentaflow_api::ids::{AgentId, JobId, MicroUsd, NodeId};
use agentaflow_api::job::{Job, JobCreate, JobSpec, Runtime};
use agentaflow_api::link::{
    Assignment, Ended, Message, Report, ReportBatch, Stop, StopCause, TaskKey, TaskUpdate,
};
use agentaflow_api::node::{GpuInstance, Heartbeat, NodeRegistration};
use agentaflow_api::units::{Cores, Dollars, Stamp};
use agentaflow_server::ApiError;
use agentaflow_server::core::{Caller, Core, Idempotency, NodeRef, Registrant, StreamItem};
use agentaflow_server::secrets::Keyring;
use agentaflow_server::settings::Settings;
use agentaflow_server::store::{Change, Store, UserRow, open_sqlite};

/// Heartbeat interval of the agents; a node is lost after three intervals.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
pub(crate) const TOKEN: Registrant = Registrant::Token { limited: None };
/// Address of all workers.
pub(crate) const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

pub(crate) struct Rig {
    pub(crate) core: Core,
    pub(crate) dir: TempDir,
    pub(crate) ana: Caller,
}

/// A worker whose agent is the test.
pub(crate) struct Worker {
    pub(crate) node: NodeId,
    pub(crate) agent: AgentId,
    pub(crate) stream: Receiver<StreamItem>,
    core: Core,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}, |store| store).await
    }

    pub(crate) async fn with(
        change: impl FnOnce(&mut Settings),
        wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let core = start(&dir, change, wrap).await;
        let user = UserRow {
            username: "ana".into(),
            role: Role::User,
            active: true,
            grants: vec!["process".into()],
            default_queue: "root".into(),
            ..UserRow::default()
        };
        let user = core
            .write(Box::new(move |_, ids, _| {
                ids.0.user.0 += 1;
                let user = UserRow { id: ids.0.user, ..user };
                Ok((vec![Change::User(Box::new(user.clone()))], user))
            }))
            .await
            .unwrap();
        Self { core, dir, ana: Caller { user: Arc::new(user), by_cookie: false } }
    }

    /// Stops the core and starts another on the same data.
    pub(crate) async fn restart(&mut self) {
        self.restart_with(|_| {}).await;
    }

    pub(crate) async fn restart_with(&mut self, change: impl FnOnce(&mut Settings)) {
        self.core.stop().await;
        self.core = start(&self.dir, change, |store| store).await;
    }

    /// Changes the user's account.
    pub(crate) async fn limit(&self, limit: Option<i64>, prepaid: bool) {
        let id = self.ana.user.id;
        self.core
            .write(Box::new(move |directory, _, _| {
                let user = directory.users.get(&id).cloned().unwrap_or_default();
                let user = UserRow { spending_limit: limit.map(MicroUsd), prepaid, ..user };
                Ok((vec![Change::User(Box::new(user))], ()))
            }))
            .await
            .unwrap();
    }

    pub(crate) async fn submit(&self, spec: JobSpec) -> JobId {
        self.try_submit(spec).await.unwrap().id
    }

    pub(crate) async fn submit_with_key(&self, spec: JobSpec, key: &str) -> JobId {
        let job = JobCreate { spec, ..JobCreate::default() };
        let key = Idempotency { key: key.to_owned(), body: "hash".to_owned() };
        self.core.submit(&self.ana, job, None, Some(key)).await.unwrap().0.id
    }

    pub(crate) async fn try_submit(&self, spec: JobSpec) -> Result<Job, ApiError> {
        let job = JobCreate { spec, ..JobCreate::default() };
        self.core.submit(&self.ana, job, None, None).await.map(|(job, _)| job)
    }

    pub(crate) async fn job(&self, id: JobId) -> Job {
        let row = self.core.store().job(id).await.unwrap().unwrap();
        self.core.show_job(row)
    }

    pub(crate) async fn explain(&self, id: JobId) -> Explanation {
        let row = self.core.store().job(id).await.unwrap().unwrap();
        self.core.explain(&self.ana, row).await.unwrap()
    }

    /// Kinds of the events of a job, in order.
    pub(crate) async fn kinds(&self, job: JobId) -> Vec<EventKind> {
        let filter = agentaflow_server::store::EventFilter {
            job: Some(job),
            limit: 100,
            ..Default::default()
        };
        self.core
            .store()
            .events(&filter)
            .await
            .unwrap()
            .into_iter()
            .map(|event| event.kind)
            .collect()
    }

    /// Waits until a job satisfies `wanted`.
    pub(crate) async fn until(&self, id: JobId, wanted: impl Fn(&Job) -> bool) -> Job {
        for _ in 0..500 {
            let job = self.job(id).await;
            if wanted(&job) {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "job {id} stayed as it is: {:?}, events {:?}",
            self.job(id).await,
            self.kinds(id).await
        );
    }

    /// Registers a worker with this many GPUs of 40 GiB and opens its stream.
    pub(crate) async fn worker(&self, name: &str, gpus: u32) -> Worker {
        self.join(registration(name, gpus)).await
    }

    /// Registers a worker and opens its stream.
    pub(crate) async fn join(&self, registration: NodeRegistration) -> Worker {
        let name = registration.node_name.clone();
        let known = self.core.nodes().into_iter().find(|node| node.spec.node_name == name);
        let by = known.map_or(TOKEN, |node| Registrant::Key(node.id));
        let node = self.core.register_node(registration, HERE, by).await.unwrap();
        let mut config = serde_json::Map::new();
        config.insert("heartbeat_interval_ms".into(), (INTERVAL.as_millis() as u64).into());
        let agent = AgentRegistration {
            agent_id: format!("agent-{name}"),
            node_id: Some(node.id),
            config,
            ..AgentRegistration::default()
        };
        let key = Registrant::Key(node.id);
        let agent = self.core.register_agent(agent, HERE, key).await.unwrap();
        let stream = self.core.open_stream(agent.id, None, 0).await.unwrap();
        let mut worker = Worker { node: node.id, agent: agent.id, stream, core: self.core.clone() };
        assert!(matches!(worker.next().await, Message::Sync { .. }));
        worker
    }
}

async fn start(
    dir: &TempDir,
    change: impl FnOnce(&mut Settings),
    wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
) -> Core {
    let mut settings = Settings::new("127.0.0.1:0".parse().unwrap(), dir.path().to_owned());
    // Two heartbeat intervals.
    settings.lease = Duration::ZERO;
    change(&mut settings);
    let store = wrap(open_sqlite(dir.path()).await.unwrap());
    let secrets = Arc::new(Keyring::load(&dir.path().join("secret-key")).unwrap());
    Core::start(Arc::new(settings), store, secrets).await.unwrap().0
}

pub(crate) fn registration(name: &str, gpus: u32) -> NodeRegistration {
    let gpu = |index: u32| GpuInstance {
        gpu_index: Some(index),
        gpu_uuid: Some(format!("GPU-{name}-{index}")),
        gpu_type: Some("NVIDIA A100".into()),
        gpu_memory: Some(40_960),
        ..GpuInstance::default()
    };
    NodeRegistration {
        node_name: name.into(),
        cpu_cores: Some(Cores(16_000)),
        memory_total: Some(65_536),
        storage_total: Some(100),
        max_concurrent_jobs: Some(0),
        price_per_gpu_hour: Some(Dollars(3_600_000)),
        price_per_cpu_hour: Some(Dollars(0)),
        price_per_memory_gb_hour: Some(Dollars(0)),
        runtimes: vec!["process".into(), "docker".into()],
        gpu_instances: (0..gpus).map(gpu).collect(),
        ..NodeRegistration::default()
    }
}

/// A job of one process on this many GPUs.
pub(crate) fn spec(gpus: u32) -> JobSpec {
    JobSpec {
        runtime: Some(Runtime::Process),
        command: Some(vec!["true".into()]),
        gpu_count: Some(gpus),
        stop_grace_seconds: Some(0),
        ..JobSpec::default()
    }
}

pub(crate) fn ended(code: i32, ran_ms: u64) -> TaskUpdate {
    TaskUpdate::Ended(Box::new(Ended { exit_code: Some(code), ran_ms, ..Ended::default() }))
}

pub(crate) fn stopped(cause: StopCause, ran_ms: u64) -> TaskUpdate {
    let ended = Ended {
        exit_code: Some(143),
        signal: Some(15),
        stopped: Some(cause),
        ran_ms,
        ..Ended::default()
    };
    TaskUpdate::Ended(Box::new(ended))
}

pub(crate) fn running() -> TaskUpdate {
    TaskUpdate::Running { started_at: Stamp::now() }
}

impl Worker {
    pub(crate) async fn next(&mut self) -> Message {
        let item = tokio::time::timeout(Duration::from_secs(5), self.stream.recv()).await;
        match item.expect("no message came").expect("the stream ended") {
            StreamItem::Message(framed) => framed.message.clone(),
            StreamItem::Ping => panic!("pings are made by the stream's handler"),
        }
    }

    pub(crate) async fn assignment(&mut self) -> Assignment {
        match self.next().await {
            Message::Assign(assignment) => *assignment,
            other => panic!("not an assignment: {other:?}"),
        }
    }

    pub(crate) async fn stop(&mut self) -> Stop {
        match self.next().await {
            Message::Stop(stop) => stop,
            other => panic!("not a stop: {other:?}"),
        }
    }

    /// Sends a report; returns true if the server applied it.
    pub(crate) async fn report(&self, key: TaskKey, update: TaskUpdate) -> bool {
        let batch = ReportBatch { reports: vec![Report { key, update }], ..ReportBatch::default() };
        self.core.report(self.agent, batch).await.unwrap().accepted[0]
    }

    pub(crate) fn beat(&self) {
        let beat = Heartbeat::default();
        self.core.heartbeat(&NodeRef::Number(self.node), beat).unwrap();
    }

    /// Sends heartbeats until the future is done.
    pub(crate) async fn beating<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(INTERVAL / 2) => self.beat(),
            }
        }
    }
}

//! Fake server that records requests.
#![expect(clippy::result_large_err, reason = "an error is a complete response")]

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use agentaflow_api::agent::{Agent, AgentRegistration};
use agentaflow_api::ids::{AgentId, NodeId};
use agentaflow_api::link::{
    Ended, Framed, Message, Report, ReportBatch, ReportReply, TaskKey, TaskUpdate,
};
use agentaflow_api::node::{Heartbeat, Node, NodeRegistration};

#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) reports: Vec<Report>,
    pub(crate) requests: usize,
    pub(crate) logs: BTreeMap<TaskKey, Vec<u8>>,
    pub(crate) stale: HashSet<TaskKey>,
    pub(crate) registrations: usize,
    pub(crate) node: Option<NodeRegistration>,
    pub(crate) agent: Option<AgentRegistration>,
    pub(crate) heartbeats: Vec<Heartbeat>,
    pub(crate) streams: usize,
    pub(crate) polls: usize,
    /// Status of every response.
    pub(crate) broken: Option<StatusCode>,
    /// Streams end as soon as they are open.
    pub(crate) cuts: bool,
    messages: Vec<Framed>,
    assigned: Vec<agentaflow_api::link::Assignment>,
    listeners: Vec<UnboundedSender<Framed>>,
}

#[derive(Clone)]
pub(crate) struct FakeServer {
    pub(crate) url: String,
    memory: Arc<Mutex<Memory>>,
}

impl FakeServer {
    pub(crate) async fn start() -> Self {
        let memory = Arc::new(Mutex::new(Memory::default()));
        let base = "/gpu-workers";
        let routes = Router::new()
            .route(&format!("{base}/nodes/register"), post(register_node))
            .route(&format!("{base}/agents/register"), post(register_agent))
            .route(&format!("{base}/nodes/{{id}}/heartbeat"), post(heartbeat))
            .route(&format!("{base}/agents/{{id}}/stream"), get(open_stream))
            .route(&format!("{base}/agents/{{id}}/poll"), get(poll))
            .route(&format!("{base}/agents/{{id}}/report"), post(report))
            .with_state(Arc::clone(&memory));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, memory }
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to the agent. Every later `Sync` contains the assignments.
    pub(crate) fn send(&self, message: Message) {
        let mut memory = self.memory();
        if let Message::Assign(assignment) = &message {
            memory.assigned.push((**assignment).clone());
        }
        memory.send(message);
    }

    /// Removes a task from later `Sync`s.
    pub(crate) fn unassign(&self, key: TaskKey) {
        self.memory().assigned.retain(|assignment| assignment.key != key);
    }

    /// Sends a `Sync` of all assignments.
    pub(crate) fn sync(&self) {
        let mut memory = self.memory();
        let assignments = memory.assigned.clone();
        memory.send(Message::Sync { assignments, stops: Vec::new() });
    }

    pub(crate) async fn until<T>(
        &self,
        what: &str,
        mut find: impl FnMut(&Memory) -> Option<T>,
    ) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = find(&self.memory()) {
                return found;
            }
            let reports = format!("{:?}", self.memory().reports);
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "timeout: {what}; reports: {reports}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn ended(&self, key: TaskKey) -> Ended {
        self.until("its end", |memory| memory.ended(key)).await
    }

    pub(crate) async fn running(&self, key: TaskKey) {
        let runs = |report: &Report| {
            report.key == key && matches!(report.update, TaskUpdate::Running { .. })
        };
        self.until("its start", |memory| memory.reports.iter().any(runs).then_some(())).await;
    }

    pub(crate) fn log(&self, key: TaskKey) -> String {
        String::from_utf8_lossy(self.memory().logs.get(&key).map_or(&[][..], Vec::as_slice))
            .into_owned()
    }
}

impl Memory {
    pub(crate) fn ended(&self, key: TaskKey) -> Option<Ended> {
        self.reports.iter().find_map(|report| match &report.update {
            TaskUpdate::Ended(ended) if report.key == key => Some((**ended).clone()),
            _ => None,
        })
    }

    fn send(&mut self, message: Message) {
        let seq = self.messages.len() as u64 + 1;
        let framed = Framed { session: "s".to_owned(), seq, message };
        self.messages.push(framed.clone());
        self.listeners.retain(|listener| listener.send(framed.clone()).is_ok());
    }

    /// Messages after the agent's position.
    fn missed(&mut self, query: &StreamPosition) -> Vec<Framed> {
        if query.session.as_deref() == Some("s") {
            return self
                .messages
                .iter()
                .filter(|framed| framed.seq > query.after)
                .cloned()
                .collect();
        }
        let assignments = self.assigned.clone();
        self.send(Message::Sync { assignments, stops: Vec::new() });
        self.messages.last().cloned().into_iter().collect()
    }
}

type Shared = State<Arc<Mutex<Memory>>>;

#[derive(serde::Deserialize)]
struct StreamPosition {
    session: Option<String>,
    after: u64,
}

fn open(memory: &Arc<Mutex<Memory>>) -> Result<MutexGuard<'_, Memory>, Response> {
    let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    match memory.broken {
        Some(status) => {
            Err((status, Json(json!({"detail": "broken", "code": "broken"}))).into_response())
        }
        None => Ok(memory),
    }
}

async fn register_node(
    State(memory): Shared,
    Json(node): Json<NodeRegistration>,
) -> Result<Json<Node>, Response> {
    let mut memory = open(&memory)?;
    memory.registrations += 1;
    memory.node = Some(node);
    Ok(Json(Node {
        id: NodeId(7),
        node_id: "gpu-000000000007".into(),
        api_key: Some("node-key".into()),
        ..Node::default()
    }))
}

async fn register_agent(
    State(memory): Shared,
    Json(agent): Json<AgentRegistration>,
) -> Result<Json<Agent>, Response> {
    let mut memory = open(&memory)?;
    memory.agent = Some(agent);
    Ok(Json(Agent {
        id: AgentId(3),
        node_id: NodeId(7),
        api_key: Some("agent-key".into()),
        ..Agent::default()
    }))
}

async fn heartbeat(
    State(memory): Shared,
    Json(heartbeat): Json<Heartbeat>,
) -> Result<Json<Node>, Response> {
    open(&memory)?.heartbeats.push(heartbeat);
    Ok(Json(Node::default()))
}

async fn open_stream(
    State(memory): Shared,
    Query(position): Query<StreamPosition>,
) -> Result<Response, Response> {
    let mut memory = open(&memory)?;
    memory.streams += 1;
    let missed = if memory.cuts { Vec::new() } else { memory.missed(&position) };
    let (listener, messages) = unbounded_channel();
    for framed in missed {
        let _ = listener.send(framed);
    }
    let cut = memory.cuts;
    memory.listeners.push(listener);
    let lines = stream::unfold((messages, cut), |(mut messages, cut)| async move {
        if cut {
            return Some((Err("cut"), (messages, cut)));
        }
        let framed = messages.recv().await?;
        let mut line = serde_json::to_vec(&framed).unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, &str>(Bytes::from(line)), (messages, cut)))
    });
    Ok(Body::from_stream(lines).into_response())
}

async fn poll(
    State(memory): Shared,
    Query(position): Query<StreamPosition>,
) -> Result<Json<Vec<Framed>>, Response> {
    open(&memory)?.polls += 1;
    for _ in 0..20 {
        let missed = open(&memory)?.missed(&position);
        if !missed.is_empty() {
            return Ok(Json(missed));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(Json(Vec::new()))
}

async fn report(
    State(memory): Shared,
    Json(batch): Json<ReportBatch>,
) -> Result<Json<ReportReply>, Response> {
    let mut memory = open(&memory)?;
    memory.requests += 1;
    let mut reply = ReportReply::default();
    for piece in batch.logs {
        let log = memory.logs.entry(piece.key).or_default();
        let bytes = STANDARD.decode(piece.data).unwrap_or_default();
        if piece.offset as usize <= log.len() {
            let known = (log.len() - piece.offset as usize).min(bytes.len());
            log.extend_from_slice(&bytes[known..]);
        }
        reply.log_have.push((piece.key, log.len() as u64));
    }
    for report in batch.reports {
        let accepted = !memory.stale.contains(&report.key);
        reply.accepted.push(accepted);
        if accepted {
            if matches!(report.update, TaskUpdate::Ended(_) | TaskUpdate::Refused { .. }) {
                memory.assigned.retain(|assignment| assignment.key != report.key);
            }
            memory.reports.push(report);
        }
    }
    Ok(Json(reply))
}

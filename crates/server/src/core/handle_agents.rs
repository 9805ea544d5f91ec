//! Calls of and about agents.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use agentaflow_api::agent::{Agent, AgentRegistration, AgentUpdate};
use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{AgentId, JobId, NodeId};
use agentaflow_api::job::{Job, JobStatus, JobStatusUpdate};
use agentaflow_api::link::{Framed, Report, ReportBatch, ReportReply, TaskKey};

use super::handle::{Core, Registrant, StreamItem, Worker};
use super::node::{Contact, JobAnswer, PushReach};
use super::push_agents::{PushNode, PushWork};
use super::task_updates::illegal_transition;
use crate::api_error::ApiError;
use crate::store::JobRow;

impl Core {
    /// Registers an agent. The response has its key; older streams of the agent end.
    pub async fn register_agent(
        &self,
        agent: AgentRegistration,
        peer: IpAddr,
        registrant: Registrant,
    ) -> Result<Agent, ApiError> {
        let (row, key, previous) = self
            .change(|state| {
                let previous = state.nodes.agent_named(&agent.agent_id).map(|row| row.node_id);
                state.check_agent_registrant(&agent, peer, registrant)?;
                let registered = state.register_agent(agent)?;
                let row = state.nodes.agent(registered.id).cloned().unwrap_or_default();
                Ok((row, registered.key, previous))
            })
            .await?;
        self.inner.outboxes.close(row.node_id);
        if let Some(previous) = previous.filter(|previous| *previous != row.node_id) {
            self.inner.outboxes.close(previous);
        }
        Ok(Agent { api_key: Some(key), ..self.agent(&row.agent_id)? })
    }

    /// All agents by number.
    pub fn agents(&self) -> Vec<Agent> {
        self.inner.published.agents()
    }

    /// Agent by name or number.
    pub fn agent(&self, agent: &str) -> Result<Agent, ApiError> {
        self.inner
            .published
            .agent(agent)
            .ok_or_else(|| ApiError::not_found(ResourceKind::Agent, agent))
    }

    pub async fn update_agent(&self, agent: &str, update: AgentUpdate) -> Result<Agent, ApiError> {
        self.change(|state| {
            let id = state.nodes.find_agent(agent)?.id;
            state.update_agent(id, update);
            Ok(())
        })
        .await?;
        self.agent(agent)
    }

    /// Applies a status of the documented worker protocol.
    pub async fn job_status(
        &self,
        job: JobId,
        update: JobStatusUpdate,
        from: Worker,
        peer: IpAddr,
    ) -> Result<Job, ApiError> {
        let live = self.inner.lock().jobs.get_unsaved(job).cloned();
        let row = self.row_or_stored(job, live).await?;
        let node = self.reporting_node(&row, &from, peer)?;
        let status = update.status.unwrap_or_default();
        let present = row.state.status;
        if present.is_final() {
            return if status == present {
                Ok(self.show_job(row))
            } else {
                Err(illegal_transition(present, status))
            };
        }
        let row = self
            .change(|state| {
                state.apply_status(job, node, update)?;
                Ok(state.jobs.get_unsaved(job).cloned())
            })
            .await?;
        Ok(self.show_job(self.row_or_stored(job, row).await?))
    }

    /// Worker behind a registration token: the push node that registered from this address, if there is just one. A
    /// worker that lost a job must not report on the attempt of another.
    pub fn identify(&self, worker: Worker, address: IpAddr) -> Worker {
        if worker != Worker::Token {
            return worker;
        }
        let nodes = self.inner.lock().push_nodes();
        let mut here = nodes.iter().filter(|node| {
            let peer = node.peer.as_ref().and_then(|peer| peer.parse::<IpAddr>().ok());
            peer.is_some_and(|peer| peer.to_canonical() == address.to_canonical())
        });
        match (here.next(), here.next()) {
            (Some(only), None) => Worker::Node(only.id),
            _ => worker,
        }
    }

    /// Task of a live job whose output a worker may report.
    pub async fn reported_task(
        &self,
        job: JobId,
        from: &Worker,
        peer: IpAddr,
    ) -> Result<Option<TaskKey>, ApiError> {
        let live = self.inner.lock().jobs.get_unsaved(job).cloned();
        let row = self.row_or_stored(job, live).await?;
        let node = self.reporting_node(&row, from, peer)?;
        if row.state.status.is_final() || row.state.status == JobStatus::Pending {
            return Ok(None);
        }
        let task = row.state.tasks.iter().find(|task| node.is_none_or(|node| task.node == node));
        Ok(task.map(|task| row.task_key(task.task)))
    }

    /// Node for which a worker reports the status of a job. A registration token suffices for a push node, whose agent
    /// has no key; the node is then none.
    fn reporting_node(
        &self,
        row: &JobRow,
        from: &Worker,
        peer: IpAddr,
    ) -> Result<Option<NodeId>, ApiError> {
        let tasks = &row.state.tasks;
        match from {
            Worker::Node(node) | Worker::Agent { node, .. } => {
                if tasks.iter().any(|task| task.node == *node)
                    || row.state.status == JobStatus::Pending
                {
                    return Ok(Some(*node));
                }
                Err(ApiError::conflict(
                    ErrorCode::NotAssigned,
                    "the job is not assigned to this node",
                ))
            }
            Worker::Token => {
                let is_push = |id: NodeId| {
                    let node = self.inner.published.node_view(id);
                    node.is_none_or(|node| node.node().spec.api_endpoint.is_some())
                };
                let may = |node: NodeId| is_push(node) && self.registered_from(node, peer);
                if tasks.iter().any(|task| may(task.node)) {
                    return Ok(None);
                }
                Err(ApiError::forbidden(
                    "a registration token may report the status of jobs on push nodes that registered from this \
                     address only; use the key from the node's registration",
                ))
            }
        }
    }

    /// Returns true if a registration token from this address may act for the node.
    pub fn registered_from(&self, node: NodeId, peer: IpAddr) -> bool {
        let state = self.inner.lock();
        state.nodes.get(node).is_none_or(|node| state.may_use_token(node.row(), peer))
    }

    /// Applies updates of tasks from one agent. The caller stores their logs.
    pub async fn report(
        &self,
        agent: AgentId,
        batch: ReportBatch,
    ) -> Result<ReportReply, ApiError> {
        self.change(|state| {
            let node = state.nodes.node_of(agent)?;
            let apply = |report| state.apply_task_update(node, report);
            let accepted = batch.reports.into_iter().map(apply).collect();
            Ok(ReportReply { accepted, log_have: Vec::new() })
        })
        .await
    }

    /// Returns true if a task is assigned to the node of this agent; only then are its logs accepted.
    pub fn owns(&self, agent: AgentId, key: TaskKey) -> bool {
        let state = self.inner.lock();
        let node = state.nodes.node_of(agent);
        node.is_ok_and(|node| state.jobs.task_on(key, node).is_some())
    }

    /// Opens an agent's stream: missed messages after `after` of `session`, then new ones. The stream ends when the agent
    /// registers again or opens another, and when the server stops.
    pub async fn open_stream(
        &self,
        agent: AgentId,
        session: Option<String>,
        after: u64,
    ) -> Result<mpsc::Receiver<StreamItem>, ApiError> {
        let node = self.inner.lock().nodes.node_of(agent)?;
        let opened = self.inner.outboxes.open(node, session.as_deref(), after);
        self.change(|state| {
            state.connect_node(node, Contact::Stream(agent));
            if opened.must_sync {
                state.journal.request_sync(node);
            }
            Ok(())
        })
        .await?;
        let core = self.clone();
        let (sender, end, generation) = (opened.sender, opened.end, opened.generation);
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                () = end.cancelled() => {}
            }
            drop(sender);
            if core.inner.outboxes.remove_stream(node, generation) {
                core.inner.lock().connect_node(node, Contact::StreamClosed);
                core.inner.wake.notify_one();
            }
        });
        Ok(opened.receiver)
    }

    /// Waits up to `wait_ms` for messages after `after`.
    pub async fn poll(
        &self,
        agent: AgentId,
        session: Option<String>,
        after: u64,
        wait_ms: u64,
    ) -> Result<Vec<Arc<Framed>>, ApiError> {
        let node = self.inner.lock().nodes.node_of(agent)?;
        let end = tokio::time::Instant::now() + Duration::from_millis(wait_ms.min(60_000));
        let mut synced = false;
        loop {
            let sent = self.inner.outboxes.any_message();
            tokio::pin!(sent);
            sent.as_mut().enable();
            match self.inner.outboxes.poll(node, session.as_deref(), after) {
                Some(messages) if !messages.is_empty() => return Ok(messages),
                Some(_) => self.inner.lock().connect_node(node, Contact::Stream(agent)),
                None if synced => {
                    if let Some(messages) = self.inner.outboxes.since_sync(node) {
                        return Ok(messages);
                    }
                }
                None => {
                    synced = true;
                    self.inner.outboxes.drop_messages(node);
                    self.change(|state| {
                        state.connect_node(node, Contact::Stream(agent));
                        state.journal.request_sync(node);
                        Ok(())
                    })
                    .await?;
                }
            }
            if tokio::time::timeout_at(end, sent).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    /// Nodes whose agents the server calls.
    pub(crate) fn push_nodes(&self) -> Vec<PushNode> {
        self.inner.lock().push_nodes()
    }

    /// Records the result of a probe of a push endpoint.
    pub(crate) fn record_probe(&self, node: NodeId, reach: PushReach) {
        self.inner.lock().connect_node(node, Contact::Push(reach));
        self.inner.wake.notify_one();
    }

    /// Records that the server may not call a push endpoint.
    pub(crate) fn record_push_refused(&self, node: NodeId, reason: &str) {
        let message = format!("the node gets no work: {reason}");
        self.inner.lock().node_event(node, EventKind::PushRefused, message);
        self.inner.wake.notify_one();
    }

    /// Tasks and stops of a push agent that need a call.
    pub(crate) fn push_work(&self, node: NodeId) -> PushWork {
        self.inner.lock().push_work(node)
    }

    /// Returns true if a push agent that does not know this job has ended it.
    pub(crate) fn is_settled(&self, job: JobId) -> bool {
        self.inner.lock().is_settled(job)
    }

    /// Records the answer of a push agent to the question for a task.
    pub(crate) async fn record_job_answer(
        &self,
        node: NodeId,
        key: TaskKey,
        answer: JobAnswer,
    ) -> Result<(), ApiError> {
        self.change(|state| {
            state.record_job_answer(node, key, answer);
            Ok(())
        })
        .await
    }

    /// Applies an update of a task on a push node that the server itself observed.
    pub(crate) async fn apply_push_update(
        &self,
        node: NodeId,
        report: Report,
    ) -> Result<(), ApiError> {
        self.change(|state| {
            state.apply_task_update(node, report);
            Ok(())
        })
        .await
    }

    /// Request of the documented push protocol for a job.
    pub(crate) fn push_request(&self, job: JobId) -> Option<serde_json::Value> {
        self.inner.lock().push_request(job)
    }
}

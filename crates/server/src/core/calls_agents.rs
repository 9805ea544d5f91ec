//! What agents tell and are told.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use agentaflow_api::agent::{Agent, AgentRegistration, AgentUpdate};
use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::job::{Job, JobStatus, JobStatusUpdate};
use agentaflow_api::link::{Framed, Report, ReportBatch, ReportReply, Stop, TaskKey};

use super::handle::{Core, StreamItem, Worker};
use super::pulse::Way;
use super::reports::illegal;
use crate::api_error::ApiError;
use crate::store::JobRow;

impl Core {
    /// An agent registers, with its key in the answer; older streams of it are closed.
    pub async fn register_agent(
        &self,
        agent: AgentRegistration,
        _peer: IpAddr,
    ) -> Result<Agent, ApiError> {
        let (agent, key, left) = self
            .act(|state| {
                let before = state.agents.values().find(|row| row.agent_id == agent.agent_id);
                let left = before.map(|row| row.node_id);
                let (id, key) = state.register_agent(agent)?;
                let agent = state.agents.get(&id).map(|row| state.show_agent(row));
                Ok((agent.unwrap_or_default(), key, left))
            })
            .await?;
        self.inner.hub.close(agent.node_id);
        if let Some(left) = left.filter(|left| *left != agent.node_id) {
            self.inner.hub.close(left);
        }
        Ok(Agent { api_key: Some(key), ..agent })
    }

    /// Agents, by number.
    pub fn agents(&self) -> Vec<Agent> {
        let state = self.inner.lock();
        state.agents.values().map(|row| state.show_agent(row)).collect()
    }

    /// One agent, by name or number.
    pub fn agent(&self, agent: &str) -> Result<Agent, ApiError> {
        let state = self.inner.lock();
        let id = state.find_agent(agent)?;
        Ok(state.agents.get(&id).map(|row| state.show_agent(row)).unwrap_or_default())
    }

    /// Changes an agent.
    pub async fn update_agent(&self, agent: &str, update: AgentUpdate) -> Result<Agent, ApiError> {
        self.act(|state| {
            let id = state.find_agent(agent)?;
            state.update_agent(id, update);
            Ok(state.agents.get(&id).map(|row| state.show_agent(row)).unwrap_or_default())
        })
        .await
    }

    /// News of a job in the form of the documents.
    pub async fn job_status(
        &self,
        job: i64,
        update: JobStatusUpdate,
        from: Worker,
    ) -> Result<Job, ApiError> {
        let known = self.inner.lock().row(job).cloned();
        let row = match known {
            Some(row) => row,
            None => self.stored(job).await?,
        };
        let node = self.may_tell(&row, &from)?;
        let status = update.status.unwrap_or_default();
        let present = row.state.status;
        if present.is_final() {
            return if status == present {
                Ok(self.show_job(row))
            } else {
                Err(illegal(present, status))
            };
        }
        let row = self
            .act(|state| {
                state.status_update(job, node, update)?;
                Ok(state.row(job).cloned())
            })
            .await?;
        match row {
            Some(row) => Ok(self.show_job(row)),
            None => Ok(self.show_job(self.stored(job).await?)),
        }
    }

    /// Whether this worker may tell of a job: the node that has it, or, with a registration token only, anybody
    /// if that node's agent is of the kind that is pushed to and knows no key.
    fn may_tell(&self, row: &JobRow, from: &Worker) -> Result<Option<i64>, ApiError> {
        let seats = &row.state.seats;
        match from {
            Worker::Node(node) | Worker::Agent { node, .. } => {
                if seats.iter().any(|seat| seat.node == *node)
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
                let state = self.inner.lock();
                let push = |id: i64| {
                    state.nodes.get(&id).is_none_or(|node| node.row.spec.api_endpoint.is_some())
                };
                if seats.iter().any(|seat| push(seat.node)) {
                    return Ok(None);
                }
                Err(ApiError::forbidden(
                    "a registration token may report the status of jobs on push nodes only; use the key \
                     from the node's registration",
                ))
            }
        }
    }

    /// News of many tasks from one agent. Logs are not its business.
    pub async fn report(&self, agent: i64, batch: ReportBatch) -> Result<ReportReply, ApiError> {
        self.act(|state| {
            let node = state.agents.get(&agent).map(|agent| agent.node_id);
            let node = node.ok_or_else(|| ApiError::not_found("there is no such agent"))?;
            let accepted =
                batch.reports.into_iter().map(|report| state.apply_update(node, report)).collect();
            Ok(ReportReply { accepted, log_have: Vec::new() })
        })
        .await
    }

    /// Whether a task is, now, the business of this agent: only then are its logs taken.
    pub fn owns(&self, agent: i64, key: TaskKey) -> bool {
        let state = self.inner.lock();
        let node = state.agents.get(&agent).map(|agent| agent.node_id);
        let job = state.jobs.get(&key.job).filter(|job| job.state.epoch == key.epoch);
        job.zip(node).is_some_and(|(job, node)| {
            job.state.seats.iter().any(|seat| seat.task == key.task && seat.node == node)
        })
    }

    /// Opens an agent's stream: what it missed after `after` of `session`, then what comes. Ends when the agent
    /// registers again, opens another, or the server stops.
    pub async fn open_stream(
        &self,
        agent: i64,
        session: Option<String>,
        after: u64,
    ) -> Result<mpsc::Receiver<StreamItem>, ApiError> {
        let node = self.node_of(agent)?;
        let opened = self.inner.hub.open(node, session.as_deref(), after);
        self.act(|state| {
            state.reach(node, Way::Stream(Some(agent)));
            if opened.must_sync {
                state.batch.syncs.insert(node);
            }
            Ok(())
        })
        .await?;
        let (core, sender, end, generation) =
            (self.clone(), opened.sender, opened.end, opened.generation);
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                () = end.cancelled() => {}
            }
            drop(sender);
            if core.inner.hub.closed(node, generation) {
                core.inner.lock().reach(node, Way::Stream(None));
                core.inner.wake.notify_one();
            }
        });
        Ok(opened.receiver)
    }

    fn node_of(&self, agent: i64) -> Result<i64, ApiError> {
        let state = self.inner.lock();
        let node = state.agents.get(&agent).map(|agent| agent.node_id);
        node.ok_or_else(|| ApiError::not_found("there is no such agent"))
    }

    /// Waits up to `wait_ms` for messages after `after`.
    pub async fn poll(
        &self,
        agent: i64,
        session: Option<String>,
        after: u64,
        wait_ms: u64,
    ) -> Result<Vec<Arc<Framed>>, ApiError> {
        let node = self.node_of(agent)?;
        let end = tokio::time::Instant::now() + Duration::from_millis(wait_ms.min(60_000));
        let mut synced = false;
        loop {
            let news = self.inner.hub.anything();
            tokio::pin!(news);
            news.as_mut().enable();
            match self.inner.hub.poll(node, session.as_deref(), after) {
                Some(messages) if !messages.is_empty() => return Ok(messages),
                Some(_) => self.inner.lock().reach(node, Way::Stream(Some(agent))),
                None if synced => {
                    if let Some(everything) = self.inner.hub.since_sync(node) {
                        return Ok(everything);
                    }
                }
                None => {
                    synced = true;
                    self.inner.hub.forget(node);
                    self.act(|state| {
                        state.reach(node, Way::Stream(Some(agent)));
                        state.batch.syncs.insert(node);
                        Ok(())
                    })
                    .await?;
                }
            }
            if tokio::time::timeout_at(end, news).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    /// Nodes whose agents are called, with where: (number, endpoint, address it registered from, job names).
    pub(crate) fn push_nodes(&self) -> Vec<(i64, String, Option<String>)> {
        let state = self.inner.lock();
        let push = state.nodes.values().filter(|node| node.is_push());
        push.filter_map(|node| {
            Some((node.row.id, node.row.spec.api_endpoint.clone()?, node.row.peer.clone()))
        })
        .collect()
    }

    /// A push endpoint answered, or did not.
    pub(crate) fn push_answers(&self, node: i64, answers: bool) {
        self.inner.lock().reach(node, Way::Push(answers));
        self.inner.wake.notify_one();
    }

    /// A push endpoint may not be called, and why.
    pub(crate) fn push_refused(&self, node: i64, why: &str) {
        self.inner.lock().node_event(
            node,
            EventKind::PushRefused,
            format!("it gets no work: {why}"),
        );
        self.inner.wake.notify_one();
    }

    /// What an agent that is called should have heard by now: tasks that it did not answer for, and stops.
    pub(crate) fn push_due(&self, node: i64) -> (Vec<TaskKey>, Vec<Stop>) {
        self.inner.lock().push_due(node)
    }

    /// News that the server itself has of a task on a push node.
    pub(crate) async fn push_update(&self, node: i64, report: Report) -> Result<(), ApiError> {
        self.act(|state| {
            state.apply_update(node, report);
            Ok(())
        })
        .await
    }

    /// What a push agent is told about a job.
    pub(crate) fn push_request(&self, job: i64) -> Option<serde_json::Value> {
        self.inner.lock().push_request(job)
    }
}

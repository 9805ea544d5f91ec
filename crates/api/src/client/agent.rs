//! The calls of an agent.

use std::time::Duration;

use super::{Client, ClientError, Lines, segment};
use crate::BASE;
use crate::agent::{Agent, AgentRegistration};
use crate::link::{Framed, ReportBatch, ReportReply};
use crate::node::{Heartbeat, Node, NodeRegistration};

/// How long a held-open stream may be silent: several times the server's ping.
const STREAM_IDLE: Duration = Duration::from_secs(20);

/// How much longer than asked an answer to a long poll may take.
const POLL_SLACK: Duration = Duration::from_secs(10);

/// A place in the numbered messages of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The session; none before the first message.
    pub session: Option<String>,
    /// The last number seen.
    pub after: u64,
}

/// Messages as they come over a held-open stream.
#[derive(Debug)]
pub struct Messages {
    lines: Lines,
    url: String,
}

impl Messages {
    /// The next message; none when the server ended the stream.
    pub async fn next(&mut self) -> Result<Option<Framed>, ClientError> {
        while let Some(line) = self.lines.next().await? {
            if line.is_empty() {
                continue;
            }
            // The text of a message may hold secrets, so only the place of the fault is told.
            return serde_json::from_slice(&line).map(Some).map_err(|error| ClientError::Garbled {
                url: self.url.clone(),
                cause: format!("a message that cannot be read, at column {}", error.column()),
            });
        }
        Ok(None)
    }
}

impl Client {
    /// Registers the node; the answer holds its key.
    pub async fn register_node(&self, node: &NodeRegistration) -> Result<Node, ClientError> {
        self.post(&format!("{BASE}/nodes/register")).body(node).json().await
    }

    /// Registers the agent; the answer holds its key.
    pub async fn register_agent(&self, agent: &AgentRegistration) -> Result<Agent, ClientError> {
        self.post(&format!("{BASE}/agents/register")).body(agent).json().await
    }

    /// Sends a sign of life of the node, named by its `gpu-…` name or its number.
    pub async fn heartbeat(
        &self,
        node: &str,
        beat: &Heartbeat,
        timeout: Duration,
    ) -> Result<Node, ClientError> {
        let path = format!("{BASE}/nodes/{}/heartbeat", segment(node));
        self.post(&path).body(beat).timeout(timeout).json().await
    }

    /// Opens the stream of messages for an agent, after the place seen last.
    pub async fn stream(&self, agent: &str, seen: &Position) -> Result<Messages, ClientError> {
        let call = self
            .get(&format!("{BASE}/agents/{}/stream", segment(agent)))
            .maybe("session", seen.session.as_deref())
            .query("after", seen.after)
            .timeout(STREAM_IDLE);
        let url = call.url().path().to_owned();
        Ok(Messages { lines: call.lines(Some(STREAM_IDLE)).await?, url })
    }

    /// Waits for messages without a stream.
    pub async fn poll(
        &self,
        agent: &str,
        seen: &Position,
        wait: Duration,
    ) -> Result<Vec<Framed>, ClientError> {
        self.get(&format!("{BASE}/agents/{}/poll", segment(agent)))
            .maybe("session", seen.session.as_deref())
            .query("after", seen.after)
            .query("wait_ms", wait.as_millis())
            .timeout(wait + POLL_SLACK)
            .json()
            .await
    }

    /// Reports news and pieces of logs.
    pub async fn report(
        &self,
        agent: &str,
        batch: &ReportBatch,
    ) -> Result<ReportReply, ClientError> {
        self.post(&format!("{BASE}/agents/{}/report", segment(agent))).body(batch).json().await
    }
}

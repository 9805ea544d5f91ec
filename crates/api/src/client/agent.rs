//! The calls of an agent.

use std::time::Duration;

use super::{Client, ClientError, Lines, segment};
use crate::BASE;
use crate::agent::{Agent, AgentRegistration};
use crate::link::{Framed, ReportBatch, ReportReply};
use crate::node::{Heartbeat, Node, NodeRegistration};

/// Maximum silence of an open stream: several times the server's ping interval.
const STREAM_IDLE: Duration = Duration::from_secs(20);

/// Added to the requested wait as the timeout of a long poll.
const POLL_SLACK: Duration = Duration::from_secs(10);

/// Position in the numbered messages of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Session; none before the first message.
    pub session: Option<String>,
    /// Number of the last message received.
    pub after: u64,
}

/// Messages of an open stream.
#[derive(Debug)]
pub struct Messages {
    lines: Lines,
    url: String,
}

impl Messages {
    /// Returns the next message; none when the server ended the stream.
    pub async fn next(&mut self) -> Result<Option<Framed>, ClientError> {
        while let Some(line) = self.lines.next().await? {
            if line.is_empty() {
                continue;
            }
            // The text of a message may hold secrets, so the error only gives the position.
            return serde_json::from_slice(&line).map(Some).map_err(|error| ClientError::Garbled {
                url: self.url.clone(),
                cause: format!("a message that cannot be read, at column {}", error.column()),
            });
        }
        Ok(None)
    }
}

impl Client {
    /// Registers the node; the response contains its key.
    pub async fn register_node(&self, node: &NodeRegistration) -> Result<Node, ClientError> {
        self.post(&format!("{BASE}/nodes/register")).body(node).json().await
    }

    /// Registers the agent; the response contains its key.
    pub async fn register_agent(&self, agent: &AgentRegistration) -> Result<Agent, ClientError> {
        self.post(&format!("{BASE}/agents/register")).body(agent).json().await
    }

    /// Sends a heartbeat of a node, named by its `gpu-…` name or its number.
    pub async fn heartbeat(
        &self,
        node: &str,
        beat: &Heartbeat,
        timeout: Duration,
    ) -> Result<Node, ClientError> {
        let path = format!("{BASE}/nodes/{}/heartbeat", segment(node));
        self.post(&path).body(beat).timeout(timeout).json().await
    }

    /// Opens the message stream of an agent after the given position.
    pub async fn stream(&self, agent: &str, seen: &Position) -> Result<Messages, ClientError> {
        let call = self
            .get(&format!("{BASE}/agents/{}/stream", segment(agent)))
            .maybe("session", seen.session.as_deref())
            .query("after", seen.after)
            .timeout(STREAM_IDLE);
        let url = call.url().path().to_owned();
        Ok(Messages { lines: call.lines(Some(STREAM_IDLE)).await?, url })
    }

    /// Polls for messages, for networks that cut streams.
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

    /// Sends task updates and log chunks.
    pub async fn report(
        &self,
        agent: &str,
        batch: &ReportBatch,
    ) -> Result<ReportReply, ClientError> {
        self.post(&format!("{BASE}/agents/{}/report", segment(agent))).body(batch).json().await
    }
}

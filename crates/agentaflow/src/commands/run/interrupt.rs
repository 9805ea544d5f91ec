//! Ctrl-C while a job runs: on a terminal the first lets go, the second stops the job; elsewhere a signal stops it.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::follow::patiently;
use crate::backend::Backend;

/// What a shell reports for a program that Ctrl-C ended.
pub(super) const INTERRUPTED: u8 = 128 + 2;

/// How long a second Ctrl-C is waited for.
const SECOND: Duration = Duration::from_secs(3);

/// What follows from a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The job goes on without us.
    LetGo,
    /// The job is being stopped; its end is worth waiting for.
    Stopping,
}

/// The signals that people and supervisors send.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    terminal: bool,
    asked: u32,
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for signals")?,
            terminal: io::stdin().is_terminal() && io::stderr().is_terminal(),
            asked: 0,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Does what the signal asks for.
    pub(super) async fn answer(&mut self, backend: &Backend, job: &str) -> Result<Answer> {
        self.asked += 1;
        if self.asked > 1 {
            eprintln!("\njob {job} is being stopped; no longer waiting for it");
            return Ok(Answer::LetGo);
        }
        if self.terminal {
            eprintln!(
                "\nlet go of job {job}, which goes on; `agentaflow logs -f {job}` comes back to it. \
                 Ctrl-C again within {} seconds stops it.",
                SECOND.as_secs()
            );
            if timeout(SECOND, self.next()).await.is_err() {
                return Ok(Answer::LetGo);
            }
        }
        eprintln!("stopping job {job}");
        patiently(|| backend.cancel(job))
            .await
            .with_context(|| format!("cannot stop job {job}"))?;
        Ok(Answer::Stopping)
    }
}

//! Ctrl-C while a job runs: on a terminal the first lets go, the second stops the job; elsewhere a signal stops it.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, timeout};

use super::follow::patiently;
use crate::backend::Backend;

/// What a shell reports for a program that Ctrl-C ended.
pub(super) const INTERRUPTED: u8 = 128 + 2;

/// How long a second Ctrl-C is waited for.
const SECOND: Duration = Duration::from_secs(3);

/// Signals that come so soon after the first mean the same: `timeout` sends one to the program and one to its group.
const SAME: Duration = Duration::from_secs(5);

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
    /// Somebody sits there; their Ctrl-C shows.
    pub(super) terminal: bool,
    /// When it was acknowledged that the job is stopped.
    stopping: Option<Instant>,
    /// One came that was not answered yet.
    unanswered: bool,
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for signals")?,
            terminal: io::stdin().is_terminal() && io::stderr().is_terminal(),
            stopping: None,
            unanswered: false,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        if std::mem::take(&mut self.unanswered) {
            return;
        }
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits to hear whether a job was taken: only then can a signal be answered. Who sends another does not want
    /// to know.
    pub(super) async fn during<T>(&mut self, taken: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(taken);
        let mut first: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                taken = &mut taken => {
                    self.unanswered = first.is_some();
                    return Some(taken);
                }
                () = self.next() => match first {
                    None => {
                        first = Some(Instant::now());
                        eprintln!("waiting to hear whether the job was taken; Ctrl-C again ends at once");
                    }
                    Some(since) if self.terminal || since.elapsed() >= SAME => return None,
                    Some(_) => {}
                }
            }
        }
    }

    /// Does what the signal asks for.
    pub(super) async fn answer(&mut self, backend: &Backend, job: &str) -> Result<Answer> {
        if let Some(since) = self.stopping {
            if !self.terminal && since.elapsed() < SAME {
                return Ok(Answer::Stopping);
            }
            eprintln!("job {job} is being stopped; no longer waiting for it");
            return Ok(Answer::LetGo);
        }
        if self.terminal {
            eprintln!(
                "let go of job {job}, which goes on; `agentaflow logs -f {job}` comes back to it.\n\
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
        // What came meanwhile is looked at next, and came for the same reason.
        self.stopping = Some(Instant::now());
        Ok(Answer::Stopping)
    }
}

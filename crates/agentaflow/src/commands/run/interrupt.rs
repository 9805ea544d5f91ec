//! Signals during `run`: on a terminal the first Ctrl-C detaches and the second cancels the job; elsewhere a signal
//! cancels the job.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, timeout};

use super::follow::{is_transient, retry};
use crate::backend::Backend;

/// Exit code of a program that SIGINT ended.
pub(super) const INTERRUPTED: u8 = 128 + 2;

/// Time for the second Ctrl-C.
const CANCEL_WINDOW: Duration = Duration::from_secs(3);

/// Signals within this time count as one: `timeout` signals the program and its process group.
const COALESCE_WINDOW: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalEffect {
    /// The job keeps running.
    Detached,
    /// The job is being cancelled; `run` waits for its end.
    Cancelling,
}

pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    pub(super) terminal: bool,
    /// Time of the accepted cancellation.
    cancelled_at: Option<Instant>,
    /// A signal arrived during the submission.
    pending: bool,
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for signals")?,
            terminal: io::stdin().is_terminal() && io::stderr().is_terminal(),
            cancelled_at: None,
            pending: false,
        })
    }

    pub(super) async fn next(&mut self) {
        if std::mem::take(&mut self.pending) {
            return;
        }
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Completes a submission before a signal takes effect; a second signal aborts.
    pub(super) async fn during<T>(&mut self, submission: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(submission);
        let mut first: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                result = &mut submission => {
                    self.pending = first.is_some();
                    return Some(result);
                }
                () = self.next() => match first {
                    None => {
                        first = Some(Instant::now());
                        eprintln!("Waiting for the submission; press Ctrl-C again to exit now");
                    }
                    Some(since) if self.terminal || since.elapsed() >= COALESCE_WINDOW => return None,
                    Some(_) => {}
                }
            }
        }
    }

    /// Detaches from the job or cancels it.
    pub(super) async fn handle(&mut self, backend: &Backend, job: &str) -> Result<SignalEffect> {
        if let Some(since) = self.cancelled_at {
            if !self.terminal && since.elapsed() < COALESCE_WINDOW {
                return Ok(SignalEffect::Cancelling);
            }
            eprintln!("Job {job} is being cancelled; not waiting for its end");
            return Ok(SignalEffect::Detached);
        }
        if self.terminal {
            eprintln!(
                "Detached; job {job} keeps running. To reattach: agentaflow logs -f {job}\n\
                 Press Ctrl-C again within {} seconds to cancel the job.",
                CANCEL_WINDOW.as_secs()
            );
            if timeout(CANCEL_WINDOW, self.next()).await.is_err() {
                return Ok(SignalEffect::Detached);
            }
        }
        eprintln!("Cancelling job {job}");
        retry(|| backend.cancel(job), is_transient)
            .await
            .with_context(|| format!("cannot cancel job {job}"))?;
        // A signal that arrived meanwhile has the same cause.
        self.cancelled_at = Some(Instant::now());
        Ok(SignalEffect::Cancelling)
    }
}

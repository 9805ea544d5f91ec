//! Task updates and log output that the server does not have yet. One report is in flight at a time; updates that
//! accumulate meanwhile go with the next.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use agentaflow_api::event::EventKind;
use agentaflow_api::link::{
    Ended, Report, ReportBatch, ReportReply, StopCause, TaskKey, TaskUpdate,
};

use super::tail::Tail;

/// Delay of `Accepted` and `Running`: the end of a short task includes them.
const LINGER: Duration = Duration::from_millis(10);

/// Interval between checks for new output of running tasks.
const LOG_INTERVAL: Duration = Duration::from_millis(200);

/// Approximate limit of output and results in one report, in bytes.
const REPORT_BYTES: usize = 1 << 20;

const MAX_REPORTS: usize = 1000;

/// Retry interval of a minimal end report that the server rejects.
const REJECTED_RETRY: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 30_000 });

/// Last update of a task: its end, or its refusal by this node.
#[derive(Debug)]
struct FinalUpdate {
    update: TaskUpdate,
    tail: Option<Tail>,
    /// Approximate size in a report, in bytes.
    size: usize,
    answer: Option<oneshot::Sender<bool>>,
    rejections: u32,
    retry_at: Option<Instant>,
}

impl FinalUpdate {
    fn is_due(&self) -> bool {
        self.retry_at.is_none_or(|at| at <= Instant::now())
    }
}

#[derive(Debug, Default)]
struct Queues {
    /// Updates other than final ones, in order.
    early: VecDeque<Report>,
    last: BTreeMap<TaskKey, FinalUpdate>,
    /// Output of tasks that have not ended.
    tails: BTreeMap<TaskKey, Tail>,
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queues: Mutex<Queues>,
    early: Notify,
    last: Notify,
}

impl Outbox {
    /// Queues an update that is not final.
    pub(crate) fn send(&self, key: TaskKey, update: TaskUpdate) {
        let mut queues = self.queues();
        if matches!(update, TaskUpdate::Running { .. }) {
            // `Running` includes `Accepted`.
            queues.early.retain(|report| {
                report.key != key || !matches!(report.update, TaskUpdate::Accepted)
            });
        }
        queues.early.push_back(Report { key, update });
        self.early.notify_one();
    }

    /// Queues a warning, which the server shows as an event of the job.
    pub(crate) fn warn(&self, key: TaskKey, detail: String) {
        self.send(key, TaskUpdate::Progress { kind: EventKind::Warning, detail });
    }

    pub(crate) fn follow(&self, tail: Tail) {
        self.queues().tails.insert(tail.key(), tail);
        self.early.notify_one();
    }

    /// Sends the final update of a task after all its output. Returns true once the server has it, false if the task is
    /// stale.
    pub(crate) async fn finish(&self, key: TaskKey, update: TaskUpdate) -> bool {
        let (answer, answered) = oneshot::channel();
        {
            let mut queues = self.queues();
            let tail = queues.tails.remove(&key);
            queues.early.retain(|report| report.key != key || outlasts_end(&report.update));
            let size = size_of(&update);
            queues.last.insert(
                key,
                FinalUpdate {
                    update,
                    tail,
                    size,
                    answer: Some(answer),
                    rejections: 0,
                    retry_at: None,
                },
            );
        }
        self.last.notify_one();
        answered.await.unwrap_or(false)
    }

    /// Drops all queued updates and output of a task.
    pub(crate) fn drop_task(&self, key: TaskKey) {
        let mut queues = self.queues();
        queues.early.retain(|report| report.key != key);
        queues.tails.remove(&key);
        queues.last.remove(&key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        let queues = self.queues();
        queues.early.is_empty() && queues.last.is_empty()
    }

    /// Waits until the next report is due.
    pub(crate) async fn ready(&self) {
        loop {
            let (early, last, polls) = {
                let queues = self.queues();
                let last = queues.last.values().any(FinalUpdate::is_due);
                let polls = !queues.tails.is_empty() || !queues.last.is_empty();
                (!queues.early.is_empty(), last, polls)
            };
            if last {
                return;
            }
            if early {
                let _ = timeout(LINGER, self.last.notified()).await;
                return;
            }
            let updated = async {
                tokio::select! {
                    () = self.early.notified() => {}
                    () = self.last.notified() => {}
                }
            };
            if !polls {
                updated.await;
            } else if timeout(LOG_INTERVAL, updated).await.is_err() && self.has_output() {
                return;
            }
        }
    }

    /// Takes the next report from the queues: at most `most` updates.
    pub(crate) fn compose(&self, most: usize) -> ReportBatch {
        let most = most.min(MAX_REPORTS);
        let mut queues = self.queues();
        let mut batch = ReportBatch::default();
        let mut room = REPORT_BYTES;
        let early = queues.early.len().min(most);
        batch.reports.extend(queues.early.drain(..early));
        for (key, last) in queues.last.iter().filter(|(_, last)| last.is_due()) {
            // A batch of one carries the updates and output of one task.
            let full = batch.reports.len() >= most || most == 1 && !batch.logs.is_empty();
            if full || room == 0 {
                break;
            }
            if last.tail.as_ref().is_none_or(|tail| drain(tail, &mut batch, &mut room)) {
                batch.reports.push(Report { key: *key, update: last.update.clone() });
                room = room.saturating_sub(last.size);
            }
        }
        for tail in queues.tails.values().filter(|tail| !tail.is_complete()) {
            let alone = batch.reports.is_empty() && batch.logs.is_empty();
            if room == 0 || most == 1 && !alone {
                break;
            }
            tail.rewind();
            if let Some(piece) = tail.piece(room) {
                room = room.saturating_sub(piece.data.len());
                batch.logs.push(piece);
            }
        }
        batch
    }

    /// Returns the updates of a report that did not reach the server.
    pub(crate) fn put_back(&self, batch: ReportBatch) {
        let mut queues = self.queues();
        for report in batch.reports.into_iter().rev() {
            let outdated = queues.last.contains_key(&report.key)
                && !matches!(report.update, TaskUpdate::Progress { .. });
            if !is_final(&report.update) && !outdated {
                queues.early.push_front(report);
            }
        }
    }

    /// Handles a batch of one task that the server will never accept. Output and early updates are dropped. A final
    /// update is never dropped: it is reduced, and finally retried without end.
    pub(crate) fn reduce_rejected(&self, batch: ReportBatch) {
        let mut queues = self.queues();
        let mut ends: BTreeSet<TaskKey> = BTreeSet::new();
        for piece in batch.logs {
            if queues.last.contains_key(&piece.key) {
                ends.insert(piece.key);
            } else {
                queues.tails.remove(&piece.key);
            }
        }
        ends.extend(
            batch.reports.iter().filter(|it| is_final(&it.update)).map(|report| report.key),
        );
        for key in ends {
            queues.reduce(key);
        }
    }

    /// Applies the server's reply. Returns the stale tasks, which the agent must kill.
    pub(crate) fn settle(&self, batch: &ReportBatch, reply: &ReportReply) -> Vec<TaskKey> {
        let mut queues = self.queues();
        for (key, have) in &reply.log_have {
            let Queues { tails, last, .. } = &*queues;
            let tail = tails.get(key).or_else(|| last.get(key)?.tail.as_ref());
            tail.inspect(|tail| tail.confirm(*have));
        }
        let mut stale = Vec::new();
        for (report, accepted) in batch.reports.iter().zip(&reply.accepted) {
            if is_final(&report.update) {
                queues.answer(report.key, *accepted);
            } else if !accepted {
                stale.push(report.key);
            }
        }
        stale
    }

    fn has_output(&self) -> bool {
        self.queues().tails.values().any(|tail| !tail.is_complete())
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    /// Removes the parts of a rejected final update that may be the reason.
    fn reduce(&mut self, key: TaskKey) {
        let Some(last) = self.last.get_mut(&key) else { return };
        last.rejections += 1;
        let detail = match (&mut last.update, last.rejections) {
            (TaskUpdate::Ended(ended), 1) => {
                ended.output_data = None;
                "The server rejected the end of the task; reporting it without the result"
            }
            (_, 1 | 2) => {
                let stopped = Some(StopCause::LeaseLost);
                last.update = TaskUpdate::Ended(Box::new(Ended { stopped, ..Ended::default() }));
                last.tail = None;
                "The server rejected the end of the task; reporting it without details"
            }
            _ => {
                last.retry_at = Some(Instant::now() + REJECTED_RETRY);
                return;
            }
        };
        last.size = 0;
        let update = TaskUpdate::Progress { kind: EventKind::Warning, detail: detail.to_owned() };
        self.early.push_back(Report { key, update });
    }

    fn answer(&mut self, key: TaskKey, accepted: bool) {
        if let Some(answer) = self.last.remove(&key).and_then(|last| last.answer) {
            // The receiver is gone if the task became stale meanwhile.
            let _ = answer.send(accepted);
        }
    }
}

/// Adds output to a batch. Returns true if the batch has all of it.
fn drain(tail: &Tail, batch: &mut ReportBatch, room: &mut usize) -> bool {
    tail.rewind();
    while !tail.is_sent() {
        let Some(piece) = tail.piece(*room) else { return true };
        let query = piece.data.is_empty();
        *room = room.saturating_sub(piece.data.len());
        batch.logs.push(piece);
        if query || *room == 0 {
            return tail.is_sent();
        }
    }
    true
}

/// True for updates that a final update does not include.
fn outlasts_end(update: &TaskUpdate) -> bool {
    matches!(update, TaskUpdate::Progress { .. } | TaskUpdate::Placed(_))
}

/// Only a result can be large.
fn size_of(update: &TaskUpdate) -> usize {
    match update {
        TaskUpdate::Ended(ended) => {
            ended.output_data.as_ref().map_or(0, |data| data.to_string().len())
        }
        _ => 0,
    }
}

fn is_final(update: &TaskUpdate) -> bool {
    matches!(update, TaskUpdate::Ended(_) | TaskUpdate::Refused { .. })
}

//! What is to be told to the server. One report is on its way at a time; all that accumulates meanwhile goes with the
//! next.

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

/// The update of a start waits this long for the end of a short job, which says it all.
const LINGER: Duration = Duration::from_millis(10);

/// How often output of running tasks is looked for.
const LOG_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes of output and results in one report, about.
const ROOM: usize = 1 << 20;

/// Reports in one batch.
const MOST_REPORTS: usize = 1000;

/// An end that is refused although there is nothing left in it is told again after this long.
const HELD: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 30_000 });

/// The update that ends a task, and who waits for the server's answer to it.
#[derive(Debug)]
struct Last {
    update: TaskUpdate,
    tail: Option<Tail>,
    /// Its length in a report, about.
    size: usize,
    answer: Option<oneshot::Sender<bool>>,
    /// How often the server has refused it.
    refused: u32,
    /// Not told again before this.
    held: Option<Instant>,
}

impl Last {
    fn is_due(&self) -> bool {
        self.held.is_none_or(|held| held <= Instant::now())
    }
}

#[derive(Debug, Default)]
struct Boxes {
    /// Beginnings and progress, in order.
    early: VecDeque<Report>,
    /// Ends.
    last: BTreeMap<TaskKey, Last>,
    /// Output of tasks that are not over.
    tails: BTreeMap<TaskKey, Tail>,
}

/// What is to be told.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    boxes: Mutex<Boxes>,
    early: Notify,
    last: Notify,
}

/// What the server said about the reports of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    /// Tasks that are to be killed and forgotten.
    pub(crate) stale: Vec<TaskKey>,
}

impl Outbox {
    /// Tells that something began or goes on.
    pub(crate) fn tell(&self, key: TaskKey, update: TaskUpdate) {
        let mut boxes = self.boxes();
        if matches!(update, TaskUpdate::Running { .. }) {
            // Later updates include earlier ones.
            boxes.early.retain(|report| {
                report.key != key || !matches!(report.update, TaskUpdate::Accepted)
            });
        }
        boxes.early.push_back(Report { key, update });
        self.early.notify_one();
    }

    /// Follows the output of a task.
    pub(crate) fn follow(&self, tail: Tail) {
        self.boxes().tails.insert(tail.key(), tail);
        self.early.notify_one();
    }

    /// Tells the end of a task, all its output first. True once the server has it, false if it is stale.
    pub(crate) async fn finish(&self, key: TaskKey, update: TaskUpdate) -> bool {
        let (answer, answered) = oneshot::channel();
        {
            let mut boxes = self.boxes();
            let tail = boxes.tails.remove(&key);
            boxes.early.retain(|report| report.key != key || is_kept(&report.update));
            let size = size_of(&update);
            boxes.last.insert(
                key,
                Last { update, tail, size, answer: Some(answer), refused: 0, held: None },
            );
        }
        self.last.notify_one();
        answered.await.unwrap_or(false)
    }

    /// Says no more about a task.
    pub(crate) fn drop_task(&self, key: TaskKey) {
        let mut boxes = self.boxes();
        boxes.early.retain(|report| report.key != key);
        boxes.tails.remove(&key);
        boxes.last.remove(&key);
    }

    /// Nothing waits to be told.
    pub(crate) fn is_empty(&self) -> bool {
        let boxes = self.boxes();
        boxes.early.is_empty() && boxes.last.is_empty()
    }

    /// Waits until there is something worth a report.
    pub(crate) async fn ready(&self) {
        loop {
            let (early, last, looks) = {
                let boxes = self.boxes();
                let last = boxes.last.values().any(Last::is_due);
                let looks = !boxes.tails.is_empty() || !boxes.last.is_empty();
                (!boxes.early.is_empty(), last, looks)
            };
            if last {
                return;
            }
            if early {
                let _ = timeout(LINGER, self.last.notified()).await;
                return;
            }
            let update = async {
                tokio::select! {
                    () = self.early.notified() => {}
                    () = self.last.notified() => {}
                }
            };
            if !looks {
                update.await;
            } else if timeout(LOG_INTERVAL, update).await.is_err() && self.has_output() {
                return;
            }
        }
    }

    /// Puts together the next report: at most `most` updates.
    pub(crate) fn compose(&self, most: usize) -> ReportBatch {
        let most = most.min(MOST_REPORTS);
        let mut boxes = self.boxes();
        let mut batch = ReportBatch::default();
        let mut room = ROOM;
        let early = boxes.early.len().min(most);
        batch.reports.extend(boxes.early.drain(..early));
        for (key, last) in boxes.last.iter().filter(|(_, last)| last.is_due()) {
            // One by one means one task at a time.
            let full = batch.reports.len() >= most || most == 1 && !batch.logs.is_empty();
            if full || room == 0 {
                break;
            }
            if last.tail.as_ref().is_none_or(|tail| drain(tail, &mut batch, &mut room)) {
                batch.reports.push(Report { key: *key, update: last.update.clone() });
                room = room.saturating_sub(last.size);
            }
        }
        for tail in boxes.tails.values().filter(|tail| !tail.is_complete()) {
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

    /// The report did not get through: what was taken out goes back.
    pub(crate) fn put_back(&self, batch: ReportBatch) {
        let mut boxes = self.boxes();
        for report in batch.reports.into_iter().rev() {
            let outdated = boxes.last.contains_key(&report.key)
                && !matches!(report.update, TaskUpdate::Progress { .. });
            if !is_last(&report.update) && !outdated {
                boxes.early.push_front(report);
            }
        }
    }

    /// The server will never take this as it is, and nothing else was with it. Output and news on the way are given
    /// up; an end never is: it is told with less in it, and at last again and again.
    pub(crate) fn refused(&self, batch: ReportBatch) {
        let mut boxes = self.boxes();
        let mut ends: BTreeSet<TaskKey> = BTreeSet::new();
        for piece in batch.logs {
            if boxes.last.contains_key(&piece.key) {
                ends.insert(piece.key);
            } else {
                boxes.tails.remove(&piece.key);
            }
        }
        ends.extend(batch.reports.iter().filter(|it| is_last(&it.update)).map(|report| report.key));
        for key in ends {
            boxes.lighten(key);
        }
    }

    /// The server has answered.
    pub(crate) fn settle(&self, batch: &ReportBatch, reply: &ReportReply) -> Verdicts {
        let mut boxes = self.boxes();
        for (key, have) in &reply.log_have {
            let Boxes { tails, last, .. } = &*boxes;
            let tail = tails.get(key).or_else(|| last.get(key)?.tail.as_ref());
            tail.inspect(|tail| tail.confirm(*have));
        }
        let mut verdicts = Verdicts::default();
        for (report, accepted) in batch.reports.iter().zip(&reply.accepted) {
            if is_last(&report.update) {
                boxes.answer(report.key, *accepted);
            } else if !accepted {
                verdicts.stale.push(report.key);
            }
        }
        verdicts
    }

    fn has_output(&self) -> bool {
        self.boxes().tails.values().any(|tail| !tail.is_complete())
    }

    fn boxes(&self) -> MutexGuard<'_, Boxes> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Boxes {
    /// An end was refused: what is in it that may be the reason is left out.
    fn lighten(&mut self, key: TaskKey) {
        let Some(last) = self.last.get_mut(&key) else { return };
        last.refused += 1;
        let detail = match (&mut last.update, last.refused) {
            (TaskUpdate::Ended(ended), 1) => {
                ended.output_data = None;
                "the server refused how this task ended, so that is told without its result"
            }
            (_, 1 | 2) => {
                let stopped = Some(StopCause::LeaseLost);
                last.update = TaskUpdate::Ended(Box::new(Ended { stopped, ..Ended::default() }));
                last.tail = None;
                "the server refused how this task ended, so only that it is over is told"
            }
            _ => {
                last.held = Some(Instant::now() + HELD);
                return;
            }
        };
        last.size = 0;
        let update = TaskUpdate::Progress { kind: EventKind::Warning, detail: detail.to_owned() };
        self.early.push_back(Report { key, update });
    }

    fn answer(&mut self, key: TaskKey, accepted: bool) {
        if let Some(answer) = self.last.remove(&key).and_then(|last| last.answer) {
            // Nobody waits any more when the task was forgotten meanwhile.
            let _ = answer.send(accepted);
        }
    }
}

/// Puts output into a batch. Whether all of it is in.
fn drain(tail: &Tail, batch: &mut ReportBatch, room: &mut usize) -> bool {
    tail.rewind();
    while !tail.is_sent() {
        let Some(piece) = tail.piece(*room) else { return true };
        let asks = piece.data.is_empty();
        *room = room.saturating_sub(piece.data.len());
        batch.logs.push(piece);
        if asks || *room == 0 {
            return tail.is_sent();
        }
    }
    true
}

/// Told even when the task is over: an end does not include it.
fn is_kept(update: &TaskUpdate) -> bool {
    matches!(update, TaskUpdate::Progress { .. } | TaskUpdate::Placed(_))
}

/// Only a result can be long.
fn size_of(update: &TaskUpdate) -> usize {
    match update {
        TaskUpdate::Ended(ended) => {
            ended.output_data.as_ref().map_or(0, |data| data.to_string().len())
        }
        _ => 0,
    }
}

fn is_last(update: &TaskUpdate) -> bool {
    matches!(update, TaskUpdate::Ended(_) | TaskUpdate::Refused { .. })
}

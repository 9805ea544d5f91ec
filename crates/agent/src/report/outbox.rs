//! What is to be told to the server. One report is on its way at a time; all that accumulates meanwhile goes with the
//! next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use agentaflow_api::link::{News, Report, ReportBatch, ReportReply, TaskKey};

use super::tail::Tail;

/// News of a beginning waits this long for the end of a short job, which says it all.
const LINGER: Duration = Duration::from_millis(10);

/// How often output of running tasks is looked for.
const LOG_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes of output and results in one report, about.
const ROOM: usize = 1 << 20;

/// Reports in one batch.
const MOST_REPORTS: usize = 1000;

/// News that ends a task, and who waits for the server's answer to it.
#[derive(Debug)]
struct Last {
    news: News,
    tail: Option<Tail>,
    /// Its length in a report, about.
    size: usize,
    answer: Option<oneshot::Sender<bool>>,
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
    pub(crate) fn tell(&self, key: TaskKey, news: News) {
        let mut boxes = self.boxes();
        if matches!(news, News::Running { .. }) {
            // Later news includes earlier.
            boxes
                .early
                .retain(|report| report.key != key || !matches!(report.news, News::Accepted));
        }
        boxes.early.push_back(Report { key, news });
        self.early.notify_one();
    }

    /// Follows the output of a task.
    pub(crate) fn follow(&self, tail: Tail) {
        self.boxes().tails.insert(tail.key(), tail);
        self.early.notify_one();
    }

    /// Tells the end of a task, all its output first. True once the server has it, false if it is stale.
    pub(crate) async fn finish(&self, key: TaskKey, news: News) -> bool {
        let (answer, answered) = oneshot::channel();
        {
            let mut boxes = self.boxes();
            let tail = boxes.tails.remove(&key);
            boxes
                .early
                .retain(|report| report.key != key || matches!(report.news, News::Progress { .. }));
            let size = size_of(&news);
            boxes.last.insert(key, Last { news, tail, size, answer: Some(answer) });
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
            let (early, last, logs) = {
                let boxes = self.boxes();
                (!boxes.early.is_empty(), !boxes.last.is_empty(), !boxes.tails.is_empty())
            };
            if last {
                return;
            }
            if early {
                let _ = timeout(LINGER, self.last.notified()).await;
                return;
            }
            let news = async {
                tokio::select! {
                    () = self.early.notified() => {}
                    () = self.last.notified() => {}
                }
            };
            if !logs {
                news.await;
            } else if timeout(LOG_INTERVAL, news).await.is_err() && self.has_output() {
                return;
            }
        }
    }

    /// Puts together the next report: at most `most` pieces of news.
    pub(crate) fn compose(&self, most: usize) -> ReportBatch {
        let most = most.min(MOST_REPORTS);
        let mut boxes = self.boxes();
        let mut batch = ReportBatch::default();
        let mut room = ROOM;
        let early = boxes.early.len().min(most);
        batch.reports.extend(boxes.early.drain(..early));
        for (key, last) in &boxes.last {
            if batch.reports.len() >= most || room == 0 {
                break;
            }
            if last.tail.as_ref().is_none_or(|tail| drain(tail, &mut batch, &mut room)) {
                batch.reports.push(Report { key: *key, news: last.news.clone() });
                room = room.saturating_sub(last.size);
            }
        }
        for tail in boxes.tails.values().filter(|tail| !tail.is_complete()) {
            if room == 0 || most == 1 {
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
                && !matches!(report.news, News::Progress { .. });
            if !is_last(&report.news) && !outdated {
                boxes.early.push_front(report);
            }
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
            if is_last(&report.news) {
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

/// Only a result can be long.
fn size_of(news: &News) -> usize {
    match news {
        News::Ended(ended) => ended.output_data.as_ref().map_or(0, |data| data.to_string().len()),
        _ => 0,
    }
}

fn is_last(news: &News) -> bool {
    matches!(news, News::Ended(_) | News::Refused { .. })
}

#[cfg(test)]
mod tests {
    use agentaflow_api::link::Ended;
    use agentaflow_api::units::Stamp;

    use super::*;

    fn key(job: i64) -> TaskKey {
        TaskKey { job, epoch: 1, task: 0 }
    }

    fn words(batch: &ReportBatch) -> Vec<String> {
        let word = |news: &News| match news {
            News::Accepted => "accepted".to_owned(),
            News::Running { .. } => "running".to_owned(),
            News::Progress { kind, .. } => kind.clone(),
            News::Refused { .. } => "refused".to_owned(),
            News::Ended(_) => "ended".to_owned(),
        };
        batch
            .reports
            .iter()
            .map(|report| format!("{} {}", report.key.job, word(&report.news)))
            .collect()
    }

    fn ended() -> News {
        News::Ended(Box::default())
    }

    #[tokio::test]
    async fn the_end_of_a_short_task_says_it_all_but_keeps_its_warnings() {
        let outbox = Outbox::default();
        outbox.tell(key(1), News::Accepted);
        outbox.tell(key(1), News::Running { started_at: Stamp(0) });
        outbox.tell(key(1), News::Progress { kind: "Warning".into(), detail: String::new() });
        outbox.tell(key(2), News::Accepted);
        let finish = outbox.finish(key(1), ended());
        let told = async {
            let batch = outbox.compose(100);
            assert_eq!(words(&batch), ["1 Warning", "2 accepted", "1 ended"]);
            // It does not get through; the next one has the same.
            outbox.put_back(batch);
            let batch = outbox.compose(100);
            assert_eq!(words(&batch), ["1 Warning", "2 accepted", "1 ended"]);
            let reply = ReportReply { accepted: vec![true, false, true], log_have: Vec::new() };
            assert_eq!(outbox.settle(&batch, &reply).stale, [key(2)]);
        };
        let (accepted, ()) = tokio::join!(finish, told);
        assert!(accepted && outbox.is_empty());
    }

    #[tokio::test]
    async fn large_results_do_not_all_go_into_one_report() {
        let outbox = std::sync::Arc::new(Outbox::default());
        let output_data = Some(serde_json::Value::from("x".repeat(250_000)));
        for job in 0..20 {
            let outbox = std::sync::Arc::clone(&outbox);
            let news = News::Ended(Box::new(Ended {
                output_data: output_data.clone(),
                ..Ended::default()
            }));
            tokio::spawn(async move { outbox.finish(key(job), news).await });
        }
        while outbox.boxes().last.len() < 20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(outbox.compose(100).reports.len(), 5);
    }
}

//! The current lists, and the events between them. Both are made while requests ask for them, at most once a second.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentaflow_api::Stamp;
use agentaflow_api::ids::EventSeq;
use agentaflow_kube_scheduler::ClusterReader;

use super::answer::Problem;
use super::diff::{self, RowEvent};
use super::rows::Rows;

/// Age at which the lists are made again.
pub(crate) const FRESH: Duration = Duration::from_secs(1);
/// Events kept for clients that reconnect.
const KEPT: usize = 2000;

pub(crate) struct Board {
    reader: ClusterReader,
    last: tokio::sync::Mutex<Option<(Instant, Arc<Rows>)>>,
    past: Mutex<Past>,
}

struct Past {
    events: VecDeque<Arc<RowEvent>>,
    next: EventSeq,
}

impl Board {
    pub(crate) fn new(reader: ClusterReader) -> Self {
        let past = Past { events: VecDeque::new(), next: first_seq(Stamp::now()) };
        Self { reader, last: tokio::sync::Mutex::default(), past: Mutex::new(past) }
    }

    /// The lists, at most a second old. Concurrent requests share them.
    pub(crate) async fn rows(&self) -> Result<Arc<Rows>, Problem> {
        let mut last = self.last.lock().await;
        if let Some((_, rows)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(rows.clone());
        }
        let absent = || Problem::unavailable("No scheduler leads at the moment");
        let snapshot = self.reader.snapshot().await.ok_or_else(absent)?;
        let old = last.as_ref().map(|(_, rows)| rows.clone());
        // Thousands of jobs take a while.
        let made = tokio::task::spawn_blocking(move || {
            let rows = Rows::new(&snapshot);
            let news = old.map(|old| diff::news(&old, &rows, Stamp::now())).unwrap_or_default();
            (Arc::new(rows), news)
        });
        let (rows, news) = made.await.map_err(|error| Problem::unavailable(error.to_string()))?;
        self.past.lock().unwrap_or_else(PoisonError::into_inner).extend(news);
        *last = Some((Instant::now(), rows.clone()));
        Ok(rows)
    }

    /// Number of the newest event.
    pub(crate) fn newest(&self) -> EventSeq {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.events.back().map(|news| news.event.seq).unwrap_or_default()
    }

    /// Events with a higher number, oldest first.
    pub(crate) fn after(&self, seq: EventSeq) -> Vec<Arc<RowEvent>> {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.events.iter().filter(|news| news.event.seq > seq).cloned().collect()
    }
}

impl Past {
    fn extend(&mut self, news: Vec<RowEvent>) {
        for mut one in news {
            one.event.seq = self.next;
            self.next = self.next.next();
            self.events.push_back(Arc::new(one));
        }
        let excess = self.events.len().saturating_sub(KEPT);
        self.events.drain(..excess);
    }
}

/// First number of a leader. A later leader starts with a lower number, by which clients notice that they may have missed
/// events and read the lists again.
fn first_seq(start: Stamp) -> EventSeq {
    const YEAR_2100: i64 = 4_102_444_800;
    EventSeq((YEAR_2100 - start.0.div_euclid(1000)).max(0) << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_later_leader_are_lower_and_fit_into_a_browser() {
        let (first, second) =
            (first_seq(Stamp(1_700_000_000_000)), first_seq(Stamp(1_700_000_001_000)));
        assert!(second.0 + (1 << 20) <= first.0);
        assert!(first.0 < 1 << 53);
    }
}

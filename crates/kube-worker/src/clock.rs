//! The time as the cluster has it. When a Job began is written by the cluster's clock, so its age must be told by that
//! clock, too: one of this machine that is wrong by more than a lease would end healthy Jobs, or keep dead ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agentaflow_kube_core::server_time;
use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;

/// How long a reading is good for: no clock runs wrong by much in that time.
const FRESH: Duration = Duration::from_mins(1);

/// The API server's clock, carried on by the time that has passed here since it was read.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<Reading>>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    said: Timestamp,
    at: Instant,
}

impl Clock {
    /// The time by the API server's clock; that of this machine where the API server does not date its answers.
    pub(crate) async fn now(&self, client: &Client) -> Result<Timestamp, kube::Error> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fresh) = known.filter(|known| known.at.elapsed() < FRESH) {
            return Ok(fresh.now());
        }
        let read = match (server_time(client).await, known) {
            (Ok(read), _) => read,
            (Err(error), None) => return Err(error),
            (Err(_), Some(old)) => return Ok(old.now()),
        };
        let Some(said) = read else { return Ok(Timestamp::now()) };
        let reading = Reading { said, at: Instant::now() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        Ok(reading.now())
    }
}

impl Reading {
    fn now(self) -> Timestamp {
        self.said.saturating_add(self.at.elapsed()).unwrap_or(self.said)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake;

    #[tokio::test]
    async fn the_time_is_what_the_api_server_says_whatever_this_machine_believes() {
        let api = fake::Api::new(|_| json!({})).dated("Sun, 06 Nov 1994 08:49:37 GMT");
        let client = Client::new(api.clone(), "default");
        let clock = Clock::default();
        for _ in 0..3 {
            let behind = clock.now(&client).await.unwrap().as_second() - 784_111_777;
            assert!((0..30).contains(&behind), "{behind} seconds");
        }
        assert_eq!(api.asked(), ["GET"], "it is not asked each time");
    }

    #[tokio::test]
    async fn an_api_server_that_says_no_time_leaves_that_of_this_machine() {
        let client = Client::new(fake::Api::new(|_| json!({})), "default");
        let before = Timestamp::now();
        let now = Clock::default().now(&client).await.unwrap();
        assert!(before <= now && now <= Timestamp::now());
    }
}

//! Clock of the API server. The start time of a Job comes from the cluster's clock, so its age must be computed with
//! that clock: a local clock off by more than a lease would end healthy Jobs or keep dead ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agentaflow_kube_core::server_time;
use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;

/// Validity of a reading: clock drift is negligible in this time.
const VALIDITY: Duration = Duration::from_mins(1);

/// Last reading of the API server's clock, extrapolated with the local monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<Reading>>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    time: Timestamp,
    at: Instant,
}

impl ServerClock {
    /// Time of the API server; local time if its responses have no `Date` header.
    pub(crate) async fn now(&self, client: &Client) -> Result<Timestamp, kube::Error> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fresh) = known.filter(|known| known.at.elapsed() < VALIDITY) {
            return Ok(fresh.now());
        }
        let read = match (server_time(client).await, known) {
            (Ok(read), _) => read,
            (Err(error), None) => return Err(error),
            (Err(_), Some(old)) => return Ok(old.now()),
        };
        let Some(time) = read else { return Ok(Timestamp::now()) };
        let reading = Reading { time, at: Instant::now() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        Ok(reading.now())
    }
}

impl Reading {
    fn now(self) -> Timestamp {
        self.time.saturating_add(self.at.elapsed()).unwrap_or(self.time)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApiServer;

    #[tokio::test]
    async fn the_time_comes_from_the_api_server() {
        let api = FakeApiServer::new(|_| json!({})).with_date("Sun, 06 Nov 1994 08:49:37 GMT");
        let client = Client::new(api.clone(), "default");
        let clock = ServerClock::default();
        for _ in 0..3 {
            let behind = clock.now(&client).await.unwrap().as_second() - 784_111_777;
            assert!((0..30).contains(&behind), "{behind} seconds");
        }
        assert_eq!(api.methods(), ["GET"], "one request for three readings");
    }

    #[tokio::test]
    async fn without_a_date_header_the_local_clock_is_used() {
        let client = Client::new(FakeApiServer::new(|_| json!({})), "default");
        let before = Timestamp::now();
        let now = ServerClock::default().now(&client).await.unwrap();
        assert!(before <= now && now <= Timestamp::now());
    }
}

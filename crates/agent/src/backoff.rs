//! Backoff of every loop in which the agent waits for the server, for Docker or for its guardian.

use std::time::Duration;

use agentaflow_backoff::BackoffPolicy;

/// Jittered: many agents lose one server at the same moment.
pub(crate) const RECONNECT: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(10)).with_jitter();

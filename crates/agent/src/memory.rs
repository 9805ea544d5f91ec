//! Resident memory of idle programs.

use std::time::Duration;

use agentaflow_linux::memory::release_program_pages;

/// Time after which the start, with its registration, is over.
const START: Duration = Duration::from_secs(3);

/// Releases code that only the start of the program needs.
pub async fn release_start_pages() {
    tokio::time::sleep(START).await;
    if let Err(error) = release_program_pages() {
        tracing::debug!(%error, "cannot release code of the start");
    }
}

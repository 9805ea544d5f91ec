//! Sends task updates and logs to the server: one request in flight, accumulated updates go with the next request.

mod outbox;
mod tail;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{debug, warn};

use agentaflow_api::client::ClientError;
use agentaflow_api::link::{ReportBatch, ReportReply};

pub(crate) use outbox::Outbox;
pub(crate) use tail::Tail;

use crate::backoff::RECONNECT;
use crate::session::{Session, Sessions};
use crate::tasks::Tasks;

/// Sends reports while a session exists; never ends. Stale tasks in a reply are stopped through `tasks`.
pub(crate) async fn report(outbox: Arc<Outbox>, sessions: Sessions, tasks: Tasks) {
    let mut backoff = RECONNECT.start();
    let mut current = sessions.subscribe();
    let mut most = usize::MAX;
    loop {
        outbox.ready().await;
        let Some(session) = next_session(&mut current).await else { return };
        let batch = outbox.compose(most);
        if batch.reports.is_empty() && batch.logs.is_empty() {
            continue;
        }
        match send(&session, &batch).await {
            Ok(reply) => {
                backoff.reset();
                most = usize::MAX;
                tasks.kill_stale(&outbox.settle(&batch, &reply));
            }
            Err(error) if is_rejected(&error) => {
                most = isolate_rejected(&outbox, batch, &error, most);
            }
            Err(error) => {
                outbox.put_back(batch);
                sessions.end_if_rejected(&session, &error);
                debug!(%error, "report failed; retrying");
                backoff.sleep().await;
            }
        }
    }
}

/// Waits for a session; `None` when the agent shuts down.
async fn next_session(current: &mut watch::Receiver<Option<Arc<Session>>>) -> Option<Arc<Session>> {
    current.wait_for(Option::is_some).await.ok()?.clone()
}

async fn send(session: &Session, batch: &ReportBatch) -> Result<ReportReply, ClientError> {
    let reply = session.client.report(&session.agent_id, batch).await?;
    if reply.accepted.len() == batch.reports.len() {
        return Ok(reply);
    }
    let cause = "the reply does not match the report".to_owned();
    Err(ClientError::Garbled { url: session.client.base().to_string(), cause })
}

/// The server rejects this request permanently.
fn is_rejected(error: &ClientError) -> bool {
    matches!(error.status(), Some(400 | 409 | 413 | 422))
}

/// Handles a batch that contains an unacceptable report: the next batches carry one report each, and a report that the
/// server rejects alone is reduced or dropped. Returns the size of the next batch.
fn isolate_rejected(
    outbox: &Outbox,
    batch: ReportBatch,
    error: &ClientError,
    most: usize,
) -> usize {
    if most > 1 {
        outbox.put_back(batch);
        return 1;
    }
    let keys = batch.reports.iter().map(|report| report.key);
    let keys: BTreeSet<_> = keys.chain(batch.logs.iter().map(|piece| piece.key)).collect();
    for key in keys {
        warn!(%key, %error, "the server rejects the update of this task");
    }
    outbox.reduce_rejected(batch);
    1
}

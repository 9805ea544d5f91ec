//! Tells the server what happens: one request in flight, everything that accumulates goes with the next.

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

/// Reports for ever; what the server says about tasks goes to `tasks`.
pub(crate) async fn report(outbox: Arc<Outbox>, sessions: Sessions, tasks: Tasks) {
    let mut backoff = RECONNECT.start();
    let mut current = sessions.subscribe();
    let mut most = usize::MAX;
    loop {
        outbox.ready().await;
        let Some(session) = present(&mut current).await else { return };
        let batch = outbox.compose(most);
        if batch.reports.is_empty() && batch.logs.is_empty() {
            continue;
        }
        match send(&session, &batch).await {
            Ok(reply) => {
                backoff.reset();
                most = usize::MAX;
                tasks.forget_stale(&outbox.settle(&batch, &reply).stale);
            }
            Err(error) if is_poison(&error) => {
                most = poisoned(&outbox, batch, &error, most);
            }
            Err(error) => {
                outbox.put_back(batch);
                sessions.doubt(&session, &error);
                debug!(%error, "cannot report yet");
                backoff.sleep().await;
            }
        }
    }
}

/// The session, once there is one.
async fn present(current: &mut watch::Receiver<Option<Arc<Session>>>) -> Option<Arc<Session>> {
    current.wait_for(Option::is_some).await.ok()?.clone()
}

async fn send(session: &Session, batch: &ReportBatch) -> Result<ReportReply, ClientError> {
    let reply = session.client.report(&session.agent_id, batch).await?;
    if reply.accepted.len() == batch.reports.len() {
        return Ok(reply);
    }
    let cause = "the answer to a report does not fit it".to_owned();
    Err(ClientError::Garbled { url: session.client.base().to_string(), cause })
}

/// The server will never take this as it is.
fn is_poison(error: &ClientError) -> bool {
    matches!(error.status(), Some(400 | 409 | 413 | 422))
}

/// Something in the batch is not acceptable: go on one by one, and leave out what is refused alone. Returns how many
/// reports to send next.
fn poisoned(outbox: &Outbox, batch: ReportBatch, error: &ClientError, most: usize) -> usize {
    if most > 1 {
        outbox.put_back(batch);
        return 1;
    }
    let keys = batch.reports.iter().map(|report| report.key);
    let keys: BTreeSet<_> = keys.chain(batch.logs.iter().map(|piece| piece.key)).collect();
    for key in keys {
        warn!(%key, %error, "the server does not take news of this task");
    }
    outbox.refused(batch);
    1
}

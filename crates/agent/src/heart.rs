//! Signs of life, which renew the lease; and what happens when they are not answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, warn};

use agentaflow_api::client::ClientError;

use crate::clock::boot_ms;
use crate::facts;
use crate::gpus::{GpuWatch, TaskLoad};
use crate::lease::Lease;
use crate::session::{Session, Sessions};
use crate::settings::AgentSettings;
use crate::tasks::Tasks;

/// How often GPUs are looked at.
const GPU_LOOK: Duration = Duration::from_secs(1);

/// How often it is looked whether there are GPUs by now.
const IDLE_LOOK: Duration = Duration::from_mins(1);

/// How often the lease is looked at, at least.
const LOOK: Duration = Duration::from_millis(500);

/// How long an answer may take, at least and at most: there must be time for another attempt within the lease.
const ANSWER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The longest pause after a sign of life that was not answered.
const RETRY: Duration = Duration::from_secs(2);

/// What a heart needs.
pub(crate) struct Heart {
    pub(crate) settings: Arc<AgentSettings>,
    pub(crate) sessions: Sessions,
    pub(crate) tasks: Tasks,
    pub(crate) lease: Lease,
    pub(crate) gpus: Arc<GpuWatch>,
}

impl Heart {
    /// Beats for ever.
    pub(crate) async fn beat(self) {
        let mut current = self.sessions.subscribe();
        let every = self.settings.heartbeat_interval;
        let retry = (every / 5).clamp(Duration::from_millis(50), RETRY);
        loop {
            let Ok(session) =
                current.wait_for(Option::is_some).await.map(|session| session.clone())
            else {
                return;
            };
            let Some(session) = session else { continue };
            match self.once(&session).await {
                Ok(()) => {
                    // A new session wants a first sign of life at once.
                    tokio::select! {
                        () = sleep(every) => {}
                        _ = current.changed() => {}
                    }
                }
                Err(error) => {
                    debug!(%error, "the sign of life was not answered");
                    self.sessions.doubt(&session, &error);
                    sleep(retry).await;
                }
            }
        }
    }

    async fn once(&self, session: &Session) -> Result<(), ClientError> {
        let jobs = self.tasks.live().len();
        let beat = facts::heartbeat(&session.node_id, &self.settings, jobs, &self.gpus);
        let sent = boot_ms();
        let within = self.settings.heartbeat_interval.clamp(ANSWER.0, ANSWER.1);
        session.client.heartbeat(&session.node_id, &beat, within).await?;
        self.lease.renew(sent);
        Ok(())
    }
}

/// Stops leased tasks when the lease is lost. The guardian does the same for processes, should this agent hang.
pub(crate) async fn watch_lease(lease: Lease, tasks: Tasks) {
    let mut look = interval(LOOK.min(lease.pace()));
    look.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        look.tick().await;
        if let Some(until) = lease.lost() {
            tasks.lose_lease(until);
        }
    }
}

/// Looks at the GPUs once a second, and stops tasks that hold well more than their share.
pub(crate) async fn watch_gpus(gpus: Arc<GpuWatch>, tasks: Tasks) {
    loop {
        sleep(if gpus.instances().is_empty() { IDLE_LOOK } else { GPU_LOOK }).await;
        let loads = tasks.gpu_loads().await;
        for over in gpus.tick(&loads).await {
            warn!(key = %over.key, "{over}");
            tasks.stop_over_share(over.key, over.to_string());
        }
    }
}

impl Tasks {
    /// What runs on the GPUs.
    async fn gpu_loads(&self) -> Vec<TaskLoad> {
        let mut loads = Vec::new();
        for task in self.live() {
            let grants = &task.assignment.gpus;
            if grants.is_empty() || task.started.get().is_none() {
                continue;
            }
            // Nothing of a task is on a simulated GPU.
            let pids = if task.assignment.simulated {
                Vec::new()
            } else {
                task.runtime.pids(task.key).await
            };
            loads.push(TaskLoad { key: task.key, grants: grants.clone(), pids });
        }
        loads
    }
}

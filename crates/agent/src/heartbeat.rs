//! Heartbeats, which renew the lease, and the loops that stop tasks on a lost lease or excessive GPU memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{debug, warn};

use agentaflow_api::client::ClientError;
use agentaflow_api::job::Runtime as RuntimeKind;

use crate::clock::boot_ms;
use crate::facts;
use crate::gpus::{GpuWatch, TaskLoad};
use crate::lease::Lease;
use crate::session::{Session, Sessions};
use crate::settings::AgentSettings;
use crate::tasks::{Restarts, Tasks};

const GPU_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of GPU detection on a host without GPUs.
const DETECTION_INTERVAL: Duration = Duration::from_mins(1);

/// Longest interval between two checks of the lease.
const LEASE_INTERVAL: Duration = Duration::from_millis(500);

/// Bounds of the heartbeat timeout, which must leave time for another attempt within the lease.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest delay after an unanswered heartbeat.
const LONGEST_RETRY: Duration = Duration::from_secs(2);

pub(crate) struct HeartbeatSender {
    pub(crate) settings: Arc<AgentSettings>,
    pub(crate) sessions: Sessions,
    pub(crate) tasks: Tasks,
    pub(crate) lease: Lease,
    pub(crate) gpus: Arc<GpuWatch>,
}

impl HeartbeatSender {
    /// Sends heartbeats while a session exists; never ends.
    pub(crate) async fn run(self) {
        let mut current = self.sessions.subscribe();
        let every = self.settings.heartbeat_interval;
        let retry = (every / 5).clamp(Duration::from_millis(50), LONGEST_RETRY);
        loop {
            let Ok(session) =
                current.wait_for(Option::is_some).await.map(|session| session.clone())
            else {
                return;
            };
            let Some(session) = session else { continue };
            match self.send(&session).await {
                Ok(()) => {
                    // A new session gets its first heartbeat at once.
                    tokio::select! {
                        () = sleep(every) => {}
                        _ = current.changed() => {}
                    }
                }
                Err(error) => {
                    debug!(%error, "heartbeat failed");
                    self.sessions.end_if_rejected(&session, &error);
                    sleep(retry).await;
                }
            }
        }
    }

    async fn send(&self, session: &Session) -> Result<(), ClientError> {
        let heartbeat = facts::heartbeat(&session.node_id, &self.settings, &self.tasks, &self.gpus);
        let sent = boot_ms();
        let timeout = self.settings.heartbeat_interval.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT);
        let node = session.client.heartbeat(&session.node_id, &heartbeat, timeout).await?;
        self.lease.renew(sent, self.settings.lease(&node));
        self.gpus.set_cordoned(&node.cordoned_gpus);
        Ok(())
    }
}

/// Stops leased tasks when the lease expires. The guardian does the same should this agent hang.
pub(crate) async fn watch_lease(lease: Lease, tasks: Tasks) {
    loop {
        sleep(LEASE_INTERVAL.min(lease.check_interval())).await;
        if let Some(expired_ms) = lease.expired_at() {
            tasks.stop_leased(expired_ms);
        }
    }
}

/// Samples the GPUs once a second; stops tasks that hold far more GPU memory than their share, and tasks that a driver
/// error of their own asks to restart.
pub(crate) async fn watch_gpus(gpus: Arc<GpuWatch>, tasks: Tasks) {
    let mut restarts = Restarts::default();
    loop {
        sleep(if gpus.instances().is_empty() { DETECTION_INTERVAL } else { GPU_INTERVAL }).await;
        let any = !gpus.instances().is_empty();
        let loads = if any { tasks.gpu_loads().await } else { Vec::new() };
        for over in gpus.tick(&loads).await {
            warn!(key = %over.key, "{over}");
            tasks.stop_over_share(&over);
        }
        for fault in gpus.take_application_faults() {
            warn!(gpu = fault.uuid, "{}", fault.message);
            restarts.record(&fault, &tasks, Instant::now());
        }
        restarts.stop_due(&tasks, Instant::now());
    }
}

impl Tasks {
    async fn gpu_loads(&self) -> Vec<TaskLoad> {
        let mut loads = Vec::new();
        for task in self.live() {
            let grants = &task.assignment.gpus;
            // Containers without GPUs have no device files.
            let watched = !grants.is_empty() || task.assignment.runtime == RuntimeKind::Process;
            if !watched || task.started.get().is_none() {
                continue;
            }
            // No process of a task uses a simulated GPU.
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

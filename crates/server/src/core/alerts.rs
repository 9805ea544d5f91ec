//! Facts for the alert rules, and the storage of their state. The rules are in the crate `agentaflow-alerts`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::TryLockError;
use std::time::Duration;

use agentaflow_alerts::{
    BudgetFacts, ClusterFacts, Facts, GpuFacts, JobFacts, NodeFacts, QueueFacts, SchedulerFacts,
    State as AlertsState, Transition, TransitionKind,
};
use agentaflow_api::account::Role;
use agentaflow_api::alert::AlertSubject;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, UserId};
use agentaflow_api::job::JobStatus;
use agentaflow_api::node::{GpuInstance, GpuStatus, NodeStatus};
use agentaflow_api::units::Stamp;
use serde_json::{Map, Value};

use super::handle::Core;
use super::journal::EventSubject;
use super::node::{NodeView, gpu_id};
use super::state::State;
use crate::api_error::ApiError;
use crate::store::Change;

/// Key of the state of the alerts in the store.
pub(super) const ALERTS: &str = "alerts";

/// A reading of a node that is not active counts as old after this time.
const STALE: Duration = Duration::from_mins(1);
/// Attempts to take the core's lock, and the pause between them.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Collects facts. Facts that need the core's lock are kept, so that a core that holds it for long raises an alert.
#[derive(Debug, Default)]
pub(crate) struct AlertFacts {
    queues: Vec<QueueFacts>,
}

impl AlertFacts {
    pub(crate) async fn collect(&mut self, core: &Core) -> Facts {
        for _ in 0..TRIES {
            if let Some(queues) = core.queue_facts() {
                self.queues = queues;
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let mut facts = core.published_facts();
        facts.queues.clone_from(&self.queues);
        facts
    }
}

impl Core {
    /// Stored state of the alerts; the default for a new server, or if it cannot be read.
    pub(crate) fn stored_alerts(&self) -> AlertsState {
        let Some(text) = &self.inner.lock().alerts else { return AlertsState::default() };
        serde_json::from_str(text).unwrap_or_else(|error| {
            tracing::warn!(%error, "Stored alerts cannot be read; firing alerts are sent again");
            AlertsState::default()
        })
    }

    /// Stores the state of the alerts together with the events of their changes.
    pub(crate) async fn save_alerts(
        &self,
        text: String,
        transitions: Vec<Transition>,
    ) -> Result<(), ApiError> {
        self.change(move |state| {
            for transition in transitions {
                state.alert_event(&transition);
            }
            state.alerts = Some(text.clone());
            state.journal.write(Change::Meta(ALERTS, text));
            Ok(())
        })
        .await
    }

    /// Oldest pending job of each queue; none while the lock is held.
    fn queue_facts(&self) -> Option<Vec<QueueFacts>> {
        let state = match self.inner.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(state.oldest_pending())
    }

    fn published_facts(&self) -> Facts {
        let now = self.now();
        let views = self.inner.published.node_views();
        let names: BTreeMap<UserId, String> = self.directory(|directory| {
            directory.users.values().map(|user| (user.id, user.username.clone())).collect()
        });
        let mut facts = Facts::default();
        let (mut sum, mut readings) = (0.0, 0u32);
        for view in &views {
            let status = view.status();
            facts.nodes.push(node_facts(view, status));
            let stale = is_stale(view, status, now);
            for (position, gpu) in view.node().spec.gpu_instances.iter().enumerate() {
                if let Some(utilization) = gpu.utilization.filter(|_| !stale) {
                    sum += utilization;
                    readings += 1;
                }
                facts.gpus.push(gpu_facts(view, gpu, position, stale, &names));
            }
        }
        let pending = self.inner.published.queue_views();
        let pending = pending.iter().map(|queue| u64::from(queue.jobs.pending)).sum();
        let utilization = (readings > 0).then(|| sum / f64::from(readings));
        facts.cluster = Some(ClusterFacts { utilization, pending });
        facts.budgets = self.budget_facts(now);
        let turn = self.inner.activity.last_turn();
        facts.scheduler = turn.map(|last_turn| SchedulerFacts { last_turn });
        facts
    }

    fn budget_facts(&self, now: Stamp) -> Vec<BudgetFacts> {
        let users: Vec<_> = self.directory(|directory| {
            let limited = directory.users.values().filter(|user| {
                user.prepaid || user.spending_limit.is_some() && user.role != Role::Viewer
            });
            limited
                .map(|user| (user.id, user.username.clone(), user.prepaid, user.spending_limit))
                .collect()
        });
        let budget = |(id, user, prepaid, limit): (UserId, String, bool, Option<_>)| {
            let account = self.inner.published.account(id, now, self.inner.clock);
            let spent = account.spent_this_month.0;
            // A prepaid user may spend the balance, which is what is left of the payments.
            let prepaid = prepaid.then(|| spent.saturating_add(account.balance.0.max(0)));
            let limit: Option<agentaflow_api::MicroUsd> = limit;
            let limit = [prepaid, limit.map(|limit| limit.0)].into_iter().flatten().min()?;
            Some(BudgetFacts { user, spent, limit })
        };
        users.into_iter().filter_map(budget).collect()
    }
}

impl State {
    /// Oldest pending job of each queue; jobs that wait for a budget are left out.
    fn oldest_pending(&self) -> Vec<QueueFacts> {
        let mut missing: BTreeSet<&str> = self.jobs.pending_queues().collect();
        let mut queues = Vec::new();
        // Jobs are in the order of their submission, so that the oldest ones are found early.
        for job in self.jobs.iter() {
            if missing.is_empty() {
                break;
            }
            let waits = job.state.status == JobStatus::Pending && job.state.gate.is_none();
            if waits && missing.remove(job.queue.as_str()) {
                // A requeued job waits since it was requeued.
                let since =
                    if job.state.epoch == 0 { job.created_at } else { job.state.updated_at };
                queues.push(QueueFacts { name: job.queue.clone(), oldest_pending: Some(since) });
            }
        }
        queues
    }

    fn alert_event(&mut self, transition: &Transition) {
        let alert = &transition.alert;
        let kind = match transition.kind {
            TransitionKind::Fired | TransitionKind::Escalated => EventKind::AlertFiring,
            TransitionKind::Resolved => EventKind::AlertResolved,
        };
        let message = match transition.kind {
            TransitionKind::Resolved => format!("Resolved: {}", alert.summary),
            _ => alert.summary.clone(),
        };
        let data = [
            ("alert", alert.id.as_str()),
            ("kind", alert.kind.as_str()),
            ("severity", alert.severity.as_str()),
        ];
        let data: Map<String, Value> =
            data.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect();
        let subject = EventSubject { data, ..self.alert_subject(&alert.subject) };
        if let Some(user) = subject.user {
            self.storage.account(user).add(message.len() as u64);
        }
        self.journal.record_event(kind, message, subject);
    }

    fn alert_subject(&self, subject: &AlertSubject) -> EventSubject {
        let job = subject.job.as_deref().and_then(|job| job.parse().ok()).map(JobId);
        let node = subject.node.as_deref().and_then(|name| self.nodes.registered_as(name));
        let user = subject.user.as_deref().and_then(|name| {
            let directory = self.directory.read();
            directory.users.values().find(|user| user.username == name).map(|user| user.id)
        });
        EventSubject {
            // The event of a job that has ended meanwhile would not be deleted with it.
            job: job.filter(|job| self.jobs.get(*job).is_some()),
            user,
            node: node.map(|node| node.row().node_id.clone()),
            data: Map::new(),
        }
    }
}

fn node_facts(view: &NodeView, status: NodeStatus) -> NodeFacts {
    NodeFacts {
        name: view.node().spec.node_name.clone(),
        // A node in maintenance may be powered off, and a new node has not reported yet.
        silent: status == NodeStatus::Inactive,
        unknown: !view.is_settled(),
        last_report: view.node().last_heartbeat,
    }
}

fn is_stale(view: &NodeView, status: NodeStatus, now: Stamp) -> bool {
    match status {
        _ if !view.is_settled() => true,
        NodeStatus::Active | NodeStatus::Error => false,
        NodeStatus::Pending | NodeStatus::Inactive => true,
        NodeStatus::Maintenance => view
            .node()
            .last_heartbeat
            .is_none_or(|last| now.0.saturating_sub(last.0) > STALE.as_millis() as i64),
    }
}

fn gpu_facts(
    view: &NodeView,
    gpu: &GpuInstance,
    position: usize,
    stale: bool,
    names: &BTreeMap<UserId, String>,
) -> GpuFacts {
    let index = gpu.gpu_index.unwrap_or(position as u32);
    let holder = view.holders().iter().find(|holder| holder.gpu == index);
    // The whole memory of a simulated GPU counts as used by its job.
    let used = gpu.gpu_memory.zip(gpu.gpu_memory_available).filter(|_| !view.node().spec.simulated);
    let failed = gpu.status == Some(GpuStatus::Error);
    GpuFacts {
        node: view.node().spec.node_name.clone(),
        gpu: gpu_id(gpu, position).to_string(),
        stale,
        // Driver and memory errors have rules of their own.
        lost: failed && gpu.xid.is_none() && gpu.ecc_errors.unwrap_or(0) == 0,
        problem: gpu.problem.clone(),
        xid: gpu.xid,
        ecc_errors: gpu.ecc_errors,
        temperature: gpu.temperature,
        power: gpu.power_usage,
        power_limit: gpu.power_limit,
        utilization: gpu.utilization,
        memory_used: used.map(|(all, free)| all.saturating_sub(free)),
        memory_total: gpu.gpu_memory,
        job: holder.map(|holder| JobFacts {
            job: holder.job.to_string(),
            user: names.get(&holder.user).cloned(),
        }),
    }
}

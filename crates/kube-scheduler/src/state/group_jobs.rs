//! Jobs whose pods belong to a pod group.
//!
//! Such a job is no unit: its controller creates the pods, and the group starts when enough of them exist. When they do not
//! come while other gangs of the namespace lack pods, too, the job takes turns with them. It is suspended, so that its
//! controller deletes the pods without counting them as failed, and resumed in its turn. The pending reason on the job shows
//! a new leader that the job waits.

use agentaflow_engine::WorkloadId;
use agentaflow_kube_core::names;

use super::ClusterState;
use super::action::Key;
use super::membership::{group_id, pod_group};
use super::parked::Parked;
use super::turns::namespace_of;
use crate::controller::EventType;

impl ClusterState {
    /// The gang of an active job that names a pod group.
    pub(super) fn group_of_job(&self, id: &WorkloadId) -> Option<WorkloadId> {
        let unit = self.units.get(id).filter(|unit| unit.is_active())?;
        let spec = self.units.spec(unit);
        let set = self.lookup().opt_in().grouped_set(&unit.object, &spec)?;
        Some(group_id(&Key::new(&unit.key.namespace, pod_group(&set.template)?)))
    }

    pub(super) fn sync_group_job(&mut self, id: &WorkloadId, gang: &WorkloadId) {
        let Some(unit) = self.units.get(id) else { return };
        if unit.spec.suspended {
            let annotations = unit.object.metadata.annotations.as_ref();
            let has_reason = annotations.is_some_and(|all| all.contains_key(names::UNIT_REASON));
            if has_reason || unit.failures() > 0 {
                self.resume_in_turn(id);
            }
            return;
        }
        self.report_parked_unit(id, Ok(None));
        let (now, detached) = (self.engine.now(), self.placed_detached(gang));
        let count = self.gangs.get(gang).map(|gang| {
            let have = gang.members.len() as u32 + detached;
            (have, gang.min_members, gang.placed || have >= gang.min_members)
        });
        let (have, need, is_complete) = count.unwrap_or((0, 1, false));
        if is_complete {
            self.units.record_all_pods(id);
            self.forget_turn_of(id);
        } else if self.units.is_late(id, need, now) {
            if self.others_lack_pods(id) {
                self.suspend_incomplete_job(id, have, need);
            } else {
                // Pods may be missing for another reason.
                self.units.restart_deadline(id, need, now);
            }
        }
    }

    fn others_lack_pods(&self, id: &WorkloadId) -> bool {
        let namespace = namespace_of(id);
        self.turns.are_taken(namespace)
            || self.units.awaiting_pods(namespace, Some(id)).is_some()
            || self.workloads.incomplete_gangs(namespace).next().is_some()
    }

    fn suspend_incomplete_job(&mut self, id: &WorkloadId, have: u32, need: u32) {
        self.units.back_off(id, self.engine.now());
        self.turns.record_missing_pods(id);
        let message = format!(
            "{have} of {need} pods exist, and other gangs of the namespace lack pods; suspended to take turns"
        );
        let Some(unit) = self.units.get_mut(id) else { return };
        unit.request_suspension(message.clone());
        self.actions.push(unit.event(EventType::Warning, "NotStarted", message));
        self.write_suspend(id, true);
    }

    fn resume_in_turn(&mut self, id: &WorkloadId) {
        let Some(unit) = self.units.get(id) else { return };
        let waits = unit.retry_at.is_some_and(|until| until > self.engine.now());
        let failures = unit.failures();
        let turn = if waits { Err(Parked::StartBackoff { failures }) } else { self.job_turn(id) };
        match turn {
            Err(reason) => {
                self.report_parked_unit(id, Err(reason));
            }
            Ok(()) => {
                self.write_suspend(id, false);
            }
        }
    }
}

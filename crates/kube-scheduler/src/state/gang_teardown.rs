//! A pod leaves its workload. A gang starts whole or not at all: one that loses a pod before it runs is taken back.

use agentaflow_engine::{Event, Time, WorkloadId};

use super::ClusterState;
use super::action::{Action, Key};
use super::pod_entry::{BindingState, PodState, is_finished, is_leaving};
use super::workloads::PATIENCE;

impl ClusterState {
    /// A pod leaves its workload: it is over, gone, or changed.
    pub(super) fn leave_group(
        &mut self,
        key: &Key,
        id: &WorkloadId,
        task: u32,
        seat: &BindingState,
    ) {
        let Some(group) = self.groups.get_mut(id) else { return };
        if group.members.get(&task) != Some(key) {
            return;
        }
        group.members.remove(&task);
        // A pod that goes before it is bound breaks its gang: the others must not start without it.
        let breaks =
            group.need > 1 && !group.breaking && matches!(seat, BindingState::Binding { .. });
        if breaks {
            (group.breaking, group.placed) = (true, false);
        }
        let others: Vec<Key> = group.members.values().cloned().collect();
        let (empty, breaking) = (group.members.is_empty(), group.breaking);
        let waits = !group.placed;
        if *seat != BindingState::Pending {
            let (workload, known) = (id.clone(), group.known);
            let event = if breaking {
                Event::TaskStopped { workload, task }
            } else {
                Event::TaskFinished { workload, task }
            };
            if known {
                self.tell(event);
            }
        }
        if empty {
            self.forget_group(id);
            if self.engine.workload(id).is_some() {
                self.tell(Event::Cancelled(id.clone()));
            }
            self.wake_waiters(id);
        } else if breaking {
            if breaks {
                self.delete_bound(&others);
            }
            self.mend(id);
        } else {
            self.regroup(id);
            if waits {
                // Whoever waited for the first pods of the gang may be one of them now.
                self.wake_waiters(id);
            }
        }
    }

    /// A binding failed for good. A gang starts whole or not at all: what is bound of it goes.
    pub(super) fn refuse(&mut self, key: &Key, id: &WorkloadId, task: u32, node: &str, why: &str) {
        self.note_pod(key, true, "FailedBinding", format!("cannot be bound to node {node}: {why}"));
        let Some(group) = self.groups.get_mut(id) else { return };
        let (gang, was_breaking) = (group.need > 1, group.breaking);
        group.breaking |= gang;
        group.placed = false;
        let others: Vec<Key> =
            group.members.values().filter(|other| *other != key).cloned().collect();
        self.set_seat(key, BindingState::Pending);
        self.stuck.insert(key.clone());
        let (workload, task) = (id.clone(), task);
        self.tell(if was_breaking {
            Event::TaskStopped { workload, task }
        } else {
            Event::PlacementRefused { workload, task }
        });
        if gang && !was_breaking {
            self.delete_bound(&others);
        }
        if gang {
            self.mend(id);
        }
    }

    pub(super) fn delete_bound(&mut self, members: &[Key]) {
        for key in members {
            if self.is_bound(key) {
                self.delete_pod(key, None);
            }
        }
    }

    /// Asks for a pod's deletion.
    pub(super) fn delete_pod(&mut self, key: &Key, grace: Option<u32>) {
        if let Some(entry) = self.pods.get(key) {
            self.acts.push(Action::Delete { pod: entry.reference(key), grace });
            self.sent_away.insert(key.clone(), Time(self.now.0 + PATIENCE));
        }
    }

    /// Pods that should have gone and stay are asked again: the API server may have refused it, and their gang waits for
    /// that. Says when the next are due.
    pub(super) fn send_away_again(&mut self) -> Option<Time> {
        let due: Vec<Key> = self
            .sent_away
            .iter()
            .filter(|(_, until)| **until <= self.now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.sent_away.remove(&key);
            let pod = self.pods.get(&key).and_then(|entry| entry.pod.as_ref());
            if pod.is_some_and(|pod| !is_leaving(pod) && !is_finished(pod)) {
                self.delete_pod(&key, None);
            }
        }
        self.sent_away.values().copied().min()
    }

    pub(super) fn is_bound(&self, key: &Key) -> bool {
        let place = self.pods.get(key).map(|entry| &entry.place);
        matches!(place, Some(PodState::Member { seat: BindingState::Bound(_), .. }))
    }

    /// When nothing of a broken gang is on a node any more, it gathers again.
    fn mend(&mut self, id: &WorkloadId) {
        let Some(group) = self.groups.get(id) else { return };
        let seated = group.members.values().any(|key| !self.is_waiting(key));
        if let Some(group) = self.groups.get_mut(id).filter(|_| !seated) {
            (group.breaking, group.placed) = (false, false);
            self.regroup(id);
            self.wake_waiters(id);
        }
    }
}

//! `Scheduler::apply`: validates an event and dispatches to one function per event.

use std::sync::Arc;

use crate::model::error::Rejected;
use crate::model::event::{Demand, Event};
use crate::model::name::{NodeId, WorkloadId};
use crate::model::policy::Queue;
use crate::model::units::Time;
use crate::state::cluster::NodeIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

impl Scheduler {
    /// Applies an event. Time is monotonic: an event from the past counts as happening now.
    pub fn apply(&mut self, at: Time, event: Event) -> Result<(), Rejected> {
        self.advance(at);
        match event {
            Event::NodeUpdated(node) => self.update_node(*node),
            Event::NodeLost(node) => self.node_index(&node).map(|node| self.mark_node_lost(node)),
            Event::NodeRemoved(node) => self.node_index(&node).map(|node| self.remove_node(node)),
            Event::Cordon { node, on } => self.node_index(&node).map(|node| {
                self.cluster.node_state_mut(node).cordoned = on;
                self.refresh_state(node);
                self.replan_reservation_on(node);
            }),
            Event::Drain { node, on } => self.node_index(&node).map(|node| self.drain(node, on)),
            Event::SpotReclaim { node, at } => {
                self.node_index(&node).map(|node| self.reclaim_spot(node, at))
            }
            Event::GpuHealth { node, gpu, health } => {
                let number = self.node_index(&node)?;
                self.gpu_index(number, &gpu)?;
                self.set_health(number, &gpu, health);
                Ok(())
            }
            Event::Utilization { node, readings } => self.read_utilization(&node, readings),
            Event::ForeignUseUpdated { node, id, usage: uses } => {
                self.update_foreign_use(&node, id, *uses)
            }
            Event::ForeignUseRemoved { node, id } => self.remove_foreign_use(&node, id),
            Event::ForeignDemandUpdated { id, demand } => {
                self.set_foreign_demand(id, demand.map(|demand| *demand))
            }
            Event::PolicyUpdated(policy) => {
                self.set_policy(*policy);
                Ok(())
            }
            Event::StrategyUpdated(strategy) => {
                let policy = crate::model::policy::Policy { strategy, ..self.policy.clone() };
                self.set_policy(policy);
                Ok(())
            }
            Event::QueueUpdated(queue) => self.set_queue(*queue),
            Event::QueueRemoved(queue) => {
                let number = self
                    .queues
                    .find(&queue)
                    .ok_or_else(|| Rejected::UnknownQueue(queue.clone()))?;
                self.queues.remove(number).map_err(|why| Rejected::Queue { queue, why })
            }
            Event::BudgetUpdated { id, allowed } => {
                self.budgets.insert(id, allowed);
                self.retry_blocked = true;
                Ok(())
            }
            Event::BudgetRemoved(id) => {
                self.budgets.remove(&id).ok_or(Rejected::UnknownBudget(id))?;
                self.retry_blocked = true;
                Ok(())
            }
            Event::DemandUpdated(demand) => {
                demand.iter().flatten().try_for_each(Demand::validate)?;
                self.expectation.pin(demand);
                Ok(())
            }
            other => self.apply_to_workload(other),
        }
    }

    fn apply_to_workload(&mut self, event: Event) -> Result<(), Rejected> {
        match event {
            Event::Submitted(workload) => self.submit(workload).map(|_| ()),
            Event::Adopted(adopted) => self.adopt(*adopted),
            Event::GateChanged { workload, gate } => {
                let index = self.workload_index(&workload)?;
                self.set_gate(index, gate);
                Ok(())
            }
            Event::Cancelled(workload) | Event::Finished(workload) => {
                let index = self.workload_index(&workload)?;
                self.finish(index);
                Ok(())
            }
            Event::Requeued(workload) => {
                let index = self.workload_index(&workload)?;
                if self.workloads.get(index).allocations().next().is_none() {
                    return Err(Rejected::NotPlaced { workload, task: 0 });
                }
                self.requeue(index);
                Ok(())
            }
            Event::TaskFinished { workload, task } => {
                let index = self.started_workload(&workload, task)?;
                self.finish_task(index, task);
                Ok(())
            }
            Event::TaskLost { workload, task } => {
                let index = self.started_workload(&workload, task)?;
                self.lose_task(index, task);
                Ok(())
            }
            Event::TaskReplaced { workload, task } => {
                let index = self.started_workload(&workload, task)?;
                let replaced = self.replace_task(index, task);
                replaced.then_some(()).ok_or(Rejected::NotPlaced { workload, task })
            }
            Event::PlacementConfirmed { workload, task } => {
                let index = self.placed_workload(&workload, task)?;
                self.confirm_placement(index, task);
                Ok(())
            }
            Event::PlacementRefused { workload, task } => self
                .placed_workload(&workload, task)
                .map(|index| self.refuse_placement(index, task)),
            Event::DevicesReported { workload, task, gpus } => {
                let index = self.placed_workload(&workload, task)?;
                self.set_devices(index, task, &gpus)
            }
            Event::TaskTerminating { workload, task } => {
                let index = self.placed_workload(&workload, task)?;
                self.mark_terminating(index, task);
                self.preemptible.remove(&index);
                Ok(())
            }
            Event::Nominated { workload, nodes } => self.nominate(&workload, &nodes),
            Event::WorkloadBudgetsUpdated { workload, budgets } => {
                let index = self.workload_index(&workload)?;
                Arc::make_mut(&mut self.workloads.get_mut(index).spec).budgets = budgets;
                self.retry_blocked = true;
                Ok(())
            }
            Event::TaskStopped { workload, task } => {
                self.placed_workload(&workload, task).map(|index| self.task_stopped(index, task))
            }
            _ => unreachable!("events about nodes, queues and policy are handled above"),
        }
    }

    fn set_queue(&mut self, queue: Queue) -> Result<(), Rejected> {
        queue.validate()?;
        let id = queue.id.clone();
        self.queues.set(queue).map_err(|why| Rejected::Queue { queue: id, why })?;
        self.retry_blocked = true;
        Ok(())
    }

    pub(crate) fn node_index(&self, node: &NodeId) -> Result<NodeIdx, Rejected> {
        self.cluster.find_node(node).ok_or_else(|| Rejected::UnknownNode(node.clone()))
    }

    pub(crate) fn workload_index(&self, workload: &WorkloadId) -> Result<WorkloadIdx, Rejected> {
        self.workloads.find(workload).ok_or_else(|| Rejected::UnknownWorkload(workload.clone()))
    }

    /// Index of the workload, provided that this task is placed.
    fn placed_workload(&self, workload: &WorkloadId, task: u32) -> Result<WorkloadIdx, Rejected> {
        let index = self.workload_index(workload)?;
        let entry = self.workloads.get(index);
        let slot = entry.tasks.get(task as usize).ok_or_else(|| Rejected::UnknownTask {
            workload: workload.clone(),
            task,
            tasks: entry.count(),
        })?;
        if slot.is_occupied() {
            Ok(index)
        } else {
            Err(Rejected::NotPlaced { workload: workload.clone(), task })
        }
    }

    /// Index of the workload, provided that this task is placed or lost.
    fn started_workload(&self, workload: &WorkloadId, task: u32) -> Result<WorkloadIdx, Rejected> {
        let index = self.workload_index(workload)?;
        let slot = self.workloads.get(index).tasks.get(task as usize);
        match slot {
            Some(slot) if slot.lost.is_some() => Ok(index),
            _ => self.placed_workload(workload, task),
        }
    }
}

//! Turns bookings and wait reasons into decisions of the plan.

use std::sync::Arc;

use crate::model::decision::{Decision, GpuAllocation, GpuAssignment, GpuShare, Placement};
use crate::model::node::DeviceSelection;
use crate::model::request::MigProfile;
use crate::model::wait::WaitReason;
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{TaskAllocation, WorkloadIdx};

use crate::pass::decide::Pass;

impl Scheduler {
    pub(crate) fn push_placements(&self, workload: WorkloadIdx, pass: &mut Pass) {
        let workload = self.workloads.get(workload);
        for (task, allocation) in workload.allocations() {
            pass.decisions.push(Decision::Place(Placement {
                workload: workload.spec.id.clone(),
                task,
                node: self.cluster.node_state(allocation.node).spec.id.clone(),
                gpus: self.gpu_assignment(allocation),
            }));
        }
    }

    /// GPUs of an allocation: a count when the node chooses the devices and has not reported them.
    pub(crate) fn gpu_assignment(&self, allocation: &TaskAllocation) -> GpuAssignment {
        if self.cluster.node_state(allocation.node).spec.device_selection == DeviceSelection::Node
            && !allocation.devices_known
        {
            return GpuAssignment::Count(allocation.claim.devices.len() as u32);
        }
        GpuAssignment::Devices(self.gpu_allocations(allocation.node, &allocation.claim))
    }

    pub(crate) fn gpu_allocations(&self, node: u32, claim: &Claim) -> Vec<GpuAllocation> {
        let spec = &self.cluster.node_state(node).spec;
        let part = |claim: &DeviceClaim| {
            let device = &self.cluster.room(node).devices[usize::from(claim.device)];
            let part = match (claim.slice, device.geometry) {
                (Some((profile, start)), Some(geometry)) => {
                    let name = geometry.get(profile).map_or("", |profile| profile.name);
                    MigProfile::new(name)
                        .map_or(GpuShare::Whole, |profile| GpuShare::MigSlice { profile, start })
                }
                _ if claim.milli >= 1000 => GpuShare::Whole,
                _ => GpuShare::Fraction {
                    milli: claim.milli as u32,
                    mib: crate::model::units::MiB(claim.mib as u64),
                },
            };
            GpuAllocation { gpu: spec.gpus[usize::from(claim.device)].id.clone(), share: part }
        };
        claim.devices.iter().map(part).collect()
    }

    /// Reports the reason of newly blocked workloads, oldest first.
    pub(crate) fn report_wait_reasons(&mut self, decisions: &mut Vec<Decision>) {
        let (news, reasons) = self.pending.take_unreported();
        decisions.reserve(news.len());
        for (_, workload, reason) in news {
            self.report_wait_reason(workload, &reasons[reason], decisions);
        }
    }

    /// Reports a wait reason when its class differs from the last reported one.
    pub(crate) fn report_wait_reason(
        &mut self,
        workload: WorkloadIdx,
        reason: &Arc<WaitReason>,
        decisions: &mut Vec<Decision>,
    ) {
        let workload = self.workloads.get_mut(workload);
        let class = reason.class();
        if workload.reported_class != Some(class) {
            workload.reported_class = Some(class);
            decisions.push(Decision::Wait {
                workload: workload.spec.id.clone(),
                reason: reason.clone(),
            });
        }
    }
}

//! Selects a machine: the requested one if it is sufficient, else the cheapest of the catalogue.

use super::names::{is_label_value, short};
use super::placement::{NodeRequest, Placement};
use super::{BuildError, refuse};
use crate::catalogue::{Catalogue, InstanceType, MachineRequirements};
use crate::cloud::{Cloud, Gpu};
use agentaflow_units::{did_you_mean, nearest};

impl Placement {
    /// Requested machine, or the best match.
    pub(super) fn instance<'a>(
        &self,
        ask: NodeRequest,
        catalogue: &'a Catalogue,
    ) -> Result<Option<&'a InstanceType>, BuildError> {
        let (gpu, cloud) = (self.model()?, self.cloud().instances());
        let NodeRequest { gpus, slices, cpu_milli, memory_mib } = ask;
        if let Some(name) = &self.instance_type {
            if name.is_empty() || !is_label_value(name) {
                return refuse("instance-type", format!("`{}` is not a machine type", short(name)));
            }
            let found = known(name, cloud, gpu, catalogue)?;
            found.map_or(Ok(()), |instance| self.check(instance, gpu, ask))?;
            return Ok(found);
        }
        let (Some(cloud), Some(gpu)) = (cloud, gpu) else { return Ok(None) };
        let need =
            MachineRequirements { gpu, gpus, slices, cpu_milli, memory_mib, spot: self.spot };
        if let Some(chosen) = catalogue.choose(cloud, &need) {
            return Ok(Some(chosen));
        }
        let Some(largest) = catalogue.largest(cloud, &need) else {
            let with = slices.map(|slices| format!(" with the profile {}", slices.profile));
            let (flag, with) = with.map_or(("gpu", String::new()), |with| ("mig", with));
            let what = format!("the GPU {}{with}", gpu.title);
            let why = format!("no {} machine of the catalogue has {what}", cloud.name());
            return refuse(flag, format!("{why}: use another, or add one with --catalogue"));
        };
        let needed = needed(ask, largest)?;
        let flag = match largest.allocatable() {
            _ if largest.gpus < needed => "gpus",
            (cpu, _) if cpu < cpu_milli => "cpu",
            _ => "memory",
        };
        let why = format!("no {} machine is large enough{}", cloud.name(), takes(ask, needed));
        refuse(flag, format!("{why}; the largest is {}", largest.describe(false)))
    }

    /// Checks that a requested machine is sufficient.
    fn check(
        &self,
        instance: &InstanceType,
        gpu: Option<&Gpu>,
        ask: NodeRequest,
    ) -> Result<(), BuildError> {
        let model = instance.model();
        let (cpu, memory) = instance.allocatable();
        let other = gpu.zip(model).is_some_and(|(gpu, model)| !gpu.takes(model));
        let needed = if other { 0 } else { needed(ask, instance)? };
        let fewer = format!("fewer GPUs{}", takes(ask, needed));
        let (flag, part) = if other {
            ("instance-type", "another GPU")
        } else if instance.gpus < needed {
            ("gpus", fewer.as_str())
        } else if cpu < ask.cpu_milli {
            ("cpu", "less CPU for pods")
        } else if memory < ask.memory_mib {
            ("memory", "less memory for pods")
        } else {
            return Ok(());
        };
        refuse(flag, format!("the machine has {part}: {}", instance.describe(self.spot)))
    }
}

/// Catalogue entry by name; some machines exist with several models.
pub(super) fn known<'a>(
    name: &str,
    cloud: Option<Cloud>,
    gpu: Option<&Gpu>,
    catalogue: &'a Catalogue,
) -> Result<Option<&'a InstanceType>, BuildError> {
    let mut all = catalogue.instances().iter().filter(|instance| instance.name == name);
    let serves = |instance: &InstanceType| {
        cloud.is_none_or(|cloud| instance.cloud == cloud)
            && gpu.zip(instance.model()).is_some_and(|(gpu, model)| gpu.takes(model))
    };
    let found = all.find(|instance| serves(instance)).or_else(|| catalogue.named(name, cloud));
    match (found, cloud, catalogue.named(name, None)) {
        (None, Some(cloud), Some(other)) => {
            let (own, wanted) = (other.cloud.name(), cloud.name());
            let why = format!("`{name}` is a machine of {own}, but --cloud is {wanted}");
            refuse("instance-type", why)
        }
        _ => Ok(found),
    }
}

/// Note about a machine that is not in the catalogue.
pub(super) fn unknown_machine_note(name: &str, catalogue: &Catalogue) -> String {
    let names = catalogue.instances().iter().map(|instance| instance.name.as_str());
    match nearest(name, names) {
        None => {
            format!("{name} is not in the catalogue and is not checked; add it with --catalogue")
        }
        near => format!("{name} is not in the catalogue{}", did_you_mean(near)),
    }
}

/// Note with the machine count for `pods` if some of their GPUs stay unused: machines are rented whole.
pub(super) fn unused_gpus_note(instance: &InstanceType, gpus: u32, pods: u32) -> Option<String> {
    let (has, gpus, pods) = (u64::from(instance.gpus), u64::from(gpus), u64::from(pods));
    let on_each = has.checked_div(gpus).filter(|on_each| *on_each > 0)?;
    let machines = pods.div_ceil(on_each);
    let free = (machines * has).checked_sub(pods * gpus).filter(|free| *free > 0)?;
    Some(if pods == 1 {
        format!("{free} of the {has} GPUs of {} stay available for other pods", instance.name)
    } else {
        let all = machines * has;
        let machines = format!("{machines} × {}", instance.name);
        format!(
            "{pods} pods of {gpus} GPUs need {machines}: {free} of {all} GPUs stay available for other pods"
        )
    })
}

/// GPUs of the machine that a pod needs.
fn needed(ask: NodeRequest, instance: &InstanceType) -> Result<u32, BuildError> {
    match (ask.slices, instance.model()) {
        (Some(slices), Some(gpu)) => slices.gpus(gpu).or_else(|error| {
            refuse("mig", format!("{error}; the machine is {}", instance.describe(false)))
        }),
        _ => Ok(ask.gpus),
    }
}

/// Description of the GPUs that slices need.
fn takes(ask: NodeRequest, gpus: u32) -> String {
    let slices = ask.slices.map(|slices| (slices.count, slices.profile));
    slices.map_or_else(String::new, |(count, profile)| {
        format!(" ({count} × {profile} need {gpus} of its GPUs)")
    })
}

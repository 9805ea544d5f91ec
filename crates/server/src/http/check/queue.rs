//! Queues.

use agentaflow_api::queue::{QueueSpec, QuotaSpec};

use super::{Checked, at_most, few, name, plain, refuse, refuse_both};
use crate::http::limits;

pub fn check_queue(queue: &QueueSpec) -> Checked {
    name("name", &queue.name, limits::NAME)?;
    if let Some(parent) = &queue.parent {
        name("parent", parent, limits::NAME)?;
        if *parent == queue.name {
            return refuse("parent", "must be another queue");
        }
    }
    at_most("weight", queue.weight, 1_000_000)?;
    if queue.weight == Some(0) {
        return refuse("weight", "must be 1 or more");
    }
    at_most("max_priority", queue.max_priority, 10)?;
    quota("guaranteed", &queue.guaranteed)?;
    quota("limit", &queue.limit)?;
    guarantee_within_limit(&queue.guaranteed, &queue.limit)?;
    few("users", queue.users.len(), limits::MEMBERS)?;
    queue.users.iter().try_for_each(|user| name("users", user, 64))
}

/// Rejects a guarantee that the limit of the same queue would never permit.
fn guarantee_within_limit(guaranteed: &QuotaSpec, limit: &QuotaSpec) -> Checked {
    fn check<T: PartialOrd + std::fmt::Display>(
        part: &str,
        guaranteed: Option<T>,
        limit: Option<T>,
    ) -> Checked {
        match (guaranteed, limit) {
            (Some(guaranteed), Some(limit)) if guaranteed > limit => refuse_both(
                &format!("guaranteed.{part}"),
                &format!("is {guaranteed}, above the value {limit} of"),
                &format!("limit.{part}"),
            ),
            _ => Ok(()),
        }
    }
    check("cpu_cores", guaranteed.cpu_cores, limit.cpu_cores)?;
    check("memory", guaranteed.memory, limit.memory)?;
    check("gpus", guaranteed.gpus, limit.gpus)?;
    guaranteed.gpu_types.iter().try_for_each(|(model, amount)| {
        let part = format!("gpu_types.{model}");
        check(&part, Some(*amount), limit.gpu_types.get(model).copied())
    })
}

fn quota(field: &str, quota: &QuotaSpec) -> Checked {
    let cpu = quota.cpu_cores.map(|cores| cores.0);
    let gpus = quota.gpus.map(|gpus| gpus.0);
    for (part, milli) in [("cpu_cores", cpu), ("gpus", gpus)] {
        if milli.is_some_and(|milli| milli > limits::CPU_MILLI) {
            let place = format!("{field}.{part}");
            return refuse(&place, "is more than any cluster has");
        }
    }
    at_most(&format!("{field}.memory"), quota.memory, limits::SIZE)?;
    let models = format!("{field}.gpu_types");
    few(&models, quota.gpu_types.len(), limits::ENTRIES)?;
    quota.gpu_types.iter().try_for_each(|(model, amount)| {
        plain(&models, model, limits::NAME)?;
        if model.trim().is_empty() {
            return refuse(&models, "has an empty name of a GPU model");
        }
        at_most(&models, Some(amount.0), limits::CPU_MILLI)
    })
}

//! Quota usage of claims, and the check against a quota.

use smallvec::SmallVec;

use crate::model::name::GpuModel;
use crate::model::policy::Quota;
use crate::model::wait::QuotaResource;
use crate::quota::queues::{GPU, QueueIdx, QueueState, QuotaAmounts};
use crate::state::cluster::Cluster;
use crate::state::cluster::room::{Claim, ModelIdx, ResIdx};

/// Quota usage: the sums in `base`, with details by model and named resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) base: QuotaAmounts,
    pub(crate) models: SmallVec<[(ModelIdx, i64); 2]>,
    pub(crate) named: Vec<(ResIdx, i64)>,
}

impl Charge {
    pub(crate) fn of(claim: &Claim) -> Self {
        let need = &claim.need;
        let mut charge =
            Self { base: need.amounts, models: SmallVec::new(), named: need.named.clone() };
        charge.base[GPU] = 0;
        for part in &claim.devices {
            charge.base[GPU] += part.charge();
            match charge.models.iter_mut().find(|entry| entry.0 == part.model) {
                Some(entry) => entry.1 += part.charge(),
                None => charge.models.push((part.model, part.charge())),
            }
        }
        charge
    }

    pub(crate) fn add(&mut self, other: &Self) {
        add(&mut self.base, &other.base, 1);
        for (model, milli) in &other.models {
            match self.models.iter_mut().find(|entry| entry.0 == *model) {
                Some(entry) => entry.1 += milli,
                None => self.models.push((*model, *milli)),
            }
        }
        for (resource, amount) in &other.named {
            match self.named.iter_mut().find(|entry| entry.0 == *resource) {
                Some(entry) => entry.1 += amount,
                None => self.named.push((*resource, *amount)),
            }
        }
    }
}

/// The exceeded limit and its amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) queue: QueueIdx,
    pub(crate) resource: QuotaResource,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) reserved: u64,
    pub(crate) requested: u64,
}

/// A minimal charge of every resource; tests for any quota left.
pub(crate) fn one_of_each(cluster: &Cluster) -> Charge {
    let models = (0..cluster.models.len() as ModelIdx).map(|model| (model, 1)).collect();
    Charge { base: [1; 4], models, named: Vec::new() }
}

/// The first part of a quota that usage, pledges and the charge exceed, with `[limit, used, pledged,
/// charged]`. With `only_charged`, resources without a charge are ignored.
pub(crate) fn exceeded(
    cluster: &Cluster,
    state: &QueueState,
    quota: &Quota,
    charge: &Charge,
    pledged: Option<&Charge>,
    only_charged: bool,
) -> Option<(QuotaResource, [i64; 4])> {
    let plain = [
        (quota.cpu, QuotaResource::Cpu),
        (quota.memory, QuotaResource::Memory),
        (quota.storage, QuotaResource::Storage),
        (quota.gpu, QuotaResource::Gpu),
    ];
    let over = |limit: u64, used: i64, kept: i64, asked: i64| {
        let counted = asked > 0 || (!only_charged && charge.base == [0; 4]);
        let total = used.saturating_add(kept).saturating_add(asked);
        (counted && total > limit as i64).then_some([limit as i64, used, kept, asked])
    };
    for (at, (limit, resource)) in plain.into_iter().enumerate() {
        let held = pledged.map_or(0, |pledged| pledged.base[at]);
        let found =
            limit.and_then(|limit| over(limit, state.total.used[at], held, charge.base[at]));
        if let Some(amounts) = found {
            return Some((resource, amounts));
        }
    }
    for (model, limit) in &quota.models {
        let held = pledged.into_iter().flat_map(|pledged| pledged.models.iter().copied());
        let held = by_model(cluster, model, held);
        let used = state.models.iter().map(|(model, amount)| (*model, *amount));
        let used = by_model(cluster, model, used);
        let asked = by_model(cluster, model, charge.models.iter().copied());
        if let Some(amounts) = over(*limit, used, held, asked) {
            return Some((QuotaResource::GpuModel(model.clone()), amounts));
        }
    }
    quota.resources.iter().find_map(|(name, limit)| {
        let of = |(resource, amount): (&ResIdx, &i64)| {
            if cluster.resource_name(*resource) == name { *amount } else { 0 }
        };
        let held = pledged.into_iter().flat_map(|pledged| pledged.named.iter());
        let held: i64 = held.map(|(resource, amount)| of((resource, amount))).sum();
        let used = state.named.iter().map(of).sum();
        let asked = charge.named.iter().map(|(resource, amount)| of((resource, amount))).sum();
        let amounts = over(*limit, used, held, asked)?;
        Some((QuotaResource::Named(name.clone()), amounts))
    })
}

/// The quota names this resource; for GPUs, every model in use.
pub(crate) fn names(cluster: &Cluster, state: &QueueState, quota: &Quota, at: usize) -> bool {
    let by_models = || {
        let used = state.models.iter().filter(|(_, amount)| **amount > 0);
        let named = |model: ModelIdx| {
            quota.models.keys().any(|name| cluster.models[usize::from(model)].serves(name))
        };
        !quota.models.is_empty() && used.into_iter().all(|(model, _)| named(*model))
    };
    match at {
        0 => quota.cpu.is_some(),
        1 => quota.memory.is_some(),
        GPU => quota.gpu.is_some() || by_models(),
        _ => quota.storage.is_some(),
    }
}

/// The quota names a charged resource: GPUs when the charge has any, otherwise any other resource.
pub(crate) fn covers(cluster: &Cluster, quota: &Quota, charge: &Charge) -> bool {
    if charge.base[GPU] > 0 || !charge.models.is_empty() {
        return quota.gpu.is_some() || !quota.models.is_empty();
    }
    let plain = [quota.cpu, quota.memory, quota.storage];
    let named = |(resource, amount): &(ResIdx, i64)| {
        *amount > 0 && quota.resources.contains_key(cluster.resource_name(*resource))
    };
    plain.iter().zip(charge.base).any(|(quota, asked)| quota.is_some() && asked > 0)
        || charge.named.iter().any(named)
}

/// Sum of the amounts of all models that match a quota's model name.
pub(crate) fn by_model(
    cluster: &Cluster,
    asked: &GpuModel,
    amounts: impl Iterator<Item = (ModelIdx, i64)>,
) -> i64 {
    amounts
        .filter(|(model, _)| cluster.models[usize::from(*model)].serves(asked))
        .map(|(_, amount)| amount)
        .sum()
}

pub(crate) fn add(used: &mut QuotaAmounts, charge: &QuotaAmounts, sign: i64) {
    for (used, amount) in used.iter_mut().zip(charge) {
        // Only absurd demands reach the bounds; real bookings do not.
        *used = used.saturating_add(sign * amount);
    }
}

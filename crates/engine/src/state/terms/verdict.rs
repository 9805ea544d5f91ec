//! Verdicts: the effect of affinity, spread and tokens on each node.

use super::Counts;
use std::collections::BTreeMap;

use crate::model::labels::Labels;
use crate::model::request::{AffinityKind, TaskAffinity, TokenAccess, TopologySpread};
use crate::state::cluster::fit::ShortfallCode;
use crate::state::cluster::{Domains, NodeIdx};

#[derive(Clone, Debug)]
pub(crate) struct TermVerdicts {
    /// By node index.
    pub(crate) verdicts: Vec<TermVerdict>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TermVerdict {
    pub(crate) shortfall: Option<ShortfallCode>,
    pub(crate) preference: i32,
}

impl TermVerdicts {
    pub(super) fn affinity(
        &mut self,
        term: &TaskAffinity,
        domains: &Domains,
        tasks: &Counts,
        first: bool,
    ) {
        let totals = by_domain(domains, tasks);
        for (verdict, domain) in self.verdicts.iter_mut().zip(&domains.of) {
            let here = domain.is_some_and(|domain| totals.contains_key(&domain));
            match (term.kind, term.weight) {
                (AffinityKind::Affinity, None) if !(here || first && domain.is_some()) => {
                    verdict.block(ShortfallCode::TaskAffinity);
                }
                (AffinityKind::AntiAffinity, None) if here => {
                    verdict.block(ShortfallCode::TaskAntiAffinity);
                }
                (AffinityKind::Affinity, Some(weight)) if here => {
                    verdict.preference += weight as i32;
                }
                (AffinityKind::AntiAffinity, Some(weight)) if here => {
                    verdict.preference -= weight as i32;
                }
                _ => {}
            }
        }
    }

    /// Terms of placed tasks that match the new task.
    pub(super) fn symmetric(&mut self, term: &TaskAffinity, domains: &Domains, owners: &Counts) {
        let totals = by_domain(domains, owners);
        for (verdict, domain) in self.verdicts.iter_mut().zip(&domains.of) {
            let there = domain.and_then(|domain| totals.get(&domain)).copied().unwrap_or(0) as i32;
            match (term.kind, term.weight) {
                _ if there == 0 => {}
                (AffinityKind::AntiAffinity, None) => {
                    verdict.block(ShortfallCode::TaskAntiAffinity);
                }
                (AffinityKind::Affinity, None) => verdict.preference += there,
                (AffinityKind::Affinity, Some(weight)) => {
                    verdict.preference += weight as i32 * there;
                }
                (AffinityKind::AntiAffinity, Some(weight)) => {
                    verdict.preference -= weight as i32 * there;
                }
            }
        }
    }

    pub(super) fn spread(
        &mut self,
        spread: &TopologySpread,
        domains: &Domains,
        tasks: &Counts,
        counts: &impl Fn(NodeIdx) -> bool,
        own: &Labels,
    ) {
        let mut totals: BTreeMap<u32, u32> = BTreeMap::new();
        for (node, domain) in domains.of.iter().enumerate() {
            if let Some(domain) = domain.filter(|_| counts(node as NodeIdx)) {
                *totals.entry(domain).or_default() +=
                    tasks.get(&(node as NodeIdx)).copied().unwrap_or(0);
            }
        }
        let emptiest =
            if (totals.len() as u32) < spread.min_domains { None } else { totals.values().min() };
        let emptiest = emptiest.copied().unwrap_or(0);
        let more = u32::from(spread.selector.matches(own));
        // A node outside all domains ranks below the fullest domain.
        let outside =
            (totals.values().max().copied().unwrap_or(0) + more + 1).saturating_sub(emptiest);
        for (verdict, domain) in self.verdicts.iter_mut().zip(&domains.of) {
            let Some(there) = domain.map(|domain| totals.get(&domain).copied().unwrap_or(0)) else {
                if spread.required {
                    verdict.block(ShortfallCode::TopologySpread);
                } else {
                    verdict.preference -= outside as i32;
                }
                continue;
            };
            let skew = (there + more).saturating_sub(emptiest);
            if !spread.required {
                verdict.preference -= skew as i32;
            } else if skew > spread.max_skew {
                verdict.block(ShortfallCode::TopologySpread);
            }
        }
    }

    pub(super) fn token(&mut self, usage: TokenAccess, holders: &Counts) {
        if holders.is_empty() {
            return;
        }
        for (node, verdict) in self.verdicts.iter_mut().enumerate() {
            if usage == TokenAccess::OneTask || !holders.contains_key(&(node as NodeIdx)) {
                verdict.block(ShortfallCode::Token);
            }
        }
    }
}

impl TermVerdict {
    fn block(&mut self, code: ShortfallCode) {
        self.shortfall.get_or_insert(code);
    }
}

fn by_domain(domains: &Domains, counts: &Counts) -> BTreeMap<u32, u32> {
    let mut totals = BTreeMap::new();
    for (node, count) in counts {
        if let Some(domain) = domains.of.get(*node as usize).copied().flatten() {
            *totals.entry(domain).or_default() += count;
        }
    }
    totals
}

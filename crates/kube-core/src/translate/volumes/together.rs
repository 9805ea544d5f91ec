//! Several claims of one pod that each need a volume on the same node.

use std::collections::BTreeSet;

use super::super::places::Places;
use super::{Volumes, matching};
use crate::slim::{PersistentVolume, PersistentVolumeClaim};

/// Most combinations of node sets compared.
const MAX_COMBINATIONS: usize = 1024;

/// Nodes with a distinct existing volume for each of these claims.
///
/// Volumes with many different node sets are combined only with equal node sets, which is sufficient for local
/// volumes.
pub(super) fn places(volumes: &Volumes, claims: &[&PersistentVolumeClaim]) -> Places {
    let choices: Vec<Choice<'_>> = claims.iter().map(|claim| Choice::of(volumes, claim)).collect();
    let sizes = choices.iter().map(|choice| choice.places().len());
    let combinations = sizes.fold(1_usize, usize::saturating_mul);
    let mut found = Vec::new();
    if combinations <= MAX_COMBINATIONS {
        combine(&choices, &mut Vec::new(), &mut found);
    } else {
        let same = choices[0].places();
        found
            .extend(same.into_iter().filter_map(|place| at(&choices, &vec![place; choices.len()])));
    }
    Places::union(found)
}

/// Candidate volumes of a claim, smallest first, with their nodes.
struct Choice<'a>(Vec<(&'a PersistentVolume, Places)>);

impl<'a> Choice<'a> {
    fn of(volumes: &'a Volumes, claim: &PersistentVolumeClaim) -> Self {
        let reach = |volume| Some((volume, matching::reachable(volume).ok()?));
        let candidates = matching::candidates(volumes, claim);
        let mut all: Vec<_> = candidates.into_iter().filter_map(reach).collect();
        all.sort_by_key(|(volume, _)| (matching::size(volume), volume.metadata.name.clone()));
        Self(all)
    }

    /// Distinct node sets.
    fn places(&self) -> Vec<&Places> {
        let mut places: Vec<&Places> = Vec::new();
        for (_, place) in &self.0 {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

fn combine<'a>(choices: &'a [Choice<'_>], chosen: &mut Vec<&'a Places>, found: &mut Vec<Places>) {
    let Some(next) = choices.get(chosen.len()) else {
        found.extend(at(choices, chosen));
        return;
    };
    for place in next.places() {
        chosen.push(place);
        combine(choices, chosen, found);
        chosen.pop();
    }
}

/// Intersection of these node sets, if each claim has its own volume in its set.
fn at(choices: &[Choice<'_>], places: &[&Places]) -> Option<Places> {
    let mut taken = BTreeSet::new();
    let mut all = Places::ANYWHERE;
    for (choice, place) in choices.iter().zip(places) {
        let free = choice
            .0
            .iter()
            .find(|(volume, there)| there == *place && !taken.contains(&volume.metadata.name));
        taken.insert(free?.0.metadata.name.clone());
        all = all.and((*place).clone()).ok()?;
    }
    Some(all)
}

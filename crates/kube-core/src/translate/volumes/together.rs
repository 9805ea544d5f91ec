//! Several claims of one pod, each of which needs a volume of its own on the same node.

use std::collections::BTreeSet;

use super::super::places::Places;
use super::{Volumes, matching};
use crate::slim::{PersistentVolume, PersistentVolumeClaim};

/// The most combinations of places that are looked at one by one.
const MAX_COMBINATIONS: usize = 1024;

/// The nodes on which each of these claims finds a volume of its own among those that are there.
///
/// Volumes of many different places are only combined with those of the very same place, which is all there is to
/// local volumes.
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

/// The volumes that can serve a claim, the smallest first, and where they are.
struct Choice<'a>(Vec<(&'a PersistentVolume, Places)>);

impl<'a> Choice<'a> {
    fn of(volumes: &'a Volumes, claim: &PersistentVolumeClaim) -> Self {
        let reach = |volume| Some((volume, matching::reachable(volume).ok()?));
        let candidates = matching::candidates(volumes, claim);
        let mut all: Vec<_> = candidates.into_iter().filter_map(reach).collect();
        all.sort_by_key(|(volume, _)| (matching::size(volume), volume.metadata.name.clone()));
        Self(all)
    }

    /// Each place once.
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

/// The nodes that are in all these places, if each claim has a volume of its own in its place.
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

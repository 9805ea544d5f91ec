//! Strategies: scores that decide the node and the devices of a task.
//!
//! A strategy only scores; it never books. Scores are integers and pure functions of the request shape and
//! the node's state, so they can be cached until the node changes. Higher is better; ties go to the first
//! node in order of rank and name.
//!
//! Open one strategy file as a model, then `demand.rs` and `frag/` for the strategies that look ahead. A new
//! strategy adds one file, one entry of `strategies!` and one arm of `consult`.

mod best_fit;
mod cheapest;
pub(crate) mod demand;
pub(crate) mod frag;
mod fragmentation;
mod least_utilized;
mod pack;
mod paper_best_fit;
mod round_robin;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::str::FromStr;

use crate::model::error::InvalidInput;
use crate::pass::index::shared::{Family, GpuClass};
use crate::pass::index::tree::UNFIT;
use crate::state::cluster::fit::{share_devices, whole_devices};
use crate::state::cluster::room::{Device, NO_LINK, Room};
use crate::state::cluster::shape::{GpuNeed, ModelVerdict, Shape};
use crate::strategy::frag::{Fgd, Value};

/// Declares [`Strategy`] with everything that other crates derive from it: names, descriptions, lists.
macro_rules! strategies {
    (
        $(#[$meta:meta])*
        pub enum Strategy {
            $($(#[$attribute:meta])* $variant:ident {
                name: $name:literal,
                offered: $offered:literal,
                description: $description:literal,
            },)+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub enum Strategy {
            $($(#[$attribute])* #[doc = $description] #[serde(rename = $name)] $variant,)+
        }

        impl Strategy {
            /// Every strategy, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in settings.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// One line for command help.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => $description,)+
                }
            }

            /// Workloads may name the strategy. The other strategies exist for comparison with published results.
            pub const fn is_offered(self) -> bool {
                match self {
                    $(Self::$variant => $offered,)+
                }
            }
        }
    };
}

strategies! {
    /// Rule that chooses GPUs among the fitting ones.
    pub enum Strategy {
        #[default]
        LeastUtilized {
            name: "least_utilized",
            offered: true,
            description: "Least utilized GPU, then least allocated",
        },
        BestFit {
            name: "best_fit",
            offered: true,
            description: "GPU with the least sufficient memory",
        },
        Priority {
            name: "priority",
            offered: true,
            description: "GPUs as `least_utilized`, jobs strictly by priority",
        },
        RoundRobin {
            name: "round_robin",
            offered: true,
            description: "Next GPU after the last allocated one",
        },
        LeastFragmented {
            name: "least_fragmented",
            offered: true,
            description: "Least loss of capacity for the expected demand",
        },
        Cheapest {
            name: "cheapest",
            offered: true,
            description: "Cheapest node",
        },
        Pack {
            name: "pack",
            offered: true,
            description: "Fullest node, keeping NVLink groups together",
        },
        Fgd {
            name: "fgd",
            offered: false,
            description: "Fragmentation gradient descent as published at ATC '23",
        },
        PaperBestFit {
            name: "bestfit",
            offered: false,
            description: "Best-fit baseline of the same paper",
        },
    }
}

impl Strategy {
    /// Strategies that a workload may name.
    pub fn offered() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|strategy| strategy.is_offered())
    }

    /// Names of all strategies.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().map(|strategy| strategy.name())
    }

    /// Scores depend on the expected demand.
    pub(crate) fn looks_ahead(self) -> bool {
        matches!(self, Self::LeastFragmented | Self::Fgd)
    }

    /// The score hardly depends on the shape, so one shared tree of bounds serves all shapes.
    pub(crate) fn has_bounds(self) -> bool {
        matches!(self, Self::LeastUtilized | Self::Priority | Self::RoundRobin)
    }

    /// Dispatches to the scorer of the strategy.
    fn consult<Q: Question>(self, question: Q) -> Q::Answer {
        match self {
            Self::LeastUtilized | Self::Priority => {
                question.evaluate(&least_utilized::LeastUtilized)
            }
            Self::BestFit => question.evaluate(&best_fit::BestFit),
            Self::RoundRobin => question.evaluate(&round_robin::RoundRobin),
            Self::LeastFragmented => question.evaluate(&fragmentation::LeastFragmented),
            Self::Cheapest => question.evaluate(&cheapest::Cheapest),
            Self::Pack => question.evaluate(&pack::Pack),
            Self::Fgd => question.evaluate(&fragmentation::ExactFgd),
            Self::PaperBestFit => question.evaluate(&paper_best_fit::PaperBestFit),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let known = Self::ALL.iter().copied().find(|strategy| strategy.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            InvalidInput::Strategy(text.chars().take(64).collect(), names.join(", "))
        })
    }
}

/// Input of a scorer: one candidate node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) room: &'a Room,
    pub(crate) shape: &'a Shape,
    pub(crate) scoring: &'a ScoringData,
}

impl View<'_> {
    /// The device is of the preferred model.
    fn likes(&self, device: &Device) -> bool {
        self.shape.model(device.model) == ModelVerdict::Preferred
    }
}

/// Input of scorers beyond the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScoringData {
    /// Shares avoid devices above this utilization step.
    pub(crate) goal: Option<u8>,
    pub(crate) fgd: Option<Fgd>,
    pub(crate) value: Option<Value>,
}

impl ScoringData {
    /// The tables of `fgd` and of `least_fragmented` exist.
    pub(crate) fn tables(&self) -> [bool; 2] {
        [self.fgd.is_some(), self.value.is_some()]
    }
}

/// Scores stay within ±2^38; preferences are added above that.
trait Scorer {
    /// Score of a task without GPU on this node.
    fn plain(&self, view: &View<'_>) -> i64;
    /// Score of `count` whole GPUs or slices on this node.
    fn whole(&self, view: &View<'_>, count: u16) -> i64;
    /// Score of a share on this device.
    fn share(&self, view: &View<'_>, device: &Device, mib: i32) -> i64;
    /// The best device for a share; the lowest index among equals.
    fn best_share(&self, view: &View<'_>) -> Option<(i64, usize)> {
        let mut best: Option<(bool, i64, usize)> = None;
        for (index, device, (_, mib)) in share_devices(view.shape, view.room) {
            let score = self.share(view, device, mib) - over_goal(view, device);
            let liked = view.likes(device);
            if best.is_none_or(|(also_liked, top, _)| (liked, score) > (also_liked, top)) {
                best = Some((liked, score, index));
            }
        }
        best.map(|(_, score, index)| (score, index))
    }
    /// Upper bound for any request of a family on this node; required for [`Strategy::has_bounds`].
    fn bound(&self, _room: &Room, _takes: GpuClass) -> i64 {
        i64::MAX
    }
    /// Order of free devices; smaller keys first.
    fn device_key(&self, _view: &View<'_>, _device: &Device) -> i64 {
        0
    }
}

/// A query to a scorer. The generic method compiles one copy per strategy, because scoring is the innermost
/// loop.
trait Question {
    type Answer;
    fn evaluate<S: Scorer>(self, scorer: &S) -> Self::Answer;
}

struct NodeScore<'a>(&'a View<'a>);

impl Question for NodeScore<'_> {
    type Answer = i64;

    fn evaluate<S: Scorer>(self, scorer: &S) -> i64 {
        match self.0.shape.gpu_need {
            GpuNeed::None => scorer.plain(self.0),
            GpuNeed::Whole(count) | GpuNeed::Mig(_, count) => scorer.whole(self.0, count),
            GpuNeed::Share(_) | GpuNeed::Memory(_) => {
                scorer.best_share(self.0).map_or(-BOUND, |(score, _)| score)
            }
        }
    }
}

struct BestShare<'a>(&'a View<'a>);

impl Question for BestShare<'_> {
    type Answer = Option<(i64, usize)>;

    fn evaluate<S: Scorer>(self, scorer: &S) -> Self::Answer {
        scorer.best_share(self.0)
    }
}

struct DeviceKey<'a>(&'a View<'a>, &'a Device);

impl Question for DeviceKey<'_> {
    type Answer = i64;

    fn evaluate<S: Scorer>(self, scorer: &S) -> i64 {
        scorer.device_key(self.0, self.1)
    }
}

/// Weight of one preference step over any strategy's score.
const PREFERENCE: i64 = 1 << 40;
const BOUND: i64 = (1 << 38) - 1;
/// A device above the goal ranks below all other devices of its node, and its node below all other nodes.
const OVER_GOAL: i64 = 1 << 37;

fn over_goal(view: &View<'_>, device: &Device) -> i64 {
    if view.scoring.goal.is_some_and(|goal| device.utilization > goal) { OVER_GOAL } else { 0 }
}

/// Score of a node that fits; `preference` comes from its eligibility.
pub(crate) fn score(strategy: Strategy, view: &View<'_>, preference: i32) -> i64 {
    let opinion = strategy.consult(NodeScore(view));
    i64::from(preference) * PREFERENCE + opinion.clamp(-BOUND, BOUND)
}

/// Upper bound for any request of a family on a node.
pub(crate) fn bound(strategy: Strategy, room: &Room, family: Family) -> i64 {
    if family.may_fit(room) { strategy.consult(Bound(room, family.takes)) } else { UNFIT }
}

struct Bound<'a>(&'a Room, GpuClass);

impl Question for Bound<'_> {
    type Answer = i64;

    fn evaluate<S: Scorer>(self, scorer: &S) -> i64 {
        scorer.bound(self.0, self.1)
    }
}

pub(crate) fn share_device(strategy: Strategy, view: &View<'_>) -> Option<usize> {
    strategy.consult(BestShare(view)).map(|(_, device)| device)
}

/// The `count` devices for whole GPUs: the strategy's order, then the lowest index. Requests with `nvlink`
/// and the strategy `pack` use the tightest `NVLink` group.
pub(crate) fn whole_choice(
    strategy: Strategy,
    view: &View<'_>,
    count: usize,
) -> SmallVec<[u16; 8]> {
    let mut free: SmallVec<[(bool, i64, u16); 8]> = SmallVec::new();
    let linked = strategy == Strategy::Pack || (count > 1 && view.shape.nvlink);
    let group = if linked { tightest_link(view, count) } else { None };
    for (index, device) in whole_devices(view.shape, view.room) {
        if group.is_none_or(|group| device.link == group) {
            free.push((
                !view.likes(device),
                strategy.consult(DeviceKey(view, device)),
                index as u16,
            ));
        }
    }
    free.sort_unstable();
    free.iter().take(count).map(|(.., index)| *index).collect()
}

/// The `NVLink` group with the fewest free devices that has enough.
fn tightest_link(view: &View<'_>, count: usize) -> Option<u16> {
    let links = whole_devices(view.shape, view.room).map(|(_, d)| d.link).filter(|l| *l != NO_LINK);
    let size = |link| whole_devices(view.shape, view.room).filter(|(_, d)| d.link == link).count();
    links
        .map(|link| (size(link), link))
        .filter(|(size, _)| *size >= count)
        .min()
        .map(|(_, link)| link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_parses_and_serializes_by_name() {
        for strategy in Strategy::ALL.iter().copied() {
            assert_eq!(strategy.name().parse(), Ok(strategy));
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.name());
        }
        assert!("fastest".parse::<Strategy>().is_err());
    }
}

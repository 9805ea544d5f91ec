//! Fragmentation gradient descent, after Weng et al., USENIX ATC '23.

use super::node_measure::NodeMeasure;
use super::usable::Usable;
use super::{DEVICE, DemandClass, GpuAllocation, NodeView};

/// Share of all requests that the typical requests cover, in percent.
const TYPICAL_PERCENT: u64 = 95;

/// Scores by the published fragmentation measure.
///
/// A node's fragmentation is the idle GPU that an average typical request cannot use. The field stores its
/// negative times the number of typical requests, an integer, so all steps before the final sigmoid are exact
/// on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Fgd {
    usable: Usable,
    /// Number of typical requests: the weight of one idle thousandth.
    total: i64,
}

impl Fgd {
    pub(crate) fn new(classes: &[DemandClass], models: usize) -> Self {
        let typical: Vec<(&DemandClass, i64)> =
            typical(classes).into_iter().map(|class| (class, class.count as i64)).collect();
        let total = typical.iter().map(|(_, count)| count).sum();
        Self { usable: Usable::new(&typical, models), total }
    }

    /// The published score of taking `cpu` and `allocation` from `node`, and the best device for a share: the
    /// integer part of `100·sigmoid(decrease of fragmentation/1000)`.
    ///
    /// Devices are compared by that integer, as in the published scheduler; the exact decrease would give
    /// other placements.
    pub(crate) fn score(
        &self,
        node: &NodeView<'_>,
        cpu: i64,
        allocation: GpuAllocation,
    ) -> (i64, usize) {
        let before = self.worth(node);
        let after = NodeView { cpu: node.cpu - cpu, ..*node };
        match allocation {
            GpuAllocation::Nothing => (self.grade(self.worth(&after) - before), 0),
            GpuAllocation::Whole(gpus) => (self.grade(self.after_whole(&after, gpus) - before), 0),
            GpuAllocation::Share(milli) => {
                let (mut best, mut at, mut most) = (-1, 0, i64::MIN);
                self.after_share(&after, milli, |worth, device| {
                    // The sigmoid is monotone: a smaller decrease cannot score higher.
                    if worth > most {
                        most = worth;
                        let grade = self.grade(worth - before);
                        if grade > best {
                            best = grade;
                            at = device;
                        }
                    }
                });
                (best, at)
            }
        }
    }

    fn grade(&self, decrease: i64) -> i64 {
        let exponent = decrease as f64 / (self.total.max(1) as f64 * f64::from(DEVICE));
        (100.0 / (1.0 + libm::exp(-exponent))) as i64
    }
}

impl NodeMeasure for Fgd {
    fn usable(&self) -> &Usable {
        &self.usable
    }

    fn device(&self, row: usize, left: i32) -> i64 {
        self.usable.device(row, left) - self.total * i64::from(left.max(0))
    }

    fn node(&self, _cpu: i64, _idle: i64) -> i64 {
        0
    }
}

/// The most frequent classes that cover enough requests; rare shapes only add noise. Ties are ordered by
/// size, which makes the cut deterministic.
pub(super) fn typical(classes: &[DemandClass]) -> Vec<&DemandClass> {
    let mut sorted: Vec<&DemandClass> = classes.iter().filter(|c| c.count > 0).collect();
    sorted.sort_by(|a, b| order(b).cmp(&order(a)));
    let all: u64 = sorted.iter().map(|c| c.count).sum();
    let mut covered = 0;
    let enough = |class: &&DemandClass| {
        let wanted = covered * 100 < all * TYPICAL_PERCENT;
        covered += class.count;
        wanted
    };
    sorted.into_iter().take_while(enough).collect()
}

fn order(class: &DemandClass) -> (u64, i64, i32, u16, &[u16]) {
    (class.count, class.cpu, class.milli, class.gpus, &class.models)
}

//! Fragmentation gradient descent, after Weng et al., USENIX ATC '23.

use super::ranks::{CpuRanks, MilliRanks};
use super::{DEVICE, DemandClass, NodeView, Take};

/// The typical requests cover this share of all requests seen, in hundredths.
const TYPICAL_PERCENT: u64 = 95;

/// Scores by the published fragmentation measure.
///
/// A node's fragmentation is the idle GPU an average typical request could not use there. The
/// paper sums over all typical requests; here the sum is prepared as cumulative counts per (model,
/// CPU rank, device rank), so one node costs a handful of look-ups. Everything up to the final
/// sigmoid is integer arithmetic, which makes the result exact and the same on every machine.
#[derive(Debug, Clone)]
pub struct Fgd {
    cpu: CpuRanks,
    milli: MilliRanks,
    models: usize,
    /// Most whole devices any class asks for, plus one.
    wholes: usize,
    /// How many typical requests there are: the weight of one idle thousandth.
    total: i64,
    /// Requests of one device that a device with this much left can serve.
    single: Vec<i64>,
    /// Requests of several whole devices that this many free ones can serve.
    whole: Vec<i64>,
    /// Requests of shares on several devices: rare enough to be looked at one by one.
    split: Vec<DemandClass>,
}

impl Fgd {
    /// Prepares the measure for a demand on a cluster with `models` GPU models.
    pub fn new(classes: &[DemandClass], models: usize) -> Self {
        let typical = typical(classes);
        let gpu = || typical.iter().filter(|c| c.wants_gpu());
        let models = models.max(1);
        let wholes = gpu().map(|c| usize::from(c.gpus)).max().unwrap_or(0) + 1;
        let mut fgd = Self {
            cpu: CpuRanks::new(gpu().map(|c| c.cpu).collect()),
            milli: MilliRanks::new(gpu().map(|c| c.milli.min(DEVICE)).collect()),
            models,
            wholes,
            total: typical.iter().map(|c| c.count as i64).sum(),
            single: Vec::new(),
            whole: Vec::new(),
            split: Vec::new(),
        };
        fgd.single = vec![0; models * (fgd.cpu.len() + 1) * (fgd.milli.len() + 1)];
        fgd.whole = vec![0; models * (fgd.cpu.len() + 1) * wholes];
        for class in gpu() {
            fgd.add(class);
        }
        fgd
    }

    /// The published score of taking `cpu` and `take` from `node`, and for a share the device it
    /// is best taken from. The score is the integer part of `100·sigmoid(decrease/1000)`.
    pub fn score(&self, node: &NodeView<'_>, cpu: i64, take: Take) -> (i64, usize) {
        let before = self.fragmentation(node);
        let after = NodeView { cpu: node.cpu - cpu, ..*node };
        match take {
            Take::Nothing => (self.grade(before - self.fragmentation(&after)), 0),
            Take::Share(milli) => self.best_device(&after, before, milli),
            Take::Whole(gpus) => {
                (self.grade(before - self.fragmentation_less_whole(&after, gpus)), 0)
            }
        }
    }

    /// The fragmentation of `node` times the number of typical requests.
    pub(super) fn fragmentation(&self, node: &NodeView<'_>) -> i64 {
        let row = self.row(node);
        let devices: i64 = node.left.iter().map(|&left| self.device(row, left)).sum();
        let free = node.left.iter().filter(|&&left| left >= DEVICE).count();
        devices - self.whole_use(row, free) - self.split_use(node, |_, left| left)
    }

    /// Which device a share is best taken from, and the decrease of fragmentation it brings.
    fn best_device(&self, after: &NodeView<'_>, before: i64, milli: i32) -> (i64, usize) {
        let row = self.row(after);
        let devices: i64 = after.left.iter().map(|&left| self.device(row, left)).sum();
        let free = after.left.iter().filter(|&&left| left >= DEVICE).count();
        let uses = [self.whole_use(row, free.saturating_sub(1)), self.whole_use(row, free)];
        let (mut best, mut at, mut last) = (i64::MIN, 0, i32::MIN);
        for (device, &left) in after.left.iter().enumerate() {
            if left < milli || left == last {
                continue;
            }
            last = left;
            let swapped = devices - self.device(row, left) + self.device(row, left - milli);
            let split = self.split_use(after, |d, l| if d == device { l - milli } else { l });
            let decrease = before - (swapped - uses[usize::from(left < DEVICE)] - split);
            let grade = self.grade(decrease);
            if grade > best {
                (best, at) = (grade, device);
            }
        }
        (best, at)
    }

    fn fragmentation_less_whole(&self, after: &NodeView<'_>, gpus: u16) -> i64 {
        let row = self.row(after);
        let (mut sum, mut free, mut taken) = (0, 0, 0);
        for &left in after.left {
            if left < DEVICE {
                sum += self.device(row, left);
            } else if taken < gpus {
                taken += 1;
            } else {
                free += 1;
                sum += self.device(row, left);
            }
        }
        let kept = after.left.len().saturating_sub(free);
        let split = if self.split.is_empty() {
            0
        } else {
            let mut rest: Vec<i32> = after.left.iter().copied().filter(|&l| l < DEVICE).collect();
            rest.truncate(kept);
            rest.resize(rest.len() + free, DEVICE);
            self.split_use(&NodeView { left: &rest, ..*after }, |_, left| left)
        };
        sum - self.whole_use(row, free) - split
    }

    /// What one device adds to the fragmentation if requests of one device were all there are.
    fn device(&self, row: usize, left: i32) -> i64 {
        let usable = self.single[row * (self.milli.len() + 1) + self.milli.rank(left)];
        i64::from(left.max(0)) * (self.total - usable)
    }

    /// What requests of several whole devices can use of `free` ones.
    fn whole_use(&self, row: usize, free: usize) -> i64 {
        let served = self.whole[row * self.wholes + free.min(self.wholes - 1)];
        (free as i64) * i64::from(DEVICE) * served
    }

    /// What requests of shares on several devices can use.
    fn split_use(&self, node: &NodeView<'_>, left: impl Fn(usize, i32) -> i32) -> i64 {
        let fits = |c: &&DemandClass| c.cpu <= node.cpu && c.accepts(node.model);
        let usable = |c: &DemandClass| {
            let enough = || node.left.iter().enumerate().map(|(d, &l)| left(d, l)).filter(|&l| l >= c.milli);
            let sum: i64 = enough().map(i64::from).sum();
            if enough().count() < usize::from(c.gpus) { 0 } else { sum * c.count as i64 }
        };
        self.split.iter().filter(fits).map(usable).sum()
    }

    fn row(&self, node: &NodeView<'_>) -> usize {
        let model = usize::from(node.model).min(self.models - 1);
        model * (self.cpu.len() + 1) + self.cpu.rank(node.cpu)
    }

    fn grade(&self, decrease: i64) -> i64 {
        let exponent = decrease as f64 / (self.total.max(1) as f64 * f64::from(DEVICE));
        (100.0 / (1.0 + libm::exp(-exponent))) as i64
    }

    /// Adds one class to the cumulative counts.
    fn add(&mut self, class: &DemandClass) {
        if class.gpus > 1 && class.milli < DEVICE {
            self.split.push(class.clone());
            return;
        }
        let (ranks, widths) = (self.cpu.len() + 1, self.milli.len() + 1);
        for model in (0..self.models).filter(|&m| class.accepts(m as u16)) {
            for rank in self.cpu.rank(class.cpu)..ranks {
                let row = model * ranks + rank;
                let cells = if class.gpus == 1 {
                    &mut self.single[row * widths + self.milli.rank(class.milli)..(row + 1) * widths]
                } else {
                    &mut self.whole[row * self.wholes + usize::from(class.gpus)..(row + 1) * self.wholes]
                };
                cells.iter_mut().for_each(|cell| *cell += class.count as i64);
            }
        }
    }
}

/// The most frequent classes, until they cover enough of all requests; rare shapes would only add
/// noise. Equal counts are ordered by size so that the cut is the same everywhere.
fn typical(classes: &[DemandClass]) -> Vec<DemandClass> {
    let mut sorted: Vec<&DemandClass> = classes.iter().filter(|c| c.count > 0).collect();
    sorted.sort_by(|a, b| key(b).cmp(&key(a)));
    let all: u64 = sorted.iter().map(|c| c.count).sum();
    let mut covered = 0;
    let mut kept = Vec::new();
    for class in sorted {
        if covered * 100 >= all * TYPICAL_PERCENT {
            break;
        }
        covered += class.count;
        kept.push(class.clone());
    }
    kept
}

fn key(class: &DemandClass) -> (u64, i64, i32, u16, &[u16]) {
    (class.count, class.cpu, class.milli, class.gpus, &class.models)
}

//! Learning by playing: what becomes of a device once it has so much left?
//!
//! A device left with 190 thousandths usually ends with 190 idle; one left with 530 usually ends
//! with 60. Which it is depends on the demand and on the strategy itself, so the strategy plays a
//! few short games against arrivals drawn from the demand and remembers how devices ended.
//! Arrivals come from a fixed seed: the same demand always teaches the same lesson.

use super::value::{Value, ValueOptions};
use super::{DEVICE, DemandClass, ModelId, NodeShape, NodeView, Take};

/// Weight of the guess made for amounts seen rarely or never, in observations.
const PRIOR: f64 = 2.0;

/// The mean idle thousandths a device ended with after it was seen with `0..=1000` left.
pub(super) fn final_idle(
    value: &Value,
    classes: &[DemandClass],
    inventory: &[NodeShape],
    options: &ValueOptions,
    round: u32,
) -> Vec<f64> {
    let mut random = SplitMix(u64::from(round) + 1);
    let mut game = Game::new(value, classes, inventory, options.gpus, &mut random);
    let target = (game.capacity() as f64 * options.inflate) as i64;
    let mut ends = Vec::new();
    let mut seen = 0_u64;
    for class in classes {
        seen += class.count;
        ends.push(seen);
    }
    let mut arrived = 0;
    let wants: bool = classes.iter().any(|c| c.wants_gpu() && c.count > 0);
    while wants && arrived < target {
        let drawn = random.below(seen);
        let class = ends.partition_point(|&end| end <= drawn);
        arrived += i64::from(classes[class].milli) * i64::from(classes[class].gpus);
        game.arrive(class);
    }
    game.mean_idle()
}

/// One node of the game and every amount each device was seen with.
#[derive(Debug)]
struct Seat {
    model: ModelId,
    cpu: i64,
    left: Vec<i32>,
    seen: Vec<(u16, i32)>,
    /// Counts changes, so that a cached score knows whether it is stale.
    version: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cached {
    version: u32,
    fits: bool,
    device: u16,
    score: i64,
}

struct Game<'a> {
    value: &'a Value,
    classes: &'a [DemandClass],
    seats: Vec<Seat>,
    cache: Vec<Cached>,
}

impl<'a> Game<'a> {
    fn new(
        value: &'a Value,
        classes: &'a [DemandClass],
        inventory: &[NodeShape],
        most: u32,
        random: &mut SplitMix,
    ) -> Self {
        let gpus: u64 = inventory.iter().map(|n| u64::from(n.gpus) * u64::from(n.count)).sum();
        let (keep, of) = if gpus > u64::from(most) { (u64::from(most), gpus) } else { (1, 1) };
        let mut seats = Vec::new();
        for shape in inventory {
            let count = (u64::from(shape.count) * keep).div_ceil(of);
            seats.extend((0..count).map(|_| Seat::new(shape)));
        }
        random.shuffle(&mut seats);
        let cache = vec![Cached::default(); seats.len() * classes.len()];
        Self { value, classes, seats, cache }
    }

    fn capacity(&self) -> i64 {
        self.seats.iter().map(|s| s.left.len() as i64 * i64::from(DEVICE)).sum()
    }

    /// Places one request of `class` where the value suffers least, or drops it.
    fn arrive(&mut self, class: usize) {
        let request = &self.classes[class];
        let row = &mut self.cache[class * self.seats.len()..(class + 1) * self.seats.len()];
        let mut best: Option<(i64, usize)> = None;
        for (at, (seat, cached)) in self.seats.iter().zip(row.iter_mut()).enumerate() {
            if cached.version != seat.version {
                *cached = seat.judge(self.value, request);
            }
            if cached.fits && best.is_none_or(|(score, _)| cached.score > score) {
                best = Some((cached.score, at));
            }
        }
        if let Some((_, at)) = best {
            self.seats[at].place(request, usize::from(row[at].device));
        }
    }

    fn mean_idle(&self) -> Vec<f64> {
        let mut sums = vec![(0.0, 0.0); DEVICE as usize + 1];
        for seat in &self.seats {
            for &(device, seen) in &seat.seen {
                let (idle, count) = &mut sums[seen as usize];
                *idle += f64::from(seat.left[usize::from(device)]);
                *count += 1.0;
            }
        }
        smooth(&sums)
    }
}

/// Fills amounts never seen with what the next smaller seen one suggests: the difference stays idle.
fn smooth(sums: &[(f64, f64)]) -> Vec<f64> {
    let (mut last, mut at) = (0.0, 0);
    let mut means = Vec::with_capacity(sums.len());
    for (left, &(idle, count)) in sums.iter().enumerate() {
        let guess = last + (left - at) as f64;
        let mean = (idle + PRIOR * guess) / (count + PRIOR);
        if count > 0.0 {
            (last, at) = (mean, left);
        }
        means.push(mean);
    }
    means
}

impl Seat {
    fn new(shape: &NodeShape) -> Self {
        let left = vec![DEVICE; usize::from(shape.gpus)];
        let seen = (0..shape.gpus).map(|device| (device, DEVICE)).collect();
        Self { model: shape.model, cpu: shape.cpu, left, seen, version: 1 }
    }

    fn judge(&self, value: &Value, request: &DemandClass) -> Cached {
        let mut cached = Cached { version: self.version, ..Cached::default() };
        let enough = self.left.iter().filter(|&&l| l >= request.milli).count();
        cached.fits = request.cpu <= self.cpu
            && request.accepts(self.model)
            && enough >= usize::from(request.gpus);
        if cached.fits {
            let node = NodeView { model: self.model, cpu: self.cpu, left: &self.left };
            let (score, device) = value.score(&node, request.cpu, take(request));
            (cached.score, cached.device) = (score, device as u16);
        }
        cached
    }

    fn place(&mut self, request: &DemandClass, device: usize) {
        self.version += 1;
        self.cpu -= request.cpu;
        match take(request) {
            Take::Nothing => {}
            Take::Share(milli) => self.lower(device, milli),
            Take::Whole(gpus) => {
                let enough = |&d: &usize| self.left[d] >= request.milli;
                let chosen: Vec<usize> =
                    (0..self.left.len()).filter(enough).take(usize::from(gpus)).collect();
                chosen.into_iter().for_each(|d| self.lower(d, request.milli));
            }
        }
    }

    fn lower(&mut self, device: usize, milli: i32) {
        self.left[device] -= milli;
        self.seen.push((device as u16, self.left[device]));
    }
}

fn take(request: &DemandClass) -> Take {
    match (request.gpus, request.milli) {
        (0, _) | (_, 0) => Take::Nothing,
        (1, milli) if milli < DEVICE => Take::Share(milli),
        (gpus, _) => Take::Whole(gpus),
    }
}

/// A small deterministic generator (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA '14).
#[derive(Debug, Clone)]
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero when `bound` is.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

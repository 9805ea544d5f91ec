//! A reproducible random generator.

use std::fmt::Display;

/// `SplitMix64`.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to one less than `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.throw() % limit.max(1) as u64) as usize
    }

    /// From `least` to `most`.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// True with this probability in percent.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// One to all of these, in their order.
    pub(crate) fn some<T: Display + Clone>(&mut self, all: &[T]) -> Vec<String> {
        let mut picked: Vec<String> =
            all.iter().filter(|_| self.chance(50)).map(ToString::to_string).collect();
        if picked.is_empty() {
            picked.push(self.pick(all).to_string());
        }
        picked
    }
}

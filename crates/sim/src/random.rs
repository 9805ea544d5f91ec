//! A deterministic random number generator.

/// Splitmix64 by Steele, Lea and Flood: one word of state, passes `BigCrush`. Implemented here so that a seed
/// gives the same load with every library version.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A uniform number from 0 to `n - 1`; zero when `n` is zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        // The high word of the product has a bias below n / 2^64, negligible for lists in memory.
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// A uniform number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed gap with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit())
    }

    /// Log-normal value with this median.
    pub(crate) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        let normal = radius * libm::cos(std::f64::consts::TAU * self.unit());
        median * libm::exp(sigma * normal)
    }

    /// Log-uniform value: every order of magnitude is equally likely.
    pub(crate) fn log_uniform(&mut self, least: f64, most: f64) -> f64 {
        least * libm::exp(self.unit() * libm::log(most / least))
    }

    /// A value chosen by weight.
    pub(crate) fn weighted<T: Copy>(&mut self, choices: &[(u32, T)]) -> T {
        let total: u32 = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total as usize) as u32;
        for (weight, value) in choices {
            if at < *weight {
                return *value;
            }
            at -= weight;
        }
        choices[choices.len() - 1].1
    }

    /// Fisher-Yates shuffle.
    pub(crate) fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_matches_the_reference_implementation() {
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn a_shuffle_is_a_permutation_determined_by_the_seed() {
        let shuffled = |seed| {
            let mut values: Vec<u32> = (0..100).collect();
            Random::new(seed).shuffle(&mut values);
            values
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }

    #[test]
    fn distributions_have_the_requested_mean_or_median() {
        let mut random = Random::new(1);
        let mean = (0..20_000).map(|_| random.exponential(5.0)).sum::<f64>() / 20_000.0;
        assert!((4.8..5.2).contains(&mean), "{mean}");
        let below = (0..20_000).filter(|_| random.log_normal(60.0, 1.5) < 60.0).count();
        assert!((9_700..10_300).contains(&below), "{below}");
        assert!((0..1000).all(|_| (2.0..=8.0).contains(&random.log_uniform(2.0, 8.0))));
    }
}

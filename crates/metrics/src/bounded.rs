//! A bound on the values of a label.

use std::collections::BTreeMap;

/// Sums by a label whose values users choose. Values beyond the limit share the value `other`, so that the number of
/// series is bounded.
#[derive(Clone, Debug)]
pub struct Bounded {
    limit: usize,
    sums: BTreeMap<String, f64>,
    other: Option<f64>,
}

impl Bounded {
    pub const OTHER: &str = "other";

    pub fn new(limit: usize) -> Self {
        Self { limit, sums: BTreeMap::new(), other: None }
    }

    pub fn add(&mut self, label: &str, amount: f64) {
        if let Some(sum) = self.sums.get_mut(label) {
            *sum += amount;
        } else if self.sums.len() < self.limit {
            self.sums.insert(label.to_owned(), amount);
        } else {
            *self.other.get_or_insert_default() += amount;
        }
    }

    /// Label values with their sums.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        let other = self.other.map(|sum| (Self::OTHER, sum));
        self.sums.iter().map(|(label, sum)| (label.as_str(), *sum)).chain(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_limit_share_one_series_and_no_amount_is_lost() {
        let mut sums = Bounded::new(3);
        for number in 0..1_000 {
            sums.add(&format!("queue-{number}"), 2.0);
        }
        sums.add("queue-1", 1.0);
        let found: Vec<_> = sums.iter().collect();
        assert_eq!(found.len(), 4);
        assert_eq!(found[1], ("queue-1", 3.0));
        assert_eq!(found[3], ("other", 1_994.0));
    }
}

//! Values that several threads change without a lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub fn get(&self) -> f64 {
        load(&self.0)
    }
}

/// Cumulative histogram of durations.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    /// Upper bounds in seconds, ascending.
    bounds: [f64; N],
    buckets: [AtomicU64; N],
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    pub fn new(bounds: [f64; N]) -> Self {
        let buckets = std::array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, buckets, count: AtomicU64::new(0), nanoseconds: AtomicU64::new(0) }
    }

    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(self.bounds) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Upper bounds with the number of shorter durations.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (f64, f64)> {
        self.bounds.into_iter().zip(self.buckets.iter().map(load))
    }

    pub(crate) fn count(&self) -> f64 {
        load(&self.count)
    }

    /// Seconds.
    pub(crate) fn sum(&self) -> f64 {
        load(&self.nanoseconds) / 1e9
    }
}

/// Histograms by the values of `L` labels. The caller bounds the number of values.
#[derive(Debug)]
pub struct HistogramFamily<const L: usize, const N: usize> {
    bounds: [f64; N],
    series: RwLock<BTreeMap<[&'static str; L], Arc<Histogram<N>>>>,
}

impl<const L: usize, const N: usize> HistogramFamily<L, N> {
    pub fn new(bounds: [f64; N]) -> Self {
        Self { bounds, series: RwLock::default() }
    }

    pub fn observe(&self, labels: [&'static str; L], duration: Duration) {
        let known =
            self.series.read().unwrap_or_else(PoisonError::into_inner).get(&labels).cloned();
        let histogram = known.unwrap_or_else(|| {
            let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(Histogram::new(self.bounds));
            Arc::clone(series.entry(labels).or_insert_with(fresh))
        });
        histogram.observe(duration);
    }

    /// Label values with their histograms.
    pub fn series(&self) -> Vec<([&'static str; L], Arc<Histogram<N>>)> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        series.iter().map(|(labels, histogram)| (*labels, Arc::clone(histogram))).collect()
    }
}

fn load(value: &AtomicU64) -> f64 {
    value.load(Ordering::Relaxed) as f64
}

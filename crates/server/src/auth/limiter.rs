//! Token buckets by key, in bounded memory.

use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// Maximum number of tracked keys; further keys share one bucket.
const MOST: usize = 20_000;

/// Rate limiter with one token bucket per key.
#[derive(Debug)]
pub struct Limiter<K> {
    rate: f64,
    burst: f64,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    buckets: FxHashMap<K, Bucket>,
    shared: Option<Bucket>,
    swept: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl<K: Hash + Eq> Limiter<K> {
    /// Permits `rate` requests per second, with bursts of up to `burst`.
    pub fn new(rate: f64, burst: f64) -> Self {
        let state = State { buckets: FxHashMap::default(), shared: None, swept: None };
        Self { rate, burst: burst.max(1.0), state: Mutex::new(state) }
    }

    /// Takes one token. The error is the number of seconds until the next one.
    pub fn take(&self, key: K) -> Result<(), u64> {
        self.take_at(key, Instant::now())
    }

    /// Like [`Limiter::take`], at a given time.
    pub fn take_at(&self, key: K, now: Instant) -> Result<(), u64> {
        let full = Bucket { left: self.burst, at: now };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if !state.buckets.contains_key(&key) && state.buckets.len() >= MOST {
            self.sweep(state, now);
        }
        let room = state.buckets.len() < MOST;
        let bucket = match state.buckets.get_mut(&key) {
            Some(bucket) => bucket,
            None if room => state.buckets.entry(key).or_insert(full),
            None => state.shared.get_or_insert(full),
        };
        self.take_from(bucket, now)
    }

    fn take_from(&self, bucket: &mut Bucket, now: Instant) -> Result<(), u64> {
        bucket.left = self.level(*bucket, now);
        bucket.at = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Ok(());
        }
        let seconds = (1.0 - bucket.left) / self.rate.max(0.001);
        Err(seconds.ceil().clamp(1.0, 3600.0) as u64)
    }

    fn level(&self, bucket: Bucket, now: Instant) -> f64 {
        let waited = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.left + waited * self.rate).min(self.burst)
    }

    /// Removes full buckets; at most once per second, because it scans all keys.
    fn sweep(&self, state: &mut State<K>, now: Instant) {
        let second = Duration::from_secs(1);
        if state.swept.is_some_and(|at| now.saturating_duration_since(at) < second) {
            return;
        }
        state.swept = Some(now);
        state.buckets.retain(|_, bucket| self.level(*bucket, now) < self.burst);
    }
}

/// Rate-limit key of an address: the whole IPv4 address, or the /64 network of an IPv6 address.
pub fn address_key(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(four) => u128::from(u32::from(four)),
        IpAddr::V6(six) => u128::from(six) & (u128::MAX << 64),
    }
}

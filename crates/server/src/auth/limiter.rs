//! Token buckets by key, in bounded memory.

use std::cmp::Ordering;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

/// Maximum number of tracked keys.
const MOST: usize = 20_000;
/// Keys evicted at once, so that a flood of new keys does not scan all keys for each of them.
const EVICTED: usize = MOST / 10;
/// Networks of 64 bits that fill the limit of their network of 48 bits, which many providers assign to one customer.
const NETWORKS_PER_SITE: u32 = 16;

/// Rate limiter with one token bucket per key.
#[derive(Debug)]
pub struct Limiter<K> {
    rate: f64,
    burst: f64,
    buckets: Mutex<FxHashMap<K, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl<K: Hash + Eq> Limiter<K> {
    /// Permits `rate` requests per second, with bursts of up to `burst`.
    pub fn new(rate: f64, burst: f64) -> Self {
        Self { rate, burst: burst.max(1.0), buckets: Mutex::default() }
    }

    /// Takes one token. The error is the number of seconds until the next one.
    pub fn take(&self, key: K) -> Result<(), u64> {
        self.take_at(key, Instant::now())
    }

    /// Like [`Limiter::take`], at a given time.
    pub fn take_at(&self, key: K, now: Instant) -> Result<(), u64> {
        self.take_part(key, 1.0, now)
    }

    fn take_part(&self, key: K, cost: f64, now: Instant) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST && !buckets.contains_key(&key) {
            self.evict(&mut buckets, now);
        }
        let bucket = buckets.entry(key).or_insert(Bucket { left: self.burst, at: now });
        bucket.left = self.level(*bucket, now);
        bucket.at = now;
        if bucket.left >= cost {
            bucket.left -= cost;
            return Ok(());
        }
        let seconds = (cost - bucket.left) / self.rate.max(0.001);
        Err(seconds.ceil().clamp(1.0, 3600.0) as u64)
    }

    fn level(&self, bucket: Bucket, now: Instant) -> f64 {
        let waited = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.left + waited * self.rate).min(self.burst)
    }

    /// Removes the fullest buckets, of equally full ones the longest unused: a new bucket is full, so their keys gain the
    /// least.
    fn evict(&self, buckets: &mut FxHashMap<K, Bucket>, now: Instant) {
        let rank = |bucket: &Bucket| (self.level(*bucket, now), bucket.at);
        let fuller_first = |a: &(f64, Instant), b: &(f64, Instant)| -> Ordering {
            b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
        };
        let mut ranks: Vec<(f64, Instant)> = buckets.values().map(rank).collect();
        let (_, last, _) = ranks.select_nth_unstable_by(EVICTED - 1, fuller_first);
        let last = *last;
        let mut left = EVICTED;
        buckets.retain(|_, bucket| {
            let evicted = left > 0 && fuller_first(&rank(bucket), &last).is_le();
            left -= usize::from(evicted);
            !evicted
        });
    }
}

/// Rate limiter of client addresses, which counts the networks of an address.
#[derive(Debug)]
pub struct AddressLimiter(Limiter<u128>);

impl AddressLimiter {
    /// Permits `rate` requests per second and address, with bursts of up to `burst`.
    pub fn new(rate: f64, burst: f64) -> Self {
        Self(Limiter::new(rate, burst))
    }

    /// Takes one token of the address. The error is the number of seconds until the next one.
    pub fn take(&self, address: IpAddr) -> Result<(), u64> {
        self.take_at(address, Instant::now())
    }

    /// Like [`AddressLimiter::take`], at a given time.
    pub fn take_at(&self, address: IpAddr, now: Instant) -> Result<(), u64> {
        networks(address).try_for_each(|network| {
            self.0.take_part(network.key, 1.0 / f64::from(network.addresses), now)
        })
    }
}

/// Network whose requests and connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Prefix of the address.
    pub key: u128,
    /// Its limit is that of so many addresses.
    pub addresses: u32,
}

/// Networks of an address: the whole IPv4 address, or the /64 and the /48 of an IPv6 address.
pub fn networks(address: IpAddr) -> impl Iterator<Item = Network> {
    let own = Network { key: address_key(address), addresses: 1 };
    let site = match address.to_canonical() {
        IpAddr::V4(_) => None,
        // The last bit tells the /48 from its first /64.
        IpAddr::V6(six) => Some((u128::from(six) & (u128::MAX << 80)) | 1),
    };
    let site = site.map(|key| Network { key, addresses: NETWORKS_PER_SITE });
    std::iter::once(own).chain(site)
}

/// Key of an address: the whole IPv4 address, or the /64 network of an IPv6 address.
pub(super) fn address_key(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(four) => u128::from(four.to_ipv6_mapped()),
        IpAddr::V6(six) => u128::from(six) & (u128::MAX << 64),
    }
}

//! Limit of connections for each address.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use crate::auth::address_key;

/// Number of connections of each address.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    most: usize,
    counts: Arc<Mutex<FxHashMap<u128, usize>>>,
}

/// The address is at its limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// A counted connection; the count ends with the drop.
#[derive(Debug)]
pub(super) struct FromAddress {
    addresses: Addresses,
    key: u128,
}

impl Addresses {
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), counts: Arc::default() }
    }

    /// Counts a connection. Local connections are not counted: a proxy may hold them for many clients.
    pub(super) fn open(&self, address: IpAddr) -> Result<Option<FromAddress>, TooMany> {
        if address.to_canonical().is_loopback() {
            return Ok(None);
        }
        let key = address_key(address);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        if *count >= self.most {
            return Err(TooMany);
        }
        *count += 1;
        Ok(Some(FromAddress { addresses: self.clone(), key }))
    }
}

impl Drop for FromAddress {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let left = counts.get(&self.key).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            counts.remove(&self.key);
        } else {
            counts.insert(self.key, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_holds_so_many_connections_and_this_machine_any_number() {
        let addresses = Addresses::new(2);
        let open = |text: &str| addresses.open(text.parse().unwrap());
        let mut held: Vec<_> = (0..2).map(|_| open("192.0.2.1").unwrap()).collect();
        assert!(open("192.0.2.1").is_err() && open("::ffff:192.0.2.1").is_err());
        held.push(open("192.0.2.2").unwrap());
        for address in ["2001:db8::1", "2001:db8::2"] {
            held.push(open(address).unwrap());
        }
        assert!(open("2001:db8::3").is_err(), "a network of 64 bits is one address");
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!((0..5).all(|_| open(address).unwrap().is_none()));
        }
        held.swap_remove(0);
        held.push(open("192.0.2.1").unwrap());
        drop(held);
        assert!(addresses.counts.lock().unwrap().is_empty());
    }
}

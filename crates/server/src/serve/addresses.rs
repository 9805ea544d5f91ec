//! Limit of connections for each address.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use crate::auth::networks;

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
    address: IpAddr,
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
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = networks(address).any(|network| {
            let count = counts.get(&network.key).copied().unwrap_or(0);
            count >= self.most.saturating_mul(network.addresses as usize)
        });
        if is_full {
            return Err(TooMany);
        }
        for network in networks(address) {
            *counts.entry(network.key).or_default() += 1;
        }
        Ok(Some(FromAddress { addresses: self.clone(), address }))
    }
}

impl Drop for FromAddress {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for network in networks(self.address) {
            let left = counts.get(&network.key).map_or(0, |count| count.saturating_sub(1));
            if left == 0 {
                counts.remove(&network.key);
            } else {
                counts.insert(network.key, left);
            }
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
        let mut held_by_site = 2;
        for subnet in 1..100 {
            for _ in 0..2 {
                let connection = open(&format!("2001:db8:0:{subnet:x}::1"));
                held_by_site += usize::from(connection.is_ok());
                held.extend(connection);
            }
        }
        assert_eq!(held_by_site, 32, "a network of 48 bits is 16 addresses");
        held.push(open("2001:db8:1::1").unwrap());
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!((0..5).all(|_| open(address).unwrap().is_none()));
        }
        held.swap_remove(0);
        held.push(open("192.0.2.1").unwrap());
        drop(held);
        assert!(addresses.counts.lock().unwrap().is_empty());
    }
}

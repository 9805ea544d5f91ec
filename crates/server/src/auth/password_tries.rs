//! Limits of password tries.
//!
//! Tries count by user and address, so that one client cannot exhaust the tries of a user, and by user over all addresses,
//! so that many addresses do not guess faster than a few. The second limit spares the addresses from which the user logged
//! in before: a flood of guesses does not lock out the user.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::limiter::{Limiter, address_key};

/// Addresses remembered for each user.
const KNOWN: usize = 8;

/// Limits of password tries, by lowercase user name.
#[derive(Debug)]
pub struct PasswordTries {
    by_client: Limiter<(String, u128)>,
    by_user: Limiter<String>,
    /// Addresses with a successful login, the latest last.
    known: Mutex<FxHashMap<String, VecDeque<u128>>>,
}

impl Default for PasswordTries {
    fn default() -> Self {
        Self {
            by_client: Limiter::new(0.1, 20.0),
            by_user: Limiter::new(0.1, 100.0),
            known: Mutex::default(),
        }
    }
}

impl PasswordTries {
    /// Takes one try. The error is the number of seconds until the next one.
    pub fn take(&self, user: &str, address: IpAddr) -> Result<(), u64> {
        self.take_at(user, address, Instant::now())
    }

    /// Like [`PasswordTries::take`], at a given time.
    pub fn take_at(&self, user: &str, address: IpAddr, now: Instant) -> Result<(), u64> {
        let (user, address) = (user.to_lowercase(), address_key(address));
        self.by_client.take_at((user.clone(), address), now)?;
        if self.is_known(&user, address) {
            return Ok(());
        }
        self.by_user.take_at(user, now)
    }

    /// Remembers the address of a try with the right password. The user must exist.
    pub fn succeeded(&self, user: &str, address: IpAddr) {
        let address = address_key(address);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = known.entry(user.to_lowercase()).or_default();
        addresses.retain(|known| *known != address);
        addresses.push_back(address);
        if addresses.len() > KNOWN {
            addresses.pop_front();
        }
    }

    fn is_known(&self, user: &str, address: u128) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(user).is_some_and(|addresses| addresses.contains(&address))
    }
}

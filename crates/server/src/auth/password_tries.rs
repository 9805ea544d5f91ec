//! Limits of password tries.
//!
//! Strangers with many addresses can exhaust the last of these limits, and strangers at the same address the second. The
//! device from which a user logged in before is never locked out by other clients:
//!
//! | client | limit |
//! |---|---|
//! | device with a token of the user ([`Device`]) | its own, alone |
//! | address of an open session of the user | by user and address |
//! | any other | by user and address, and by user over all such addresses |

use std::net::IpAddr;
use std::time::Instant;

use super::devices::Device;
use super::limiter::{Limiter, address_key};

/// Tries per second, and burst, of one device or address.
const CLIENT: (f64, f64) = (0.1, 20.0);
/// The same for all strangers together: ten addresses try no faster.
pub const STRANGER_TRIES: (f64, f64) = (1.0, 1000.0);

/// Limits of password tries, by lowercase user name.
#[derive(Debug)]
pub struct PasswordTries {
    devices: Limiter<Device>,
    clients: Limiter<(String, u128)>,
    strangers: Limiter<String>,
}

impl PasswordTries {
    /// `strangers` is the number of tries per second, and the burst, of all strangers of one user.
    pub fn new(strangers: (f64, f64)) -> Self {
        Self {
            devices: Limiter::new(CLIENT.0, CLIENT.1),
            clients: Limiter::new(CLIENT.0, CLIENT.1),
            strangers: Limiter::new(strangers.0, strangers.1),
        }
    }

    /// Takes one try of a device of the user. The error is the number of seconds until the next one.
    pub fn take_device(&self, device: Device) -> Result<(), u64> {
        self.devices.take(device)
    }

    /// Takes one try. `has_session` returns true if a session of the user was opened from the address. The error is the
    /// number of seconds until the next one.
    pub fn take(
        &self,
        user: &str,
        address: IpAddr,
        has_session: impl FnOnce() -> bool,
    ) -> Result<(), u64> {
        self.take_at(user, address, has_session, Instant::now())
    }

    /// Like [`PasswordTries::take`], at a given time.
    pub fn take_at(
        &self,
        user: &str,
        address: IpAddr,
        has_session: impl FnOnce() -> bool,
        now: Instant,
    ) -> Result<(), u64> {
        let user = user.to_lowercase();
        self.clients.take_at((user.clone(), address_key(address)), now)?;
        // The search for a session is rare, because it takes longer.
        self.strangers
            .take_at(user, now)
            .or_else(|wait| if has_session() { Ok(()) } else { Err(wait) })
    }
}

//! Authentication: tokens, passwords, sessions and rate limits.
//!
//! Every decision is a pure function of the directory, a token and the time. Changes of users and keys are built here
//! as a [`DirectoryWrite`](crate::core::DirectoryWrite), which the core executes.

mod accounts;
mod browser;
mod devices;
mod identity;
mod jwt;
mod keys;
mod limiter;
mod password_tries;
mod passwords;
mod sessions;
mod tokens;

use std::sync::Mutex;

use rustc_hash::FxHashMap;

use agentaflow_api::ids::{CredentialId, UserId};
use agentaflow_api::units::Stamp;

pub use accounts::{UserPatch, create_user, deactivate_user, register, show_user, update_user};
pub use browser::{CookieNames, Site, check_host, check_origin, cookie, cookie_names, set_cookie};
pub use devices::Device;
pub use identity::{PresentedToken, Principal, known, presented};
pub use jwt::{ACCESS_SECONDS, Claims, JwtKeys};
pub use keys::{NewKey, create_key, list_keys, revoke_key, rotate_key, show_key};
pub use limiter::{AddressLimiter, Limiter, networks};
pub use password_tries::{PasswordTries, STRANGER_TRIES};
pub use passwords::{PASSWORD_LENGTH, Passwords};
pub use sessions::{
    Opened, end_session, end_session_named, has_session_from, open_session, refresh, use_link,
};
pub use tokens::{Minted, digest, mint, new_secret, sha256_hex};

/// Name of the key in the file `admin-token`.
pub const ADMIN_TOKEN: &str = "admin-token";
/// Name of the token in the file `registration-token`.
pub const REGISTRATION_TOKEN: &str = "registration-token";
/// Minimum interval between two stored uses of a key, in milliseconds.
const TOUCH_EVERY: i64 = 60_000;
/// Maximum number of keys with a remembered last use; uses of further keys are stored more often.
const TOUCHED_MOST: usize = 10_000;

/// Keys and rate limiters for authentication.
#[derive(Debug)]
pub struct Auth {
    /// Signs and verifies access tokens.
    pub jwt: JwtKeys,
    /// Hashes and verifies passwords.
    pub passwords: Passwords,
    /// Requests without a valid token, by address.
    pub unauthenticated: AddressLimiter,
    /// Sign-ups, refreshes, logouts and login links by address.
    pub sessions: AddressLimiter,
    /// Logins by address.
    pub logins: AddressLimiter,
    /// Passwords by user, device and address.
    pub password_tries: PasswordTries,
    /// Requests by account.
    pub accounts: Limiter<UserId>,
    /// Requests that make the engine plan, by account.
    pub plans: Limiter<UserId>,
    touched: Mutex<FxHashMap<CredentialId, Stamp>>,
}

impl Auth {
    /// `rate` is the number of requests per second and the burst of each account.
    pub fn new(jwt: JwtKeys, rate: (u32, u32)) -> Self {
        Self {
            jwt,
            passwords: Passwords::default(),
            unauthenticated: AddressLimiter::new(100.0, 1000.0),
            sessions: AddressLimiter::new(1.0 / 3.0, 20.0),
            logins: AddressLimiter::new(2.0, 200.0),
            password_tries: PasswordTries::new(STRANGER_TRIES),
            accounts: Limiter::new(f64::from(rate.0), f64::from(rate.1)),
            plans: Limiter::new(20.0, 40.0),
            touched: Mutex::default(),
        }
    }

    /// Returns true if this use of the key must be stored now.
    pub fn should_record_use(
        &self,
        credential: CredentialId,
        last: Option<Stamp>,
        now: Stamp,
    ) -> bool {
        let recent = |at: Stamp| now.0.saturating_sub(at.0) < TOUCH_EVERY;
        if last.is_some_and(recent) {
            return false;
        }
        let mut touched = self.touched.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if touched.get(&credential).copied().is_some_and(recent) {
            return false;
        }
        if touched.len() >= TOUCHED_MOST {
            touched.clear();
        }
        touched.insert(credential, now);
        true
    }
}

#[cfg(test)]
mod tests;

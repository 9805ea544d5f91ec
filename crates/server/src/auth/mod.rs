//! Who is calling: tokens, passwords, sessions, and how often they may try.
//!
//! Everything that decides is a pure function of the directory, a token and the time. What changes people and
//! keys is built here as a [`DirectoryWrite`](crate::core::DirectoryWrite) and carried out by the core.

mod accounts;
mod browser;
mod identity;
mod jwt;
mod keys;
mod limiter;
mod passwords;
mod sessions;
mod tokens;

use std::sync::Mutex;

use rustc_hash::FxHashMap;

use agentaflow_api::ids::UserId;
use agentaflow_api::units::Stamp;

pub use accounts::{UserPatch, create_user, deactivate_user, register, show_user, update_user};
pub use browser::{CookieNames, Site, check_host, check_origin, cookie, cookie_names, set_cookie};
pub use identity::{Known, Presented, known, presented};
pub use jwt::{ACCESS_SECONDS, Claims, JwtKeys};
pub use keys::{NewKey, create_key, list_keys, revoke_key, rotate_key, show_key};
pub use limiter::{Limiter, address_key};
pub use passwords::{PASSWORD_LENGTH, Passwords};
pub use sessions::{Opened, end_session, end_session_named, open_session, refresh, use_link};
pub use tokens::{Minted, digest, mint, new_secret, sha256_hex};

/// The name of the key in the file `admin-token`.
pub const ADMIN_TOKEN: &str = "admin-token";
/// The name of the token in the file `registration-token`.
pub const REGISTRATION_TOKEN: &str = "registration-token";
/// A use of a key is written down at most once in so many milliseconds.
const TOUCH_EVERY: i64 = 60_000;
/// Keys whose last use is remembered; more are simply written down more often.
const TOUCHED_MOST: usize = 10_000;

/// What is needed to find out who calls.
#[derive(Debug)]
pub struct Auth {
    /// Signs and checks access tokens.
    pub jwt: JwtKeys,
    /// Hashes and checks passwords.
    pub passwords: Passwords,
    /// Calls by address without a valid token.
    pub strangers: Limiter<u128>,
    /// Logins by address.
    pub logins: Limiter<u128>,
    /// Logins by name, so that many addresses do not help a guesser.
    pub names: Limiter<String>,
    /// Calls by account.
    pub accounts: Limiter<UserId>,
    /// Questions by account that the scheduler must plan for.
    pub plans: Limiter<UserId>,
    touched: Mutex<FxHashMap<i64, Stamp>>,
}

impl Auth {
    /// For these keys, with so many requests a second and so large a burst for each account.
    pub fn new(jwt: JwtKeys, rate: (u32, u32)) -> Self {
        Self {
            jwt,
            passwords: Passwords::default(),
            strangers: Limiter::new(100.0, 1000.0),
            logins: Limiter::new(1.0 / 3.0, 20.0),
            names: Limiter::new(0.2, 50.0),
            accounts: Limiter::new(f64::from(rate.0), f64::from(rate.1)),
            plans: Limiter::new(20.0, 40.0),
            touched: Mutex::default(),
        }
    }

    /// Whether the use of this key is worth writing down now.
    pub fn worth_noting(&self, credential: i64, last: Option<Stamp>, now: Stamp) -> bool {
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

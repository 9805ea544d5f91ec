//! Passwords: argon2id on blocking threads, at most two at a time.

use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use tokio::sync::Semaphore;

use agentaflow_api::units::Secret;

use crate::api_error::ApiError;

/// Permitted length of a password, in characters.
pub const PASSWORD_LENGTH: RangeInclusive<usize> = 10..=200;
/// Concurrent hashes: each takes 19 MiB and tens of milliseconds of a core.
const AT_ONCE: usize = 2;
/// Maximum number of queued callers; further callers receive an error.
const WAITING: usize = 64;

/// Hashes and verifies passwords.
#[derive(Clone, Debug)]
pub struct Passwords {
    turns: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            queue: Arc::new(Semaphore::new(AT_ONCE + WAITING)),
        }
    }
}

impl Passwords {
    /// Hash of a password, in PHC format.
    pub async fn hash(&self, password: &Secret) -> Result<String, ApiError> {
        let password = password.clone();
        self.blocking(move || hash(&password)).await?
    }

    /// Returns true if the password matches. Takes the same time without a hash, so that response times do not reveal
    /// existing names.
    pub async fn verify(&self, password: &Secret, hash: Option<String>) -> Result<bool, ApiError> {
        let password = password.clone();
        self.blocking(move || {
            let known = hash.is_some();
            let hash = hash.unwrap_or_else(|| decoy().to_owned());
            verify(&password, &hash) && known
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let busy = || ApiError::too_many("too many logins at once; try again in a moment", 2);
        let _place = self.queue.clone().try_acquire_owned().map_err(|_| busy())?;
        let turn = self.turns.clone().acquire_owned().await.map_err(|_| busy())?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(turn);
            result
        });
        done.await
            .map_err(|_| ApiError::unavailable("the password could not be checked; try again"))
    }
}

fn hash(password: &Secret) -> Result<String, ApiError> {
    Argon2::default()
        .hash_password(password.expose().as_bytes())
        .map(|hash| hash.to_string())
        .map_err(|_| ApiError::unavailable("the password could not be hashed; try again"))
}

fn verify(password: &Secret, hash: &str) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else { return false };
    Argon2::default().verify_password(password.expose().as_bytes(), &hash).is_ok()
}

/// Hash for unknown names, with the parameters of all other hashes.
fn decoy() -> &'static str {
    static DECOY: OnceLock<String> = OnceLock::new();
    DECOY.get_or_init(|| hash(&Secret::from("no user has this password")).unwrap_or_default())
}

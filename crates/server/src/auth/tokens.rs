//! Random secrets, and the hashes under which they are stored.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use agentaflow_api::units::{Secret, Stamp};

use crate::api_error::ApiError;
use crate::store::{CredentialKind, CredentialRow};

/// Number of characters of a secret that lists show.
const SHOWN: usize = 10;

/// A new secret with its record, which has no id yet.
#[derive(Clone, Debug)]
pub struct Minted {
    /// The secret; returned only once.
    pub secret: Secret,
    pub row: CredentialRow,
}

/// New secret: a prefix that names its kind, and 32 random bytes.
pub fn new_secret(kind: CredentialKind) -> Result<Secret, ApiError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|_| {
        ApiError::unavailable("cannot read random numbers from the system; try again")
    })?;
    Ok(Secret(format!("{}{}", prefix(kind), URL_SAFE_NO_PAD.encode(bytes))))
}

/// New secret of this kind with its record.
pub fn mint(kind: CredentialKind, name: &str) -> Result<Minted, ApiError> {
    let secret = new_secret(kind)?;
    let row = CredentialRow {
        kind,
        hash: digest(secret.expose()),
        prefix: secret.expose().chars().take(SHOWN).collect(),
        name: name.to_owned(),
        created_at: Stamp::now(),
        ..CredentialRow::default()
    };
    Ok(Minted { secret, row })
}

/// Hash under which a secret is stored. The secret is long and random, so a fast hash suffices.
pub fn digest(secret: &str) -> String {
    sha256_hex(secret.as_bytes())
}

/// SHA-256 in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Prefix of secrets of this kind.
fn prefix(kind: CredentialKind) -> &'static str {
    match kind {
        CredentialKind::ApiKey => "aft_",
        CredentialKind::Refresh => "aff_",
        CredentialKind::Invite => "afi_",
        CredentialKind::BrowserLink => "afl_",
        CredentialKind::Registration => "afr_",
        CredentialKind::Node => "afn_",
        CredentialKind::Agent => "afa_",
    }
}

//! Random secrets, and the hashes under which they are kept.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use agentaflow_api::units::{Secret, Stamp};

use crate::api_error::ApiError;
use crate::store::{CredentialKind, CredentialRow};

/// Characters of a secret that lists may show.
const SHOWN: usize = 10;

/// A new secret with the row that remembers it. The row has no number yet.
#[derive(Clone, Debug)]
pub struct Minted {
    /// The secret itself, told once.
    pub secret: Secret,
    /// What is kept.
    pub row: CredentialRow,
}

/// A secret of this kind: a prefix that says what it is, and 32 random bytes.
pub fn new_secret(kind: CredentialKind) -> Result<Secret, ApiError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|_| ApiError::unavailable("the system gives no random numbers; try again"))?;
    Ok(Secret(format!("{}{}", prefix(kind), URL_SAFE_NO_PAD.encode(bytes))))
}

/// A secret of this kind, ready to be kept.
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

/// The hash under which a secret is kept. The secret is random and long, so a fast hash is enough.
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

/// How secrets of this kind begin.
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

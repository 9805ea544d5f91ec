//! Access tokens: JWT with HS256, valid for an hour and only while their session is open.
//!
//! The header is a constant, so a token with another algorithm, `none` included, never passes. Expiry is checked by
//! the caller, who also checks the session.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use agentaflow_api::ids::UserId;
use agentaflow_api::units::{Secret, Stamp};

use crate::api_error::ApiError;

/// Validity of an access token.
pub const ACCESS_SECONDS: u64 = 3600;

/// `{"alg":"HS256","typ":"JWT"}`: the only header that this server writes or accepts.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";

/// Claims of an access token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Number of the user.
    pub sub: String,
    /// Epoch of the user at the time of issue; a later epoch invalidates the token.
    pub session_epoch: u32,
    /// Session; its end invalidates the token.
    pub sid: String,
    /// Time of issue, in seconds since 1970.
    pub iat: i64,
    /// Expiry, in seconds since 1970.
    pub exp: i64,
    /// Earliest time of use, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
}

impl Claims {
    /// Returns true if the token is valid at this time.
    pub fn valid_at(&self, now: Stamp) -> bool {
        let now = now.0.div_euclid(1000);
        now < self.exp && self.nbf.is_none_or(|earliest| earliest <= now)
    }
}

/// Key that signs and verifies access tokens.
#[derive(Clone)]
pub struct JwtKeys {
    mac: Hmac<Sha256>,
}

impl std::fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JwtKeys(***)")
    }
}

impl JwtKeys {
    /// A key from a secret of any length.
    pub fn new(secret: &[u8]) -> Self {
        // HMAC hashes a secret that is longer than a block, so no length fails.
        let mac = Hmac::new_from_slice(secret).expect("HMAC takes a key of any length");
        Self { mac }
    }

    /// A token for a session of this user.
    pub fn issue(
        &self,
        user: UserId,
        epoch: u32,
        sid: &str,
        now: Stamp,
    ) -> Result<Secret, ApiError> {
        let iat = now.0.div_euclid(1000);
        self.sign(&Claims {
            sub: user.to_string(),
            session_epoch: epoch,
            sid: sid.to_owned(),
            iat,
            exp: iat + ACCESS_SECONDS as i64,
            nbf: None,
        })
    }

    /// A token that only proves that this server issued it to the user.
    pub fn issue_expired(&self, user: UserId, sid: &str, now: Stamp) -> Result<Secret, ApiError> {
        self.sign(&Claims {
            sub: user.to_string(),
            session_epoch: 0,
            sid: sid.to_owned(),
            iat: now.0.div_euclid(1000),
            exp: 0,
            nbf: None,
        })
    }

    fn sign(&self, claims: &Claims) -> Result<Secret, ApiError> {
        let claims = serde_json::to_vec(claims)
            .map_err(|_| ApiError::unavailable("The token cannot be signed; retry"))?;
        let signed = format!("{HEADER}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = self.mac.clone().chain_update(&signed).finalize().into_bytes();
        Ok(Secret(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))))
    }

    /// Claims of a token that this key signed. The caller checks [`Claims::valid_at`].
    pub fn read(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let claims = signed.strip_prefix(HEADER)?.strip_prefix('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        // `verify_slice` compares in constant time.
        self.mac.clone().chain_update(signed).verify_slice(&signature).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Stamp = Stamp(1_794_736_800_000);

    fn keys() -> JwtKeys {
        JwtKeys::new(b"a secret of the server")
    }

    fn token() -> String {
        keys().issue(UserId(7), 2, "session", NOW).unwrap().0
    }

    /// A token with this header and these claims, signed with the right key.
    fn signed(header: &str, claims: &str) -> String {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = keys().mac.chain_update(&text).finalize().into_bytes();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn the_header_is_hs256() {
        let header = URL_SAFE_NO_PAD.decode(HEADER).unwrap();
        assert_eq!(header, br#"{"alg":"HS256","typ":"JWT"}"#);
    }

    #[test]
    fn a_token_of_this_key_is_read() {
        let claims = keys().read(&token()).unwrap();
        assert_eq!((claims.sub.as_str(), claims.session_epoch), ("7", 2));
        assert!(claims.valid_at(NOW));
        assert_eq!(JwtKeys::new(b"another secret").read(&token()), None);
    }

    #[test]
    fn an_expired_token_is_read_and_never_valid() {
        let token = keys().issue_expired(UserId(7), "device", NOW).unwrap();
        let claims = keys().read(token.expose()).unwrap();
        assert_eq!((claims.sub.as_str(), claims.sid.as_str()), ("7", "device"));
        assert!(!claims.valid_at(NOW) && !claims.valid_at(Stamp(0)));
    }

    #[test]
    fn the_known_vector_of_rfc_7515_verifies() {
        let key = URL_SAFE_NO_PAD
            .decode("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
            .unwrap();
        let signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let signature = JwtKeys::new(&key).mac.chain_update(signed).finalize().into_bytes();
        assert_eq!(
            URL_SAFE_NO_PAD.encode(signature),
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
        );
    }

    #[test]
    fn a_tampered_token_is_rejected() {
        let token = token();
        let parts: Vec<&str> = token.split('.').collect();
        let mut claims = keys().read(&token).unwrap();
        claims.sub = "1".to_owned();
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap());
        for forged in [
            format!("{}.{claims}.{}", parts[0], parts[2]),
            format!("{}.{}.", parts[0], parts[1]),
            format!("{}.{}", parts[0], parts[1]),
            format!("{token}.x"),
            format!("{token}="),
            token[..token.len() - 1].to_owned(),
            String::new(),
        ] {
            assert_eq!(keys().read(&forged), None, "{forged}");
        }
    }

    #[test]
    fn only_hs256_is_accepted() {
        let claims = r#"{"sub":"1","session_epoch":0,"sid":"s","iat":0,"exp":9999999999}"#;
        assert!(keys().read(&signed(r#"{"alg":"HS256","typ":"JWT"}"#, claims)).is_some());
        for header in [
            r#"{"alg":"none","typ":"JWT"}"#,
            r#"{"alg":"HS384","typ":"JWT"}"#,
            r#"{"alg":"RS256","typ":"JWT"}"#,
            r#"{"typ":"JWT","alg":"HS256"}"#,
            "{}",
        ] {
            assert_eq!(keys().read(&signed(header, claims)), None, "{header}");
        }
        let unsigned = format!(
            "{}.{}.",
            URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#),
            URL_SAFE_NO_PAD.encode(claims)
        );
        assert_eq!(keys().read(&unsigned), None);
    }

    #[test]
    fn a_token_is_valid_between_nbf_and_exp() {
        let claims = keys().read(&token()).unwrap();
        assert!(!claims.valid_at(Stamp(NOW.0 + 3_600_000)));
        assert!(claims.valid_at(Stamp(NOW.0 + 3_599_999)));
        let early = Claims { nbf: Some(NOW.0 / 1000 + 60), ..claims };
        assert!(!early.valid_at(NOW) && early.valid_at(Stamp(NOW.0 + 60_000)));
    }

    #[test]
    fn a_token_without_required_claims_is_rejected() {
        let header = r#"{"alg":"HS256","typ":"JWT"}"#;
        for claims in [r#"{"sub":"1"}"#, r#"{"exp":9999999999}"#, "{}", "[]", "x"] {
            assert_eq!(keys().read(&signed(header, claims)), None, "{claims}");
        }
    }
}

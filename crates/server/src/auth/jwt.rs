//! Access tokens: JWT with HS256, good for an hour and only while their session lives.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};

use agentaflow_api::ids::UserId;
use agentaflow_api::units::{Secret, Stamp};

use crate::api_error::ApiError;

/// How long an access token counts.
pub const ACCESS_SECONDS: u64 = 3600;

/// What an access token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The user's number.
    pub sub: String,
    /// The user's epoch when the token was made; another one makes it void.
    pub session_epoch: u32,
    /// The session; when it is over, so is the token.
    pub sid: String,
    /// Seconds since 1970.
    pub iat: i64,
    /// Seconds since 1970.
    pub exp: i64,
}

/// Signs and checks access tokens.
#[derive(Clone)]
pub struct JwtKeys {
    sign: EncodingKey,
    check: DecodingKey,
}

impl std::fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JwtKeys(***)")
    }
}

impl JwtKeys {
    /// With this secret.
    pub fn new(secret: &[u8]) -> Self {
        Self { sign: EncodingKey::from_secret(secret), check: DecodingKey::from_secret(secret) }
    }

    /// A token for this user's session.
    pub fn issue(
        &self,
        user: UserId,
        epoch: u32,
        sid: &str,
        now: Stamp,
    ) -> Result<Secret, ApiError> {
        let iat = now.0 / 1000;
        let claims = Claims {
            sub: user.to_string(),
            session_epoch: epoch,
            sid: sid.to_owned(),
            iat,
            exp: iat + ACCESS_SECONDS as i64,
        };
        encode(&Header::new(Algorithm::HS256), &claims, &self.sign)
            .map(Secret)
            .map_err(|_| ApiError::unavailable("the token could not be signed; try again"))
    }

    /// What the token says, if it is one of ours. Whether it has ended is the caller's business.
    pub fn read(&self, token: &str) -> Option<Claims> {
        let mut rules = Validation::new(Algorithm::HS256);
        // The time is an argument everywhere else, so it is compared there and not by the library's clock.
        rules.validate_exp = false;
        rules.set_required_spec_claims(&["exp", "sub"]);
        decode::<Claims>(token, &self.check, &rules).ok().map(|data| data.claims)
    }
}

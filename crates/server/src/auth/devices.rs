//! Devices from which a user logged in before, recognised by a token of the server.
//!
//! A browser has a cookie for this; a program sends an access token or key of the user, which may have expired. The token
//! permits nothing: the password tries of the device count apart from tries of strangers, who could otherwise lock out
//! the user.

use agentaflow_api::ids::UserId;
use agentaflow_api::units::{Secret, Stamp};

use super::identity::{PresentedToken, presented};
use super::jwt::JwtKeys;
use super::tokens::{digest, new_secret};
use crate::api_error::ApiError;
use crate::directory::Directory;
use crate::store::CredentialKind;

/// A device of a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    pub user: UserId,
    name: String,
}

impl Device {
    /// The client that a user has authenticated, for further tries of the password.
    pub fn of_session(user: UserId) -> Self {
        Self { user, name: String::new() }
    }

    /// Device that holds this token; none if the server did not issue it to a user.
    pub fn holding(directory: &Directory, jwt: &JwtKeys, token: &str) -> Option<Self> {
        match presented(jwt, token) {
            PresentedToken::Session(claims) => {
                Some(Self { user: claims.sub.parse().ok()?, name: claims.sid })
            }
            PresentedToken::Key(hash) => {
                let row = directory.credentials.get(directory.by_hash.get(&hash)?)?;
                let user = row.user_id.filter(|_| row.kind == CredentialKind::ApiKey)?;
                Some(Self { user, name: hash })
            }
        }
    }

    /// Token for a new device: an access token that has expired.
    pub fn issue(user: UserId, jwt: &JwtKeys) -> Result<Secret, ApiError> {
        let name = digest(new_secret(CredentialKind::Refresh)?.expose());
        jwt.issue_expired(user, &name, Stamp::now())
    }
}

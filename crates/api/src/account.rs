//! Users, API keys and sessions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{CredentialId, UserId};
use crate::lenient;
use crate::units::{Dollars, Secret, Stamp};

/// Role of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// All calls.
    Admin,
    /// Own jobs; read access to nodes and queues.
    #[default]
    User,
    /// Read-only access to all objects.
    Viewer,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct User {
    pub id: UserId,
    pub username: String,
    pub email: Option<String>,
    pub role: Role,
    /// Permissions beyond the role: `process` permits jobs that run as plain processes.
    pub grants: Vec<String>,
    /// May log in and use keys.
    pub active: bool,
    /// Queue of jobs that do not name one.
    pub default_queue: String,
    /// Credit minus cost.
    pub balance: Dollars,
    /// Jobs stay pending when the balance is exhausted.
    pub prepaid: bool,
    /// Limit per calendar month (UTC); none means no limit.
    pub spending_limit: Option<Dollars>,
    /// Cost of this month, running jobs included.
    pub spent_this_month: Dollars,
    pub created_at: Stamp,
    /// Sign-up code; only in the response to an invitation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invite: Option<Secret>,
}

/// Creation of a user by an admin. Without a password, the server creates an invitation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UserCreate {
    pub username: String,
    pub email: Option<String>,
    /// At least 10 characters.
    pub password: Option<Secret>,
    /// Default `user`.
    pub role: Option<Role>,
    /// Permissions beyond the role.
    #[serde(deserialize_with = "lenient::or_default")]
    pub grants: Vec<String>,
    /// Queue of jobs that do not name one; default `root`.
    pub default_queue: Option<String>,
    /// Limit per calendar month (UTC).
    pub spending_limit: Option<Dollars>,
    /// Jobs stay pending when the balance is exhausted.
    #[serde(deserialize_with = "lenient::or_default")]
    pub prepaid: bool,
}

/// Changes to a user; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UserUpdate {
    pub email: Option<String>,
    /// New password; ends all sessions.
    pub password: Option<Secret>,
    /// Old password; required to change one's own.
    pub old_password: Option<Secret>,
    /// Admins only, like all fields below.
    pub role: Option<Role>,
    /// Permissions beyond the role.
    pub grants: Option<Vec<String>>,
    /// May log in and use keys.
    pub active: Option<bool>,
    /// Queue of jobs that do not name one.
    pub default_queue: Option<String>,
    /// Limit per calendar month; a negative number removes the limit.
    pub spending_limit: Option<Dollars>,
    /// Jobs stay pending when the balance is exhausted.
    pub prepaid: Option<bool>,
}

/// Sign-up, with an invitation or where sign-up is open.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Register {
    /// Login name; default is the name of the invitation.
    pub username: Option<String>,
    pub email: Option<String>,
    /// At least 10 characters.
    pub password: Secret,
    /// Code of the invitation.
    pub invite: Option<Secret>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Login {
    /// Login name, or use `email`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub username: String,
    /// Mail address of the account, instead of `username`.
    pub email: Option<String>,
    pub password: Secret,
    /// Sets cookies for a browser instead of returning tokens.
    #[serde(deserialize_with = "lenient::or_default")]
    pub cookie: bool,
}

/// Refresh or end of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Refresh {
    /// Refresh token of the login; default is the cookie.
    pub refresh_token: Option<Secret>,
}

/// Tokens of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// Token for the `Authorization: Bearer` header.
    pub access_token: Secret,
    /// Token for `/auth/refresh`; single use.
    pub refresh_token: Secret,
    /// Always `bearer`.
    pub token_type: String,
    /// Seconds until the access token expires.
    pub expires_in: u64,
}

/// Creation of a key.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ApiKeyCreate {
    /// Purpose.
    pub name: String,
    /// Days until expiry; default never.
    #[serde(deserialize_with = "lenient::small")]
    pub expires_in_days: Option<u32>,
    /// Seconds until expiry, instead of days (additive).
    #[serde(deserialize_with = "lenient::whole")]
    pub expires_in_seconds: Option<u64>,
    /// Registration tokens: number of node registrations; default unlimited (additive).
    #[serde(deserialize_with = "lenient::small")]
    pub uses: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    pub id: CredentialId,
    /// Purpose.
    pub name: String,
    /// First characters of the key.
    pub prefix: String,
    pub created_at: Stamp,
    pub expires_at: Option<Stamp>,
    /// Time of the last use, to the minute.
    pub last_used_at: Option<Stamp>,
    pub revoked: bool,
    /// Node registrations left; none means unlimited (additive).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_left: Option<u32>,
    /// The key; only in the response to its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
}

/// A registration token; created with [`ApiKeyCreate`].
pub type RegistrationToken = ApiKey;

//! People, their keys, and how they log in.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lenient;
use crate::units::{Dollars, Secret, Stamp};

/// What somebody may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Own jobs, and look at nodes and queues.
    #[default]
    User,
    /// Look at everything, change nothing.
    Viewer,
}

/// A user as the API shows one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// The number.
    pub id: i64,
    /// The name to log in with.
    pub username: String,
    /// Mail address.
    pub email: Option<String>,
    /// What the user may do.
    pub role: Role,
    /// Rights beyond the role: `process` allows jobs that run as plain processes.
    pub grants: Vec<String>,
    /// May log in and use keys.
    pub active: bool,
    /// The queue for jobs that do not name one.
    pub default_queue: String,
    /// Credit minus cost, in dollars.
    pub balance: Dollars,
    /// Jobs wait when the balance is used up.
    pub prepaid: bool,
    /// The most that may be spent in a calendar month (UTC); none is no limit.
    pub spending_limit: Option<Dollars>,
    /// Spent this month, running jobs included.
    pub spent_this_month: Dollars,
    /// When the user was made.
    pub created_at: Stamp,
    /// The code with which the invited user signs up; only in the answer to an invitation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invite: Option<Secret>,
}

/// A user to be made by an admin. Without a password an invitation is made.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UserCreate {
    /// The name to log in with.
    pub username: String,
    /// Mail address.
    pub email: Option<String>,
    /// At least ten characters.
    pub password: Option<Secret>,
    /// `user` when absent.
    pub role: Option<Role>,
    /// Rights beyond the role.
    #[serde(deserialize_with = "lenient::or_default")]
    pub grants: Vec<String>,
    /// The queue for jobs that do not name one; `root` when absent.
    pub default_queue: Option<String>,
    /// The most that may be spent in a month.
    pub spending_limit: Option<Dollars>,
    /// Jobs wait when the balance is used up.
    #[serde(deserialize_with = "lenient::or_default")]
    pub prepaid: bool,
}

/// What may be changed about a user; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UserUpdate {
    /// Mail address.
    pub email: Option<String>,
    /// A new password; ends all sessions.
    pub password: Option<Secret>,
    /// The old password, for those who change their own.
    pub old_password: Option<Secret>,
    /// What the user may do (admins only, like all below).
    pub role: Option<Role>,
    /// Rights beyond the role.
    pub grants: Option<Vec<String>>,
    /// May log in and use keys.
    pub active: Option<bool>,
    /// The queue for jobs that do not name one.
    pub default_queue: Option<String>,
    /// The most that may be spent in a month; a negative number removes the limit.
    pub spending_limit: Option<Dollars>,
    /// Jobs wait when the balance is used up.
    pub prepaid: Option<bool>,
}

/// Signing up, with an invitation or where sign-up is open.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Register {
    /// The name to log in with; the invitation's when absent.
    pub username: Option<String>,
    /// Mail address.
    pub email: Option<String>,
    /// At least ten characters.
    pub password: Secret,
    /// The code of the invitation.
    pub invite: Option<Secret>,
}

/// Logging in.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Login {
    /// The name.
    pub username: String,
    /// The password.
    pub password: Secret,
    /// Set cookies for a browser instead of returning tokens.
    #[serde(deserialize_with = "lenient::or_default")]
    pub cookie: bool,
}

/// Using or ending a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Refresh {
    /// The token from the login; the cookie's when absent.
    pub refresh_token: Option<Secret>,
}

/// What a login returns.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// For the `Authorization: Bearer` header.
    pub access_token: Secret,
    /// For `/auth/refresh`; each can be used once.
    pub refresh_token: Secret,
    /// Always `bearer`.
    pub token_type: String,
    /// Seconds until the access token ends.
    pub expires_in: u64,
}

/// A key to be made.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ApiKeyCreate {
    /// What it is for.
    pub name: String,
    /// Days until it ends; never when absent.
    #[serde(deserialize_with = "lenient::small")]
    pub expires_in_days: Option<u32>,
}

/// A key as the API shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    /// Its number.
    pub id: i64,
    /// What it is for.
    pub name: String,
    /// Its first characters.
    pub prefix: String,
    /// When it was made.
    pub created_at: Stamp,
    /// When it ends.
    pub expires_at: Option<Stamp>,
    /// When it was used last, to the minute.
    pub last_used_at: Option<Stamp>,
    /// It no longer works.
    pub revoked: bool,
    /// The key itself; only in the answer that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
}

/// A registration token as the API shows it; made with [`ApiKeyCreate`].
pub type RegistrationToken = ApiKey;

//! From a token to the one who holds it.

use agentaflow_api::ids::UserId;
use agentaflow_api::units::Stamp;

use super::jwt::{Claims, JwtKeys};
use super::tokens::digest;
use crate::core::Worker;
use crate::directory::Directory;
use crate::store::{CredentialKind, CredentialRow, UserRow};

/// A token as it came in, prepared for a short look into the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presented {
    /// The hash of a key.
    Key(String),
    /// What a signed access token says.
    Session(Claims),
}

/// Who holds a token.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// A user; with the key and its last use, if it was a key.
    User(Box<UserRow>, Option<(i64, Option<Stamp>)>),
    /// A machine; with the token and its last use, if it was a registration token.
    Worker(Worker, Option<(i64, Option<Stamp>)>),
}

/// Why a token does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Nobody has it.
    NoSuch,
    /// It was good once.
    Ended,
    /// Its user may not log in any more.
    Inactive,
}

impl Unknown {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoSuch => {
                "this token is not known here: it was revoked, or it belongs to another server"
            }
            Self::Ended => {
                "this token has ended: log in again, or use the refresh token at POST /auth/refresh"
            }
            Self::Inactive => "this account is switched off: ask an admin",
        }
    }
}

/// Reads a token. No look into the directory is needed for that, so no lock is held.
pub fn presented(jwt: &JwtKeys, token: &str) -> Presented {
    if token.starts_with("af") || token.len() > 4096 {
        return Presented::Key(digest(token));
    }
    jwt.read(token).map_or_else(|| Presented::Key(digest(token)), Presented::Session)
}

/// Who holds the token, if it counts at that time.
pub fn known(directory: &Directory, token: &Presented, now: Stamp) -> Result<Known, Unknown> {
    match token {
        Presented::Session(claims) => session(directory, claims, now),
        Presented::Key(hash) => match directory.credential(hash, now) {
            Some(found) => key(directory, found),
            None if directory.by_hash.contains_key(hash) => Err(Unknown::Ended),
            None => Err(Unknown::NoSuch),
        },
    }
}

fn session(directory: &Directory, claims: &Claims, now: Stamp) -> Result<Known, Unknown> {
    let user = claims.sub.parse().ok().and_then(|id: UserId| directory.users.get(&id));
    let user = user.ok_or(Unknown::NoSuch)?;
    if claims.exp <= now.0 / 1000
        || claims.session_epoch != user.session_epoch
        || !directory.session_lives(&claims.sid, user.id, now)
    {
        return Err(Unknown::Ended);
    }
    active(user).map(|user| Known::User(Box::new(user.clone()), None))
}

fn key(directory: &Directory, found: &CredentialRow) -> Result<Known, Unknown> {
    let last_use = Some((found.id, found.last_used_at));
    match (found.kind, found.user_id, found.node_id, found.agent_id) {
        (CredentialKind::ApiKey, Some(user), _, _) => {
            let user = active(directory.users.get(&user).ok_or(Unknown::NoSuch)?)?;
            Ok(Known::User(Box::new(user.clone()), last_use))
        }
        (CredentialKind::Registration, ..) => Ok(Known::Worker(Worker::Token, last_use)),
        (CredentialKind::Node, _, Some(node), _) => Ok(Known::Worker(Worker::Node(node), None)),
        (CredentialKind::Agent, _, Some(node), Some(agent)) => {
            Ok(Known::Worker(Worker::Agent { agent, node }, None))
        }
        // Refresh tokens, invitations and links open nothing by themselves.
        _ => Err(Unknown::NoSuch),
    }
}

fn active(user: &UserRow) -> Result<&UserRow, Unknown> {
    if user.active { Ok(user) } else { Err(Unknown::Inactive) }
}

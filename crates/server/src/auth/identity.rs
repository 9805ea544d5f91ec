//! Authentication: the holder of a token.

use agentaflow_api::error::TokenProblem;
use agentaflow_api::ids::{CredentialId, UserId};
use agentaflow_api::units::Stamp;

use super::jwt::{Claims, JwtKeys};
use super::tokens::digest;
use crate::core::Worker;
use crate::directory::Directory;
use crate::store::{CredentialKind, CredentialRow, UserRow};

/// A token of a request, parsed without access to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresentedToken {
    /// Hash of a key.
    Key(String),
    /// Claims of a signed access token.
    Session(Claims),
}

/// Holder of a token.
#[derive(Clone, Debug, PartialEq)]
pub enum Principal {
    /// A user; with the key and its last use, if it was a key.
    User(Box<UserRow>, Option<(CredentialId, Option<Stamp>)>),
    /// A node or agent; with the token and its last use, if it was a registration token.
    Worker(Worker, Option<(CredentialId, Option<Stamp>)>),
}

/// Parses a token. The directory is not needed, so no lock is held.
pub fn presented(jwt: &JwtKeys, token: &str) -> PresentedToken {
    if token.starts_with("af") || token.len() > 4096 {
        return PresentedToken::Key(digest(token));
    }
    jwt.read(token).map_or_else(|| PresentedToken::Key(digest(token)), PresentedToken::Session)
}

/// Holder of a token at this time. `Expired` covers revoked keys too.
pub fn known(
    directory: &Directory,
    token: &PresentedToken,
    now: Stamp,
) -> Result<Principal, TokenProblem> {
    match token {
        PresentedToken::Session(claims) => session(directory, claims, now),
        PresentedToken::Key(hash) => match directory.credential(hash, now) {
            Some(found) => key(directory, found),
            None if directory.by_hash.contains_key(hash) => Err(TokenProblem::Expired),
            None => Err(TokenProblem::Unrecognised),
        },
    }
}

fn session(directory: &Directory, claims: &Claims, now: Stamp) -> Result<Principal, TokenProblem> {
    let user = claims.sub.parse().ok().and_then(|id: UserId| directory.users.get(&id));
    let user = user.ok_or(TokenProblem::Unrecognised)?;
    if !claims.valid_at(now)
        || claims.session_epoch != user.session_epoch
        || !directory.session_lives(&claims.sid, user.id, now)
    {
        return Err(TokenProblem::Expired);
    }
    active(user).map(|user| Principal::User(Box::new(user.clone()), None))
}

fn key(directory: &Directory, found: &CredentialRow) -> Result<Principal, TokenProblem> {
    let last_use = Some((found.id, found.last_used_at));
    match (found.kind, found.user_id, found.node_id, found.agent_id) {
        (CredentialKind::ApiKey, Some(user), _, _) => {
            let user = active(directory.users.get(&user).ok_or(TokenProblem::Unrecognised)?)?;
            Ok(Principal::User(Box::new(user.clone()), last_use))
        }
        (CredentialKind::Registration, ..) => Ok(Principal::Worker(Worker::Token, last_use)),
        (CredentialKind::Node, _, Some(node), _) => Ok(Principal::Worker(Worker::Node(node), None)),
        (CredentialKind::Agent, _, Some(node), Some(agent)) => {
            Ok(Principal::Worker(Worker::Agent { agent, node }, None))
        }
        // Refresh tokens, invitations and links do not authenticate a request.
        _ => Err(TokenProblem::Unrecognised),
    }
}

fn active(user: &UserRow) -> Result<&UserRow, TokenProblem> {
    if user.active { Ok(user) } else { Err(TokenProblem::Inactive) }
}

//! Registrations with the name of a known node.
//!
//! The holder of the node's current key may repeat its registration. A push worker of the documented protocol knows only a
//! registration token: it may repeat the registration from the address of the last one. All other agents have a key; only
//! a node that has no agent yet, and therefore no jobs, may repeat its registration too: the answer with the key may be lost.
//! Anything else awaits the approval of an admin, so that a stolen registration token does not take over a node.

use std::net::IpAddr;

use agentaflow_api::agent::AgentRegistration;
use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::NodeId;
use agentaflow_api::node::PendingRegistration;
use agentaflow_api::units::Stamp;

use super::handle::Registrant;
use super::state::State;
use crate::api_error::ApiError;
use crate::store::{AgentRow, Change, CredentialRow, NodeRow};

/// Time within which an approved registration must follow.
const APPROVAL_MS: i64 = 3600 * 1000;
/// Capability of agents that hold a key.
const STREAM: &str = "stream";
/// Interval at which a repeated request is recorded again.
const RECORD_MS: i64 = 60 * 1000;

/// Decision on a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Granted,
    /// An admin must approve it.
    Pending,
}

impl State {
    /// Decides on a registration; records one that needs an approval.
    pub(super) fn claim(
        &mut self,
        known: Option<&NodeRow>,
        peer: IpAddr,
        registrant: Registrant,
    ) -> Result<Claim, ApiError> {
        let known = match (known, registrant) {
            (Some(row), Registrant::Key(node)) if row.id == node => return Ok(Claim::Granted),
            (_, Registrant::Key(_)) => {
                let message = "this key belongs to another node than the one that registers";
                return Err(ApiError::forbidden(message));
            }
            (None, Registrant::Token { .. }) => return Ok(Claim::Granted),
            (Some(row), Registrant::Token { .. }) => row,
        };
        if self.may_use_token(known, peer) || is_approved(known, peer, Stamp::now()) {
            return Ok(Claim::Granted);
        }
        self.record_claim(known, peer);
        Ok(Claim::Pending)
    }

    /// Approves the pending registration of a node.
    pub(super) fn approve_claim(
        &mut self,
        id: NodeId,
        expected: Option<&str>,
    ) -> Result<(), ApiError> {
        let name = self.nodes.name(id);
        let claim = self.nodes.get(id).and_then(|node| node.row().claim.clone());
        let Some(claim) = claim else {
            return Err(ApiError::not_found(ResourceKind::Registration, name));
        };
        if expected.is_some_and(|expected| expected != claim.address) {
            let message =
                format!("the pending registration of node `{name}` is from {}", claim.address);
            let conflict = ApiError::conflict(ErrorCode::ApprovalRequired, message);
            return Err(conflict.about(ResourceKind::Node, Some(name)));
        }
        let message = format!("registration of node `{name}` from {} approved", claim.address);
        let requested_at = Stamp::now();
        self.set_claim(id, PendingRegistration { approved: true, requested_at, ..claim });
        self.node_event(id, EventKind::NodeApproved, message);
        Ok(())
    }

    /// A registration token may act for a push node, and for a node without an agent, from the address of the node.
    pub(super) fn may_use_token(&self, row: &NodeRow, peer: IpAddr) -> bool {
        let has_key = |agent: &AgentRow| {
            let stream = agent.capabilities.get(STREAM);
            row.spec.api_endpoint.is_none() || stream.is_some_and(|stream| *stream == true)
        };
        !self.nodes.agents_of(row.id).any(has_key) && is_address_of(row, peer)
    }

    /// An agent registers with the key of its node, or with a token from the address of its node.
    pub(super) fn check_agent_registrant(
        &self,
        agent: &AgentRegistration,
        peer: IpAddr,
        registrant: Registrant,
    ) -> Result<(), ApiError> {
        let node = agent.node_id;
        match registrant {
            Registrant::Key(own) if Some(own) != node => {
                Err(ApiError::forbidden("this key belongs to another node than `node_id`"))
            }
            Registrant::Key(_) => Ok(()),
            Registrant::Token { .. } => match node.and_then(|node| self.nodes.get(node)) {
                Some(live) if !self.may_use_token(live.row(), peer) => {
                    Err(approval_required(&live.row().spec.node_name, peer))
                }
                _ => Ok(()),
            },
        }
    }

    /// Takes one use of a token with limited uses.
    pub(super) fn use_token(&mut self, registrant: Registrant) -> Result<(), ApiError> {
        let Registrant::Token { limited: Some(id) } = registrant else { return Ok(()) };
        let mut directory = self.directory.write();
        let row = directory.credentials.get(&id).filter(|row| row.revoked_at.is_none());
        let left = row.and_then(|row| row.uses_left?.checked_sub(1));
        let Some((row, left)) = row.cloned().zip(left) else {
            let message = "this registration token is used up; create one with `agentaflow token create --registration`";
            return Err(ApiError::unauthenticated(message));
        };
        let row = CredentialRow { uses_left: Some(left), last_used_at: Some(Stamp::now()), ..row };
        directory.put_credential(row.clone());
        self.journal.write(Change::Credential(Box::new(row)));
        Ok(())
    }

    fn record_claim(&mut self, known: &NodeRow, peer: IpAddr) {
        let now = Stamp::now();
        let address = peer.to_canonical().to_string();
        if let Some(claim) = &known.claim {
            let age = now.0.saturating_sub(claim.requested_at.0);
            let approved = claim.approved && age < APPROVAL_MS;
            if approved || (claim.address == address && age < RECORD_MS) {
                return;
            }
        }
        let is_new = known.claim.as_ref().is_none_or(|claim| claim.address != address);
        let name = &known.spec.node_name;
        if is_new {
            let message = format!("registration of node `{name}` from {address} awaits approval");
            self.node_event(known.id, EventKind::RegistrationPending, message);
        }
        let claim = PendingRegistration { address, requested_at: now, approved: false };
        self.set_claim(known.id, claim);
    }

    fn set_claim(&mut self, id: NodeId, claim: PendingRegistration) {
        let row = self.nodes.update(id, |node| node.change_row(|row| row.claim = Some(claim)));
        if let Some(row) = row {
            self.journal.write(Change::Node(Box::new(row)));
        }
    }
}

/// False for an unknown address.
fn is_address_of(row: &NodeRow, peer: IpAddr) -> bool {
    let registered = row.peer.as_ref().and_then(|text| text.parse::<IpAddr>().ok());
    registered.is_some_and(|registered| registered.to_canonical() == peer.to_canonical())
}

/// Error for a registration that awaits approval.
pub(super) fn approval_required(name: &str, peer: IpAddr) -> ApiError {
    let message = format!(
        "Node `{name}` is known, and the request from {peer} has no key of the node; an admin approves it with `agentaflow \
         node approve {name}`"
    );
    ApiError::new(403, ErrorCode::ApprovalRequired, message)
        .about(ResourceKind::Node, Some(name.to_owned()))
}

fn is_approved(row: &NodeRow, peer: IpAddr, now: Stamp) -> bool {
    row.claim.as_ref().is_some_and(|claim| {
        claim.approved
            && now.0.saturating_sub(claim.requested_at.0) < APPROVAL_MS
            && claim.address == peer.to_canonical().to_string()
    })
}

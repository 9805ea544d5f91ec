//! Registration of nodes and agents.

use std::collections::BTreeMap;
use std::net::IpAddr;

use agentaflow_api::agent::AgentRegistration;
use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{AgentId, NodeId};
use agentaflow_api::node::{NodeRegistration, NodeSpec, PriceSource};
use agentaflow_api::units::{Dollars, Secret};
use agentaflow_engine::{MicroDollars, Price};

use super::claims::Claim;
use super::handle::Registrant;
use super::node::{Contact, LiveNode, engine_node};
use super::state::State;
use crate::api_error::ApiError;
use crate::auth;
use crate::store::{AgentRow, Change, CredentialKind, CredentialRow, NodeRow};

/// A node or agent with its new key, which is shown once.
#[derive(Debug)]
pub(super) struct Registered<Id> {
    pub(super) id: Id,
    pub(super) key: Secret,
}

/// Spec of a node with defaults filled in.
struct CompletedSpec {
    spec: NodeSpec,
    price_source: PriceSource,
}

impl State {
    /// Registers a node. The same `node_id` or `node_name` updates the known node. None if an admin must approve that.
    pub(super) fn register_node(
        &mut self,
        registration: NodeRegistration,
        peer: IpAddr,
        registrant: Registrant,
    ) -> Result<Option<Registered<NodeId>>, ApiError> {
        let name = registration.node_name.clone();
        let same_name = self.nodes.registered_as(&name);
        let known = registration.node_id.as_deref().and_then(|id| self.nodes.named(id));
        let known = known.or(same_name).map(|node| node.row().clone());
        if same_name.is_some_and(|node| Some(node.id()) != known.as_ref().map(|row| row.id)) {
            let message =
                "another node has this name; omit `node_id`, or choose another `node_name`";
            return Err(ApiError::conflict(ErrorCode::NameTaken, message));
        }
        let is_new = known.is_none();
        if self.claim(known.as_ref(), peer, registrant)? == Claim::Pending {
            return Ok(None);
        }
        let row = self.node_row(registration, known, peer)?;
        let id = row.id;
        let key = auth::mint(CredentialKind::Node, &row.spec.node_name)?;
        self.use_token(registrant)?;
        let key = self.activate_worker_key(key, id, None);
        self.journal.write(Change::Node(Box::new(row.clone())));
        self.nodes.insert(row);
        let verb = if is_new { "registered" } else { "registered again" };
        self.node_event(id, EventKind::NodeRegistered, format!("node `{name}` {verb}"));
        self.report_node(id);
        Ok(Some(Registered { id, key }))
    }

    /// Record of a registration. Values that an admin set stay.
    fn node_row(
        &self,
        registration: NodeRegistration,
        known: Option<NodeRow>,
        peer: IpAddr,
    ) -> Result<NodeRow, ApiError> {
        let gpu_field = if registration.gpu_instances.is_empty() {
            "gpu_memory_total"
        } else {
            "gpu_instances"
        };
        let now = self.now();
        let old = match known {
            Some(row) => row,
            None => NodeRow {
                id: self.nodes.next_id(),
                node_id: new_node_id()?,
                created_at: now,
                ..NodeRow::default()
            },
        };
        let CompletedSpec { mut spec, mut price_source } =
            complete_spec(registration, self.settings.default_price);
        old.overrides.apply(&mut spec, &mut price_source);
        let row = NodeRow {
            spec,
            price_source,
            peer: Some(peer.to_canonical().to_string()),
            claim: None,
            registered_at: now,
            updated_at: now,
            ..old
        };
        engine_node(&row, &[], &BTreeMap::new())
            .validate()
            .map_err(|bad| ApiError::invalid(gpu_field, bad.to_string()))?;
        Ok(row)
    }

    /// Puts a new key of a node or agent in force and removes its older keys.
    fn activate_worker_key(
        &mut self,
        auth::Minted { secret, mut row }: auth::Minted,
        node: NodeId,
        agent: Option<AgentId>,
    ) -> Secret {
        // An agent that moved to another node keeps no key of the old one.
        let kind = row.kind;
        self.remove_credentials(|old| {
            let same_owner = agent.is_some() || old.node_id == Some(node);
            old.kind == kind && old.agent_id == agent && same_owner
        });
        self.ids.0.credential = self.ids.0.credential.next();
        row.id = self.ids.0.credential;
        row.node_id = Some(node);
        row.agent_id = agent;
        self.directory.write().put_credential(row.clone());
        self.journal.write(Change::Credential(Box::new(row)));
        secret
    }

    pub(super) fn remove_credentials(&mut self, test: impl Fn(&CredentialRow) -> bool) {
        let mut directory = self.directory.write();
        let removed = directory.credentials.values().filter(|row| test(row)).map(|row| row.id);
        for id in removed.collect::<Vec<_>>() {
            directory.drop_credential(id);
            self.journal.write(Change::CredentialGone(id));
        }
    }

    /// Registers an agent. Its older key and streams end.
    pub(super) fn register_agent(
        &mut self,
        registration: AgentRegistration,
    ) -> Result<Registered<AgentId>, ApiError> {
        let node = registration.node_id.unwrap_or_default();
        if self.nodes.get(node).is_none() {
            return Err(ApiError::unknown_object("node_id", ResourceKind::Node, node));
        }
        self.check_agent_identity(&registration.agent_id, node)?;
        let key = auth::mint(CredentialKind::Agent, &registration.agent_id)?;
        let old = self.nodes.agent_named(&registration.agent_id);
        let now = self.now();
        let row = AgentRow {
            id: old.map_or_else(|| self.nodes.next_agent_id(), |old| old.id),
            created_at: old.map_or(now, |old| old.created_at),
            agent_id: registration.agent_id,
            node_id: node,
            agent_version: registration.agent_version,
            config: registration.config,
            capabilities: registration.capabilities,
            api_endpoint: registration.api_endpoint,
            websocket_endpoint: registration.websocket_endpoint,
            updated_at: now,
            started_at: Some(now),
        };
        let id = row.id;
        if let Some(endpoint) = row.api_endpoint.clone() {
            self.set_push_endpoint(node, endpoint);
        }
        self.remove_agents_of(node, Some(id));
        let key = self.activate_worker_key(key, node, Some(id));
        self.journal.write(Change::Agent(Box::new(row.clone())));
        self.nodes.put_agent(row);
        self.connect_node(node, Contact::StreamClosed);
        self.nodes.update(node, LiveNode::mark_tasks_unconfirmed);
        let message = format!("the agent of node `{}` registered", self.nodes.name(node));
        self.node_event(node, EventKind::AgentRegistered, message);
        Ok(Registered { id, key })
    }

    /// Permits one agent for each node: a second one would start tasks that the first still runs. A new agent replaces
    /// the old one once the old one's lease has expired.
    fn check_agent_identity(&self, agent: &str, node: NodeId) -> Result<(), ApiError> {
        let leased =
            |id: NodeId| self.nodes.get(id).filter(|live| !live.is_push() && !live.lease_expired());
        let moved = self.nodes.agent_named(agent).filter(|row| row.node_id != node);
        if moved.and_then(|row| leased(row.node_id)).is_some_and(LiveNode::was_contacted) {
            let message = "an agent of this name works for another node that is alive";
            return Err(ApiError::conflict(ErrorCode::AgentTaken, message));
        }
        let has_other = self.nodes.agents_of(node).any(|row| row.agent_id != agent);
        if has_other && leased(node).is_some_and(LiveNode::has_tasks) {
            let message = "another agent of this node still has jobs; stop it, or wait for three missed heartbeats \
                           and the grace period of its jobs";
            return Err(ApiError::conflict(ErrorCode::NodeTaken, message));
        }
        Ok(())
    }

    /// Removes the agents of a node, except `keep`, and their keys.
    pub(super) fn remove_agents_of(&mut self, node: NodeId, keep: Option<AgentId>) {
        let agents = self.nodes.agents_of(node).map(|agent| agent.id);
        let agents: Vec<AgentId> = agents.filter(|agent| Some(*agent) != keep).collect();
        self.remove_credentials(|key| key.agent_id.is_some_and(|id| agents.contains(&id)));
        for agent in agents {
            self.nodes.remove_agent(agent);
            self.journal.write(Change::AgentGone(agent));
        }
    }

    /// An agent of the documented push protocol may name the endpoint of its node.
    fn set_push_endpoint(&mut self, node: NodeId, endpoint: String) {
        let row =
            self.nodes.update(node, |node| node.set_endpoint(endpoint).then(|| node.row().clone()));
        if let Some(row) = row.flatten() {
            self.journal.write(Change::Node(Box::new(row)));
        }
    }
}

/// Spec of a registration. Missing prices come from the catalogue of GPU models, else from `fallback`.
fn complete_spec(given: NodeRegistration, fallback: Price) -> CompletedSpec {
    let listed = given.gpu_instances.len() as u32;
    let memory: u64 = given.gpu_instances.iter().filter_map(|gpu| gpu.gpu_memory).sum();
    let model = given.gpu_type.clone().or_else(|| {
        let first = given.gpu_instances.first()?;
        first.gpu_type.clone().or_else(|| first.gpu_name.clone())
    });
    let known = model.as_deref().and_then(agentaflow_engine::list_price);
    let gpu_count = if listed > 0 { listed } else { given.gpu_count.unwrap_or(0) };
    let typical = || {
        let each = model.as_deref().and_then(agentaflow_engine::list_memory)?;
        Some(each.0 * u64::from(gpu_count))
    };
    let memory = if listed > 0 { memory } else { typical().unwrap_or(0) };
    let memory = given.gpu_memory_total.filter(|total| *total > 0).unwrap_or(memory);
    let price_source = match (given.price_per_gpu_hour, known) {
        (Some(_), _) => PriceSource::Node,
        (None, Some(_)) => PriceSource::Catalogue,
        (None, None) => PriceSource::Default,
    };
    let dollars = |price: MicroDollars| Dollars(price.0 as i64);
    let spec = NodeSpec {
        node_name: given.node_name,
        hostname: given.hostname,
        ip_address: given.ip_address,
        region: given.region,
        zone: given.zone,
        cluster_name: given.cluster_name.unwrap_or_else(|| "default".to_owned()),
        gpu_count,
        gpu_type: model,
        gpu_memory_total: memory,
        gpu_driver_version: given.gpu_driver_version,
        gpu_cuda_version: given.gpu_cuda_version,
        cpu_cores: given.cpu_cores.unwrap_or_default(),
        memory_total: given.memory_total.unwrap_or(0),
        storage_total: given.storage_total.unwrap_or(0),
        max_concurrent_jobs: given.max_concurrent_jobs.unwrap_or(1),
        auto_register: given.auto_register.unwrap_or(true),
        price_per_gpu_hour: given
            .price_per_gpu_hour
            .unwrap_or(dollars(known.unwrap_or(fallback.gpu_hour))),
        price_per_cpu_hour: given.price_per_cpu_hour.unwrap_or(dollars(fallback.cpu_hour)),
        price_per_memory_gb_hour: given
            .price_per_memory_gb_hour
            .unwrap_or(dollars(fallback.gib_hour)),
        k8s_node_name: given.k8s_node_name,
        k8s_cluster: given.k8s_cluster,
        k8s_namespace: given.k8s_namespace,
        k8s_labels: given.k8s_labels,
        k8s_taints: given.k8s_taints,
        api_endpoint: given.api_endpoint,
        ssh_endpoint: given.ssh_endpoint,
        vnc_endpoint: given.vnc_endpoint,
        node_metadata: given.node_metadata,
        gpu_instances: given.gpu_instances,
        runtimes: given.runtimes,
        simulated: given.simulated,
        labels: given.labels,
    };
    CompletedSpec { spec, price_source }
}

/// `gpu-` and twelve hexadecimal digits.
fn new_node_id() -> Result<String, ApiError> {
    let mut bytes = [0_u8; 6];
    getrandom::fill(&mut bytes).map_err(|_| {
        ApiError::unavailable("cannot read random numbers from the system; try again")
    })?;
    let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    Ok(format!("gpu-{number:012x}"))
}

//! Nodes: how they register, are changed and go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::node::{
    GpuInstance, NodeRegistration, NodeSpec, NodeStatus, NodeUpdate, PriceSource,
};
use agentaflow_api::units::{Dollars, Secret, Stamp};
use agentaflow_engine::{Event, GpuHealth, MicroDollars, NodeId};

use super::describe::{closed_gpus, engine_node, gpu_id, instances};
use super::handle::NodeRef;
use super::state::{LiveNode, State};
use crate::api_error::ApiError;
use crate::auth;
use crate::store::{Change, CredentialKind, NodeRow};

impl State {
    /// The node that a caller means.
    pub(crate) fn find_node(&self, node: &NodeRef) -> Result<i64, ApiError> {
        let found = match node {
            NodeRef::Number(id) => self.nodes.contains_key(id).then_some(*id),
            NodeRef::Name(name) => {
                self.nodes.values().find(|node| node.row.node_id == *name).map(|node| node.row.id)
            }
        };
        found.ok_or_else(|| {
            ApiError::not_found("there is no such node; GET /gpu-workers/nodes lists them")
        })
    }

    /// Takes a registration. Returns the node's number and its new key.
    pub(crate) fn register_node(
        &mut self,
        registration: NodeRegistration,
        peer: IpAddr,
    ) -> Result<(i64, Secret), ApiError> {
        let named = |node: &&LiveNode| node.row.spec.node_name == registration.node_name;
        let by_id = |wanted: &String| self.nodes.values().find(|node| node.row.node_id == *wanted);
        let known = registration.node_id.as_ref().and_then(by_id);
        let known = known.or_else(|| self.nodes.values().find(named)).map(|node| node.row.id);
        let now = Stamp::now();
        let id = known.unwrap_or(self.ids.0.node + 1);
        if self.nodes.values().any(|node| named(&node) && Some(node.row.id) != known) {
            let words =
                "another node has this name; leave out `node_id`, or choose another `node_name`";
            return Err(ApiError::conflict(ErrorCode::NameTaken, words));
        }
        let (mut spec, mut price_source) = self.completed(&registration);
        if let Some(old) = known.and_then(|id| self.nodes.get(&id)) {
            // What an admin set stays set.
            old.row.overrides.apply(&mut spec, &mut price_source);
        }
        let probe =
            NodeRow { id, node_id: "probe".into(), spec: spec.clone(), ..NodeRow::default() };
        engine_node(&probe, &[], &BTreeMap::new()).validate().map_err(|bad| {
            let field = if registration.gpu_instances.is_empty() {
                "gpu_memory_total"
            } else {
                "gpu_instances"
            };
            ApiError::invalid(field, bad.to_string())
        })?;
        let node_id = new_node_id()?;
        let key = auth::mint(CredentialKind::Node, &spec.node_name)?;
        let row = match known.and_then(|id| self.nodes.get(&id)) {
            Some(old) => NodeRow {
                spec,
                price_source,
                peer: Some(peer.to_string()),
                registered_at: now,
                updated_at: now,
                ..old.row.clone()
            },
            None => NodeRow {
                id,
                node_id,
                spec,
                price_source,
                peer: Some(peer.to_string()),
                registered_at: now,
                created_at: now,
                updated_at: now,
                ..NodeRow::default()
            },
        };
        self.ids.0.node = self.ids.0.node.max(id);
        let key = self.new_worker_key(key, id, None);
        self.batch.changes.push(Change::Node(Box::new(row.clone())));
        match self.nodes.get_mut(&id) {
            Some(live) => live.row = row,
            None => {
                self.nodes.insert(id, LiveNode::new(row));
            }
        }
        let what = if known.is_some() { "registered again" } else { "registered" };
        let name = registration.node_name;
        self.node_event(id, EventKind::NodeRegistered, format!("node `{name}` {what}"));
        self.refresh_node(id);
        Ok((id, key))
    }

    /// Puts a new key of a node or agent in force; older ones of the same stop working.
    pub(crate) fn new_worker_key(
        &mut self,
        auth::Minted { secret, mut row }: auth::Minted,
        node: i64,
        agent: Option<i64>,
    ) -> Secret {
        // An agent that moved to another node leaves no key behind.
        let same = |old: &&crate::store::CredentialRow| {
            let owner = agent.is_some() || old.node_id == Some(node);
            old.kind == row.kind && old.agent_id == agent && owner
        };
        let old: Vec<i64> =
            self.directory.credentials.values().filter(same).map(|old| old.id).collect();
        for id in old {
            self.directory.drop_credential(id);
            self.batch.changes.push(Change::CredentialGone(id));
        }
        self.ids.0.credential += 1;
        row.id = self.ids.0.credential;
        (row.node_id, row.agent_id) = (Some(node), agent);
        self.directory.put_credential(row.clone());
        self.batch.changes.push(Change::Credential(Box::new(row)));
        secret
    }

    /// A registration with everything that was left out filled in, and where the prices come from.
    fn completed(&self, given: &NodeRegistration) -> (NodeSpec, PriceSource) {
        let given = given.clone();
        let listed = given.gpu_instances.len() as u32;
        let memory: u64 = given.gpu_instances.iter().filter_map(|gpu| gpu.gpu_memory).sum();
        let model = given.gpu_type.clone().or_else(|| {
            let first = given.gpu_instances.first()?;
            first.gpu_type.clone().or_else(|| first.gpu_name.clone())
        });
        let known = model.as_deref().and_then(agentaflow_engine::list_price);
        let fallback = self.settings.default_price;
        let source = match (given.price_per_gpu_hour, known) {
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
            gpu_count: if listed > 0 { listed } else { given.gpu_count.unwrap_or(0) },
            gpu_type: model,
            gpu_memory_total: given.gpu_memory_total.unwrap_or(memory),
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
        (spec, source)
    }

    /// An admin's wishes.
    pub(crate) fn update_node(&mut self, id: i64, update: NodeUpdate) -> Result<(), ApiError> {
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(()) };
        let was = (node.row.cordoned, node.row.draining);
        let gpus_were = closed_gpus(&node.row.overrides);
        // First of all, because it may be refused.
        let closed = gpus_after(&node.row, &update)?;
        match update.status {
            None => {}
            Some(NodeStatus::Maintenance) => node.row.cordoned = true,
            Some(NodeStatus::Active) => (node.row.cordoned, node.row.draining) = (false, false),
            Some(_) => {
                return Err(ApiError::invalid(
                    "status",
                    "only `maintenance` (no new work) and `active` can be set; the others say how a node is",
                ));
            }
        }
        node.row.draining = update.drain.unwrap_or(node.row.draining);
        (node.row.overrides.cordoned_gpus, node.row.overrides.draining_gpus) = closed;
        node.row.overrides.merge(update);
        let overrides = node.row.overrides.clone();
        overrides.apply(&mut node.row.spec, &mut node.row.price_source);
        node.row.updated_at = Stamp::now();
        let (row, name) = (node.row.clone(), node.row.spec.node_name.clone());
        for (before, after, begun, ended) in [
            (was.0, row.cordoned, EventKind::NodeCordoned, EventKind::NodeOpened),
            (was.1, row.draining, EventKind::NodeDraining, EventKind::NodeDrainEnded),
        ] {
            if before != after {
                let kind = if after { begun } else { ended };
                let message = format!("Node `{name}` {}", words_of(&kind));
                self.node_event(id, kind, message);
            }
        }
        let gpus_are = closed_gpus(&row.overrides);
        for gpu in gpus_were.keys().chain(gpus_are.keys()).collect::<BTreeSet<_>>() {
            let now = gpus_are.get(gpu);
            if gpus_were.get(gpu) != now {
                let (kind, words) = news_of_gpu(now.copied());
                self.node_event(id, kind, format!("GPU {gpu} of node `{name}` {words}"));
            }
        }
        self.batch.changes.push(Change::Node(Box::new(row)));
        self.refresh_node(id);
        Ok(())
    }

    /// Removes a node that has no live jobs.
    pub(crate) fn delete_node(&mut self, id: i64) -> Result<(), ApiError> {
        let Some(node) = self.nodes.get(&id) else { return Ok(()) };
        if !node.jobs.is_empty() {
            let live = node.jobs.len();
            return Err(ApiError::conflict(
                ErrorCode::NodeBusy,
                format!(
                    "the node still has {live} live jobs; drain it first (PUT with `drain: true`)"
                ),
            ));
        }
        let (name, told) = (node.row.node_id.clone(), node.told.is_some());
        self.node_event(
            id,
            EventKind::NodeRemoved,
            format!("node `{}` was removed", node_name(self, id)),
        );
        if told {
            self.tell(Event::NodeRemoved(NodeId::from(name)));
        }
        let agents: Vec<i64> = self
            .agents
            .values()
            .filter(|agent| agent.node_id == id)
            .map(|agent| agent.id)
            .collect();
        for agent in agents {
            self.agents.remove(&agent);
            self.batch.changes.push(Change::AgentGone(agent));
        }
        let keys: Vec<i64> = self
            .directory
            .credentials
            .values()
            .filter(|key| key.node_id == Some(id))
            .map(|key| key.id)
            .collect();
        for key in keys {
            self.directory.drop_credential(key);
            self.batch.changes.push(Change::CredentialGone(key));
        }
        self.nodes.remove(&id);
        self.batch.changes.push(Change::NodeGone(id));
        Ok(())
    }
}

/// The GPUs of a node that are closed, and those that are emptied, once an admin's wishes are granted. Whole lists
/// come first; what is added to them or taken off is reckoned here, so that two admins do not undo each other.
fn gpus_after(
    node: &NodeRow,
    update: &NodeUpdate,
) -> Result<(BTreeSet<String>, BTreeSet<String>), ApiError> {
    let named = |field, gpus: &Option<Vec<String>>| {
        gpus.as_ref().map(|gpus| named_gpus(&node.spec, field, gpus)).transpose()
    };
    let set = &node.overrides;
    let mut cordoned =
        named("cordoned_gpus", &update.cordoned_gpus)?.unwrap_or_else(|| set.cordoned_gpus.clone());
    let mut emptied =
        named("draining_gpus", &update.draining_gpus)?.unwrap_or_else(|| set.draining_gpus.clone());
    cordoned.extend(named("cordon_gpus", &update.cordon_gpus)?.unwrap_or_default());
    for gpu in named("drain_gpus", &update.drain_gpus)?.unwrap_or_default() {
        cordoned.insert(gpu.clone());
        emptied.insert(gpu);
    }
    for gpu in named("uncordon_gpus", &update.uncordon_gpus)?.unwrap_or_default() {
        cordoned.remove(&gpu);
        emptied.remove(&gpu);
    }
    Ok((cordoned, emptied))
}

/// GPUs of a node as the engine calls them, from what people write: an index or a UUID.
fn named_gpus(
    spec: &NodeSpec,
    field: &str,
    named: &[String],
) -> Result<BTreeSet<String>, ApiError> {
    let known = instances(spec);
    let id = |name: &String| {
        let is = |(position, gpu): &(usize, &GpuInstance)| {
            gpu.gpu_uuid.as_deref() == Some(name) || gpu_id(gpu, *position).as_str() == name
        };
        let found = known.iter().enumerate().find(is);
        found
            .map(|(position, gpu)| gpu_id(gpu, position).to_string())
            .ok_or_else(|| ApiError::invalid(field, format!("the node has no GPU `{name}`")))
    };
    named.iter().map(id).collect()
}

/// The name of a node, for sentences.
pub(crate) fn node_name(state: &State, id: i64) -> String {
    state.nodes.get(&id).map_or_else(|| id.to_string(), |node| node.row.spec.node_name.clone())
}

fn words_of(kind: &EventKind) -> &'static str {
    match kind {
        EventKind::NodeCordoned => "cordoned",
        EventKind::NodeOpened => "uncordoned",
        EventKind::NodeDraining => "draining",
        _ => "drain ended",
    }
}

/// What is told when an admin closes a GPU, has it emptied, or opens it again.
fn news_of_gpu(now: Option<GpuHealth>) -> (EventKind, &'static str) {
    match now {
        None => (EventKind::GpuOpened, "uncordoned"),
        Some(GpuHealth::Draining) => (EventKind::GpuDraining, "draining"),
        Some(_) => (EventKind::GpuCordoned, "cordoned"),
    }
}

/// `gpu-` and twelve hexadecimal digits.
fn new_node_id() -> Result<String, ApiError> {
    let mut bytes = [0_u8; 6];
    getrandom::fill(&mut bytes)
        .map_err(|_| ApiError::unavailable("the system gives no random numbers; try again"))?;
    let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    Ok(format!("gpu-{number:012x}"))
}

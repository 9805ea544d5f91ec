//! Explanations in types of the REST API, and forecasts for objects that are not created yet.

use agentaflow_api::explain::{CloseNode, Explanation, PlannedTask};
use agentaflow_api::job::JobStatus;
use agentaflow_api::pending::PendingReason as ApiReason;
use agentaflow_api::{Dollars, Stamp};
use agentaflow_engine::{
    Alternative, Eta, GpuAssignment, MicroDollars, NodeId, Placement, Shortfall, Span, Time,
    WaitReason, WorkloadId, WorkloadState, WorkloadView,
};
use agentaflow_explain as explain;
use agentaflow_kube_core::gpu_workload::{self, Identity};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, Workload};
use serde_json::Value;

use super::ClusterState;
use super::action::Key;
use super::explain::parked_explanation;
use super::membership::{Annotations, Membership, single_pod_id};
use super::node_table::NodeEntry;
use super::parked::Parked;

/// Name of the proposed workload; no object can have it.
const PROPOSAL: &str = "what-if!";

/// An object that is not created yet.
struct Proposal {
    pod: Pod,
    /// The object itself if it is a `GPUWorkload`.
    workload: Option<Workload>,
    tasks: u32,
}

impl ClusterState {
    /// Forecast for a `GPUWorkload`, a pod, or the first pod of an object with a pod template, as if it were created now.
    /// Changes nothing. The error names the invalid field of the object.
    pub fn what_if(&self, namespace: &str, object: &Value) -> Result<Explanation, String> {
        let proposal = self.read(namespace, object)?;
        match self.proposed_workload(&proposal) {
            Ok(workload) => self.forecast(&proposal, workload),
            Err(Parked::ReadingOwner) => Err("the owner of the pod is not known".to_owned()),
            Err(reason) => Ok(Explanation {
                eta_text: explain::eta(Eta::Unknown, self.engine.now()),
                ..parked_explanation(&reason)
            }),
        }
    }

    /// Reason and expected start of a pending workload.
    fn pending_explanation(&self, reason: Option<&WaitReason>, eta: Eta) -> Explanation {
        let now = self.engine.now();
        let wall = stamp(now);
        let clock = explain::wire::Clock { now, wall };
        let name = |workload: &WorkloadId| workload.to_string();
        let pending_reason =
            reason.map(|reason| explain::wire::pending_reason(reason, &clock, &name));
        let text = pending_reason.as_ref().map(|reason| explain::pending::reason(reason, wall));
        let eta_text = explain::eta(eta, now);
        Explanation {
            eta_text: if text.is_some() { eta_text.clone() } else { String::new() },
            summary: text.unwrap_or(eta_text),
            pending_reason,
            eta: match eta {
                Eta::Now => Some(stamp(now)),
                Eta::At(at) => Some(stamp(at)),
                Eta::Unknown => None,
            },
            ..Explanation::default()
        }
    }

    /// The engine's explanation of a workload in types of the REST API.
    pub(super) fn api_explanation(
        &self,
        view: &WorkloadView,
        explanation: &agentaflow_engine::Explanation,
    ) -> Explanation {
        if view.state != WorkloadState::Pending {
            return self.placed_explanation(view);
        }
        let mut api = self.pending_explanation(explanation.reason.as_ref(), explanation.eta);
        api.position = explanation.position;
        api.waiting = explanation.waiting;
        add_alternatives(&mut api, &explanation.alternatives);
        api.closest = explanation.closest.iter().map(close_node).collect();
        api.price_per_hour = self.highest_price(view).map(dollars);
        api
    }

    /// Price of a pending workload on the most expensive node; its first pod represents all pods.
    fn highest_price(&self, view: &WorkloadView) -> Option<MicroDollars> {
        let member = self.gangs.get(&view.workload.id)?.first_member()?;
        let pod = self.pods.get(member)?.pod.as_ref()?;
        let highest = self.nodes.values().map(|node| node.price_per_hour(pod).0).max()?;
        Some(MicroDollars(highest.saturating_mul(view.workload.tasks.into())))
    }

    fn placed_explanation(&self, view: &WorkloadView) -> Explanation {
        let (verb, status) = match view.state {
            WorkloadState::Running => ("Running", JobStatus::Running),
            WorkloadState::Stopping => ("Stopping", JobStatus::Running),
            _ => ("Starting", JobStatus::Scheduled),
        };
        let placement: Vec<PlannedTask> = view
            .tasks
            .iter()
            .map(|placed| self.planned_task(placed.task, &placed.node, &placed.gpus))
            .collect();
        if let Some(reason) = self.loss_reason(&view.workload.id) {
            let (summary, note) = (reason.message.clone(), reason.message);
            let pending_reason = Some(ApiReason::Parked { reason: reason.code, note });
            return Explanation {
                status,
                summary,
                placement,
                pending_reason,
                ..Explanation::default()
            };
        }
        let summary = format!("{verb} on {}", node_names(&placement));
        Explanation { status, summary, placement, ..Explanation::default() }
    }

    fn planned_task(&self, task: u32, node: &NodeId, gpus: &GpuAssignment) -> PlannedTask {
        let gpus = match gpus {
            GpuAssignment::Devices(parts) => {
                parts.iter().map(|part| part.gpu.to_string()).collect()
            }
            GpuAssignment::Count(0) => Vec::new(),
            GpuAssignment::Count(count) => {
                let model = self.nodes.get(node.as_str()).and_then(NodeEntry::gpu_model);
                vec![format!("{count} × {}", model.unwrap_or("GPU"))]
            }
        };
        let node = node.to_string();
        PlannedTask { task, node_id: node.clone(), node_name: node, gpus, simulated: false }
    }

    fn read(&self, namespace: &str, object: &Value) -> Result<Proposal, String> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let named = object.pointer("/metadata/namespace").and_then(Value::as_str);
        let namespace = named.unwrap_or(namespace);
        if kind == "GPUWorkload" {
            return self.read_workload(namespace, object);
        }
        let pod = if kind == "Pod" { object } else { pod_template(object, kind)? };
        let mut pod: Pod = serde_json::from_value(pod.clone())
            .map_err(|error| format!("cannot read the {kind}: {error}"))?;
        if pod.spec.containers.is_empty() {
            return Err(format!("the {kind} has no containers"));
        }
        pod.metadata.namespace = Some(namespace.to_owned());
        Ok(Proposal { pod, workload: None, tasks: 1 })
    }

    fn read_workload(&self, namespace: &str, object: &Value) -> Result<Proposal, String> {
        let unreadable =
            |error: &dyn std::fmt::Display| format!("cannot read the GPUWorkload: {error}");
        let workload: Workload =
            serde_json::from_value(object.clone()).map_err(|error| unreadable(&error))?;
        let spec = workload.spec.0.as_ref().map_err(|error| unreadable(error))?;
        gpu_workload::check(spec).map_err(|error| error.to_string())?;
        let name = workload.metadata.name.as_deref().unwrap_or("what-if");
        let identity = Identity { name, namespace, uid: None };
        let pod = gpu_workload::pod(identity, spec, 0, 0, &self.settings.scheduler_name)
            .map_err(|error| error.to_string())?;
        let pod = serde_json::from_value(pod).map_err(|error| unreadable(&error))?;
        let tasks = spec.gang_size;
        Ok(Proposal { pod, workload: Some(workload), tasks })
    }

    fn proposed_workload(
        &self,
        proposal: &Proposal,
    ) -> Result<agentaflow_engine::Workload, Parked> {
        let pod = &proposal.pod;
        let workload = proposal.workload.as_ref();
        let spec = workload.and_then(|workload| workload.spec.0.as_deref().ok());
        let own = pod.metadata.annotations.iter().flatten();
        let own = own.filter(|(name, _)| name.starts_with(names::PREFIX));
        let mut annotations: Annotations =
            own.map(|(name, value)| (name.clone(), value.clone())).collect();
        let queue = spec.and_then(|spec| spec.queue.clone());
        annotations.extend(queue.map(|queue| (names::QUEUE.to_owned(), queue)));
        let lookup = self.lookup();
        let mut admitted = pod.clone();
        lookup.admit(&mut admitted, &annotations);
        let mut traits = lookup.traits(&admitted, &annotations)?;
        if let Some(spec) = spec {
            traits.add_spec(spec)?;
        }
        traits.submitted = self.engine.now();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let membership = Membership {
            id: single_pod_id(&Key::new(namespace, PROPOSAL)),
            workload: None,
            detached_from: None,
            min_members: proposal.tasks,
            traits,
        };
        let mut asked = lookup.request(pod, &membership)?;
        if let Some(spec) = spec {
            gpu_workload::apply_gpu_requirements(spec, &mut asked.request);
        }
        let Membership { id, min_members, traits, .. } = membership;
        Ok(traits.workload(id, min_members, asked.request.into()))
    }

    fn forecast(
        &self,
        proposal: &Proposal,
        workload: agentaflow_engine::Workload,
    ) -> Result<Explanation, String> {
        let estimate = workload.estimate;
        let forecast = self.engine.what_if(workload).map_err(|why| why.to_string())?;
        let mut api = self.pending_explanation(forecast.reason.as_ref(), forecast.eta);
        api.waiting = self.engine.scheduler().pending_count() as u32;
        add_alternatives(&mut api, &forecast.alternatives);
        api.closest = forecast.closest.iter().map(close_node).collect();
        let planned =
            |placed: &Placement| self.planned_task(placed.task, &placed.node, &placed.gpus);
        api.placement = forecast.placements.iter().map(planned).collect();
        api.placement.sort_by_key(|task| task.task);
        if forecast.eta == Eta::Now {
            api.summary = format!("Would start now on {}", node_names(&api.placement));
            api.eta_text = String::new();
        }
        let price = self.forecast_price(proposal, &forecast.placements);
        api.price_per_hour = price.map(dollars);
        api.estimated_cost = price.zip(estimate).map(|(price, span)| cost(price, span));
        Ok(api)
    }

    /// Price per hour where the proposal would be placed; without a placement, on the most expensive node.
    fn forecast_price(
        &self,
        proposal: &Proposal,
        placements: &[Placement],
    ) -> Option<MicroDollars> {
        let price = |node: &NodeEntry| node.price_per_hour(&proposal.pod).0;
        if placements.is_empty() {
            let highest = self.nodes.values().map(price).max()?;
            return Some(MicroDollars(highest.saturating_mul(proposal.tasks.into())));
        }
        let nodes = placements.iter().filter_map(|placed| self.nodes.get(placed.node.as_str()));
        Some(MicroDollars(nodes.map(price).fold(0, u64::saturating_add)))
    }
}

/// Sorted names of the nodes, each once.
fn node_names(placement: &[PlannedTask]) -> String {
    let mut nodes: Vec<&str> = placement.iter().map(|task| task.node_name.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.join(", ")
}

fn add_alternatives(api: &mut Explanation, alternatives: &[Alternative]) {
    api.alternatives = alternatives.iter().map(explain::wire::alternative).collect();
    api.would_start_now = api.alternatives.iter().map(explain::pending::alternative).collect();
}

fn close_node((node, shortfall): &(NodeId, Shortfall)) -> CloseNode {
    CloseNode {
        node_id: node.to_string(),
        node_name: node.to_string(),
        lacks: explain::shortfall_of(node.as_str(), shortfall),
        shortfall: Some(explain::wire::shortfall(shortfall)),
    }
}

fn pod_template<'a>(object: &'a Value, kind: &str) -> Result<&'a Value, String> {
    let paths = ["/spec/template", "/spec/jobTemplate/spec/template"];
    let found = paths.iter().find_map(|path| object.pointer(path).filter(|one| one.is_object()));
    found.ok_or_else(|| match kind {
        "" => "the object has no `kind`".to_owned(),
        _ => format!(
            "a {kind} has no pods: send a GPUWorkload, a Pod, or an object with a pod template"
        ),
    })
}

fn stamp(time: Time) -> Stamp {
    Stamp(i64::try_from(time.0).unwrap_or(i64::MAX))
}

fn dollars(price: MicroDollars) -> Dollars {
    Dollars(i64::try_from(price.0).unwrap_or(i64::MAX))
}

fn cost(price: MicroDollars, span: Span) -> Dollars {
    let micros = u128::from(price.0) * u128::from(span.0) / 3_600_000;
    Dollars(i64::try_from(micros).unwrap_or(i64::MAX))
}

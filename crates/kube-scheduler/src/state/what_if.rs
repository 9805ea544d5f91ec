//! Explanations in the words of the REST API, and what would become of work that is not handed in yet.

use agentaflow_api::explain::{CloseNode, Explanation, PlannedTask};
use agentaflow_api::job::JobStatus;
use agentaflow_api::{Dollars, Stamp};
use agentaflow_engine::{
    Eta, GpuAssignment, MicroDollars, NodeId, Placement, Shortfall, Span, Time, WaitReason,
    WorkloadState, WorkloadView,
};
use agentaflow_explain as words;
use agentaflow_kube_core::gpu_workload::{self, Identity};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, Workload};
use serde_json::Value;

use super::membership::{Membership, MembershipKind, alone};
use super::pod_entry::Parked;
use super::{ClusterState, Key};

/// The workload that is asked about; nothing that exists can be called so.
const ASKED: &str = "what-if!";

/// What would be handed in.
struct Proposal {
    pod: Pod,
    /// The whole object, of a `GPUWorkload`.
    workload: Option<Workload>,
    tasks: u32,
}

impl ClusterState {
    /// What would become of an object if it were handed in now: a `GPUWorkload`, a pod, or anything with a template
    /// of pods, of which the first counts. Nothing is changed. The error says what is wrong with the object.
    pub fn what_if(&self, namespace: &str, object: &Value) -> Result<Explanation, String> {
        let proposal = self.read(namespace, object)?;
        match self.proposed(&proposal) {
            Ok(asked) => self.foresee(&proposal, asked),
            Err(Parked::LookingUp) => Err("its owner is not known".to_owned()),
            Err(Parked::Because(word, message)) => Ok(Explanation {
                summary: message.to_string(),
                reason: Some(word.to_owned()),
                detail: Some(message.to_string()),
                eta_text: words::eta(Eta::Unknown, self.now),
                ..Explanation::default()
            }),
        }
    }

    /// The part of an explanation that is about a wait.
    pub(super) fn waiting(&self, reason: Option<&WaitReason>, eta: Eta) -> Explanation {
        let detail = reason.map(|reason| words::reason(reason, self.now));
        let eta_text = words::eta(eta, self.now);
        let told = detail.as_ref().map(|detail| format!("{detail}; {eta_text}"));
        Explanation {
            summary: told.unwrap_or_else(|| eta_text.clone()),
            reason: reason.map(|reason| reason.kind().to_owned()),
            detail,
            data: reason.and_then(|reason| serde_json::to_value(reason).ok()),
            eta: match eta {
                Eta::Now => Some(stamp(self.now)),
                Eta::At(at) => Some(stamp(at)),
                Eta::Unknown => None,
            },
            eta_text,
            ..Explanation::default()
        }
    }

    /// Everything that the engine says about a workload.
    pub(super) fn told(
        &self,
        view: &WorkloadView,
        said: &agentaflow_engine::Explanation,
    ) -> Explanation {
        if view.state != WorkloadState::Pending {
            return self.placed(view);
        }
        let mut told = self.waiting(said.reason.as_ref(), said.eta);
        told.position = said.position;
        told.waiting = said.waiting;
        told.would_start_now = said.alternatives.iter().map(words::nearby).collect();
        told.closest = said.closest.iter().map(close).collect();
        told.price_per_hour = self.price_of_waiting(view).map(dollars);
        told
    }

    /// What a workload that waits would cost an hour, at most. Its pods tell what it asks for.
    fn price_of_waiting(&self, view: &WorkloadView) -> Option<MicroDollars> {
        let member = self.groups.get(&view.workload.id)?.members.values().next()?;
        let pod = self.pods.get(member)?.pod.as_ref()?;
        let dearest = self.nodes.values().map(|node| node.hourly(pod).0).max()?;
        Some(MicroDollars(dearest.saturating_mul(view.workload.tasks.into())))
    }

    fn placed(&self, view: &WorkloadView) -> Explanation {
        let (verb, status) = match view.state {
            WorkloadState::Running => ("runs on", JobStatus::Running),
            WorkloadState::Stopping => ("is being stopped on", JobStatus::Running),
            _ => ("is starting on", JobStatus::Scheduled),
        };
        let placement: Vec<PlannedTask> =
            view.tasks.iter().map(|seat| self.planned(seat.task, &seat.node, &seat.gpus)).collect();
        let mut nodes: Vec<&str> = placement.iter().map(|task| task.node_name.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let summary = format!("it {verb} {}", nodes.join(", "));
        Explanation {
            status,
            eta_text: summary.clone(),
            summary,
            placement,
            ..Explanation::default()
        }
    }

    fn planned(&self, task: u32, node: &NodeId, gpus: &GpuAssignment) -> PlannedTask {
        let gpus = match gpus {
            GpuAssignment::Devices(parts) => {
                parts.iter().map(|part| part.gpu.to_string()).collect()
            }
            GpuAssignment::Count(0) => Vec::new(),
            GpuAssignment::Count(count) => {
                let model = self.nodes.get(node.as_str()).and_then(super::NodeEntry::model);
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
        let pod = if kind == "Pod" { object } else { template(object, kind)? };
        let mut pod: Pod = serde_json::from_value(pod.clone())
            .map_err(|error| format!("the {kind} cannot be read: {error}"))?;
        if pod.spec.containers.is_empty() {
            return Err(format!("the {kind} has no containers"));
        }
        pod.metadata.namespace = Some(namespace.to_owned());
        Ok(Proposal { pod, workload: None, tasks: 1 })
    }

    fn read_workload(&self, namespace: &str, object: &Value) -> Result<Proposal, String> {
        let unread =
            |error: &dyn std::fmt::Display| format!("the GPUWorkload cannot be read: {error}");
        let workload: Workload =
            serde_json::from_value(object.clone()).map_err(|error| unread(&error))?;
        let spec = workload.spec.0.as_ref().map_err(|error| unread(error))?;
        gpu_workload::check(spec).map_err(|error| error.to_string())?;
        let name = workload.metadata.name.as_deref().unwrap_or("what-if");
        let identity = Identity { name, namespace, uid: None };
        let pod = gpu_workload::pod(identity, spec, 0, 0, &self.settings.scheduler_name)
            .map_err(|error| error.to_string())?;
        let pod = serde_json::from_value(pod).map_err(|error| unread(&error))?;
        let tasks = spec.gang_size;
        Ok(Proposal { pod, workload: Some(workload), tasks })
    }

    /// The proposal as the engine is told of it.
    fn proposed(&self, proposal: &Proposal) -> Result<agentaflow_engine::Workload, Parked> {
        let pod = &proposal.pod;
        let workload = proposal.workload.as_ref();
        let spec = workload.and_then(|workload| workload.spec.0.as_deref().ok());
        let own = pod.metadata.annotations.iter().flatten();
        let own = own.filter(|(name, _)| name.starts_with(names::PREFIX));
        let mut said: std::collections::BTreeMap<String, String> =
            own.map(|(name, value)| (name.clone(), value.clone())).collect();
        let queue = spec.and_then(|spec| spec.queue.clone());
        said.extend(queue.map(|queue| (names::QUEUE.to_owned(), queue)));
        let mut traits = self.traits(pod, &said)?;
        if let Some(spec) = spec {
            self.add_spec(&mut traits, spec)?;
        }
        traits.submitted = self.now;
        let id = alone(&Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), ASKED));
        let (kind, need) = (MembershipKind::Pod, proposal.tasks);
        let belonging = Membership { id: id.clone(), kind, gang: None, need, traits };
        let mut asked = self.ask(pod, &belonging)?;
        if let Some(spec) = spec {
            gpu_workload::ask(spec, &mut asked.request);
        }
        Ok(belonging.traits.workload(id, need, asked.request.into()))
    }

    fn foresee(
        &self,
        proposal: &Proposal,
        asked: agentaflow_engine::Workload,
    ) -> Result<Explanation, String> {
        let estimate = asked.estimate;
        let seen = self.engine.what_if(self.now, asked).map_err(|why| why.to_string())?;
        let mut told = self.waiting(seen.reason.as_ref(), seen.eta);
        told.waiting = self.engine.pending_count() as u32;
        told.would_start_now = seen.alternatives.iter().map(words::nearby).collect();
        told.closest = seen.closest.iter().map(close).collect();
        let planned = |place: &Placement| self.planned(place.task, &place.node, &place.gpus);
        told.placement = seen.placements.iter().map(planned).collect();
        told.placement.sort_by_key(|task| task.task);
        if seen.eta == Eta::Now {
            let mut nodes: Vec<&str> =
                told.placement.iter().map(|task| task.node_name.as_str()).collect();
            nodes.sort_unstable();
            nodes.dedup();
            told.summary = format!("it would start now on {}", nodes.join(", "));
        }
        let hourly = self.price(proposal, &seen.placements);
        told.price_per_hour = hourly.map(dollars);
        told.estimated_cost = hourly.zip(estimate).map(|(price, span)| cost(price, span));
        Ok(told)
    }

    /// What it would cost an hour where it would go; where it has no place, at most.
    fn price(&self, proposal: &Proposal, places: &[Placement]) -> Option<MicroDollars> {
        let at = |node: &super::NodeEntry| node.hourly(&proposal.pod).0;
        if places.is_empty() {
            let dearest = self.nodes.values().map(at).max()?;
            return Some(MicroDollars(dearest.saturating_mul(proposal.tasks.into())));
        }
        let each = places.iter().filter_map(|place| self.nodes.get(place.node.as_str()).map(at));
        Some(MicroDollars(each.fold(0, u64::saturating_add)))
    }
}

/// A node that came close, and what it lacks.
fn close((node, lack): &(NodeId, Shortfall)) -> CloseNode {
    let lacks = words::lack_of(node.as_str(), lack);
    CloseNode { node_id: node.to_string(), node_name: node.to_string(), lacks }
}

/// The template of pods of an object.
fn template<'a>(object: &'a Value, kind: &str) -> Result<&'a Value, String> {
    let places = ["/spec/template", "/spec/jobTemplate/spec/template"];
    let found = places.iter().find_map(|place| object.pointer(place).filter(|one| one.is_object()));
    found.ok_or_else(|| match kind {
        "" => "the object has no `kind`".to_owned(),
        _ => format!(
            "a {kind} runs no pods: ask about a GPUWorkload, a Pod, or what has a pod template"
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

//! A state and a fake API server. The test decides on the delivery of every event, action and response.
//!
//! Checked at every step: the engine accepts every event; a pod that is known to be bound is never bound again; no GPU is
//! allocated twice by the knowledge of the state.

use agentaflow_kube_core::names;
use agentaflow_kube_core::unit::KINDS;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use agentaflow_engine::Time;

use super::fake_server::{Kind, Server, WatchEvent, key, uid};
use crate::state::{Action, ActionResult, Bind, BindResult, ClusterState, Key, PodRef, Settings};

/// The namespace of all objects.
pub(super) const SPACE: &str = "ns";

/// Start of the clock, in seconds.
const BEGINNING: u64 = 1_700_000_000;

pub(super) struct Harness {
    pub(super) server: Server,
    pub(super) state: ClusterState,
    pub(super) now: Time,
    wake: Option<Time>,
    /// Actions that are not executed yet.
    pub(super) acts: VecDeque<Action>,
    /// Results that are not delivered yet.
    pub(super) outcomes: VecDeque<ActionResult>,
    /// Number of delivered watch events by kind.
    stored: BTreeMap<Kind, usize>,
    /// Objects as last delivered.
    known: BTreeMap<(Kind, Key), Value>,
    /// Bindings in flight, or not reported by the watch.
    plans: BTreeMap<Key, (Arc<str>, Arc<str>)>,
    /// Actions since the last check, as text.
    actions: Vec<String>,
    /// All Events: object, reason, message.
    pub(super) notes: Vec<String>,
    settings: Settings,
    /// Actions of former leaders.
    pub(super) ghosts: VecDeque<Action>,
    /// The state watches jobs.
    pub(super) units: bool,
    /// More GPUs may be allocated than exist.
    pub(super) confused: bool,
}

impl Harness {
    /// Starts with an empty cluster.
    pub(super) fn new() -> Self {
        Self::of(Server::default())
    }

    /// Starts with an existing cluster.
    pub(super) fn of(mut server: Server) -> Self {
        server.seconds = server.seconds.max(BEGINNING);
        let settings = Settings::new(names::SCHEDULER_NAME);
        let now = Time(server.seconds * 1000);
        let mut harness = Self {
            state: ClusterState::new(settings.clone(), None, now),
            server,
            now,
            wake: None,
            acts: VecDeque::new(),
            outcomes: VecDeque::new(),
            stored: BTreeMap::new(),
            known: BTreeMap::new(),
            plans: BTreeMap::new(),
            actions: Vec::new(),
            notes: Vec::new(),
            settings,
            ghosts: VecDeque::new(),
            units: false,
            confused: false,
        };
        harness.begin();
        harness
    }

    fn begin(&mut self) {
        for kind in KINDS.iter().filter(|_| self.units) {
            self.state.watch_jobs(kind);
        }
        for kind in Kind::ALL {
            self.list(kind);
        }
        self.state.start(self.now);
    }

    /// The scheduler is killed and starts again. Actions in flight are lost.
    pub(super) fn crash(&mut self) {
        let memory = self.state.memory();
        self.state = ClusterState::new(self.settings.clone(), Some(memory), self.now);
        self.acts.clear();
        self.outcomes.clear();
        self.known.clear();
        self.plans.clear();
        self.stored.clear();
        self.begin();
    }

    pub(super) fn pass(&mut self, milliseconds: u64) {
        self.now.0 += milliseconds;
        self.server.seconds = self.now.0 / 1000;
    }

    pub(super) fn set_settings(&mut self, settings: Settings) {
        self.settings = settings.clone();
        self.state.set_settings(settings);
    }

    /// Delivers the next watch event of a kind; returns true if there was one.
    pub(super) fn tell(&mut self, kind: Kind) -> bool {
        let stored = self.stored.entry(kind).or_default();
        let event = self.server.history.get(&kind).and_then(|all| all.get(*stored)).cloned();
        let Some(event) = event else { return false };
        *stored += 1;
        self.send_watch_event(kind, &event);
        true
    }

    /// Delivers the last watch event again.
    pub(super) fn repeat(&mut self, kind: Kind) {
        let stored = self.stored.get(&kind).copied().unwrap_or(0);
        let last = stored.checked_sub(1).and_then(|last| self.server.history.get(&kind)?.get(last));
        if let Some(event) = last.cloned() {
            self.send_watch_event(kind, &event);
        }
    }

    /// Lists a kind again after an interrupted watch.
    pub(super) fn list(&mut self, kind: Kind) {
        let all: Vec<Value> = self.server.all(kind).cloned().collect();
        let ghosts: Vec<Key> = self
            .known
            .keys()
            .filter(|(known, key)| *known == kind && self.server.get(kind, key).is_none())
            .map(|(_, key)| key.clone())
            .collect();
        for value in all {
            self.send_watch_event(kind, &WatchEvent { deleted: false, value });
        }
        for Key { namespace, name } in ghosts {
            let mut value = json!({"metadata": {"name": &*name}});
            if !namespace.is_empty() {
                value["metadata"]["namespace"] = json!(&*namespace);
            }
            self.send_watch_event(kind, &WatchEvent { deleted: true, value });
        }
        let length = self.server.history.get(&kind).map_or(0, Vec::len);
        self.stored.insert(kind, length);
    }

    fn send_watch_event(&mut self, kind: Kind, event: &WatchEvent) {
        let name = key(&event.value);
        if kind == Kind::Pod {
            let planned = self.plans.get(&name).map(|(uid, _)| uid.clone());
            let other = planned.is_some_and(|planned| *planned != *uid(&event.value));
            if event.deleted || other || !event.value["spec"]["nodeName"].is_null() {
                self.plans.remove(&name);
            }
        }
        if event.deleted {
            self.known.remove(&(kind, name));
        } else {
            self.known.insert((kind, name), event.value.clone());
        }
        self.state.apply(self.now, event.change(kind));
    }

    pub(super) fn tell_all(&mut self) {
        for kind in Kind::ALL {
            while self.tell(kind) {}
        }
    }

    /// One pass.
    #[track_caller]
    pub(super) fn step(&mut self) {
        let step = self.state.step(self.now);
        let rejected = self.state.take_rejected();
        assert!(rejected.is_empty(), "the engine did not take {rejected:#?}");
        self.wake = step.wake;
        for act in step.actions {
            if let Action::Bind(bind) = &act {
                self.check_bind(bind);
            }
            self.actions.extend(words(&act));
            if let Action::RecordEvent(note) = &act {
                let about = &note.object;
                let line =
                    format!("{} {} {}: {}", about.kind, about.key.name, note.reason, note.message);
                self.notes.push(line);
            }
            self.acts.push_back(act);
        }
    }

    #[track_caller]
    fn check_bind(&mut self, bind: &Bind) {
        let name = &bind.pod.key;
        let known = self.known.get(&(Kind::Pod, name.clone()));
        let known =
            known.unwrap_or_else(|| panic!("{name} is bound, but the engine has no record"));
        assert_eq!(uid(known), &*bind.pod.uid, "another pod of the name {name} is bound");
        assert!(known["spec"]["nodeName"].is_null(), "{name} is bound twice");
        assert!(!self.plans.contains_key(name) || self.confused, "{name} is bound twice at a time");
        self.plans.insert(name.clone(), (bind.pod.uid.clone(), bind.node.clone()));
        let node = self.known.get(&(Kind::Node, Key::new("", &bind.node)));
        let node = node.unwrap_or_else(|| panic!("{name} is bound to a node that is gone"));
        let has = gpus(&node["status"]["allocatable"]);
        let there = self.there(&bind.node);
        let used: u64 = there.iter().map(|(_, asks)| asks).sum();
        assert!(
            used <= has || self.confused,
            "of {has} GPUs of {} {used} are given out: {there:?}",
            bind.node
        );
    }

    /// Pods with GPUs of a node, by the knowledge of the state.
    fn there(&self, node: &str) -> Vec<(&Key, u64)> {
        let pods = self.known.iter().filter(|((kind, _), _)| *kind == Kind::Pod);
        let there = pods.filter(|((_, name), pod)| match pod["spec"]["nodeName"].as_str() {
            Some(at) => at == node && !is_over(pod),
            None => !is_over(pod) && self.plans.get(name).is_some_and(|(_, at)| **at == *node),
        });
        there.map(|((_, name), pod)| (name, asks(pod))).collect()
    }

    /// Executes the next action; returns true if there was one.
    pub(super) fn carry_out(&mut self) -> bool {
        if let Some(act) = self.ghosts.pop_front() {
            self.server.carry_out(&act);
        }
        let Some(act) = self.acts.pop_front() else { return false };
        let outcome = self.server.carry_out(&act);
        self.outcomes.extend(outcome);
        true
    }

    /// Executes the actions before the next binding; returns true if there is a binding.
    pub(super) fn up_to_binding(&mut self) -> bool {
        while !self.acts.is_empty() {
            if matches!(self.acts.front(), Some(Action::Bind(_))) {
                return true;
            }
            self.carry_out();
        }
        false
    }

    /// The API server refuses the next binding.
    pub(super) fn refuse(&mut self) {
        if self.up_to_binding()
            && let Some(Action::Bind(bind)) = self.acts.pop_front()
        {
            let (pod, plan) = (bind.pod.clone(), bind.plan);
            let result = BindResult::Refused("not today".to_owned());
            self.outcomes.push_back(ActionResult::Bind { pod, plan, result });
        }
    }

    /// The API server refuses the next deletion of a pod, or change of a finalizer.
    pub(super) fn deny(&mut self) {
        let denied =
            |act: &Action| matches!(act, Action::Delete { .. } | Action::RemoveFinalizer { .. });
        if let Some(next) = self.acts.iter().position(denied) {
            self.acts.remove(next);
        }
    }

    /// The next binding takes effect, and its response is lost.
    pub(super) fn misunderstand(&mut self) {
        if self.up_to_binding()
            && let Some(act) = self.acts.front().cloned()
        {
            self.server.carry_out(&act);
            self.refuse();
        }
    }

    /// Delivers the next result; returns true if there was one.
    pub(super) fn answer(&mut self) -> bool {
        let Some(outcome) = self.outcomes.pop_front() else { return false };
        self.answer_with(outcome);
        true
    }

    pub(super) fn answer_with(&mut self, outcome: ActionResult) {
        if let ActionResult::Bind { pod, result, .. } = &outcome {
            match result {
                BindResult::Bound => {}
                BindResult::BoundToOther(node) => {
                    if let Some(plan) = self.plans.get_mut(&pod.key) {
                        plan.1 = node.clone();
                    }
                }
                BindResult::Gone | BindResult::Refused(_) => {
                    self.plans.remove(&pod.key);
                }
            }
        }
        self.state.action_finished(self.now, outcome);
    }

    /// Delivers all events and executes all actions until none is left.
    #[track_caller]
    pub(super) fn settle(&mut self) {
        for _ in 0..100 {
            self.tell_all();
            self.step();
            let mut busy = !self.ghosts.is_empty();
            while self.carry_out() {
                busy = true;
            }
            while self.answer() {}
            if !busy {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.actions);
    }

    /// [`Self::settle`], and advances the time until no wake is left.
    #[track_caller]
    pub(super) fn settle_for_long(&mut self) {
        for _ in 0..60 {
            self.settle();
            let Some(wake) = self.wake.filter(|wake| wake.0 > self.now.0) else { return };
            // Later wakes are timers of the engine only.
            if wake.0 > self.now.0 + 3_600_000 {
                return;
            }
            self.pass(wake.0 - self.now.0);
        }
    }

    /// Actions since the last check, sorted, without status writes.
    pub(super) fn take_actions(&mut self) -> Vec<String> {
        let mut actions = std::mem::take(&mut self.actions);
        actions.sort();
        actions
    }

    /// Checks the actions since the last check.
    #[track_caller]
    pub(super) fn check(&mut self, expected: &[&str]) {
        assert_eq!(self.take_actions(), expected);
    }

    /// Settles, and checks the actions.
    #[track_caller]
    pub(super) fn check_settled(&mut self, expected: &[&str]) {
        self.settle();
        self.check(expected);
    }

    pub(super) fn put(&mut self, kind: Kind, value: Value) {
        self.server.put(kind, value);
    }

    /// Kubelets remove terminating pods; the garbage collector removes pods without their workload.
    pub(super) fn kubelets(&mut self) {
        let workloads: Vec<&Value> = self.server.all(Kind::Workload).collect();
        let orphaned = |pod: &Value| {
            let owner = &pod["metadata"]["ownerReferences"][0];
            owner["kind"] == "GPUWorkload"
                && !workloads.iter().any(|found| owner["uid"] == uid(found))
        };
        let leaving =
            |pod: &&Value| !pod["metadata"]["deletionTimestamp"].is_null() || orphaned(pod);
        let leaving: Vec<Key> = self.server.all(Kind::Pod).filter(leaving).map(key).collect();
        for key in leaving {
            self.server.remove(Kind::Pod, &key);
        }
    }

    /// A pod ends: `Succeeded` or `Failed`.
    pub(super) fn end(&mut self, name: &str, phase: &str) {
        self.server.change(Kind::Pod, &Key::new(SPACE, name), |pod| end(pod, phase));
    }

    /// A user deletes a pod.
    pub(super) fn delete(&mut self, name: &str) {
        let key = Key::new(SPACE, name);
        let Some(uid) = self.server.get(Kind::Pod, &key).map(|pod| Arc::from(uid(pod))) else {
            return;
        };
        self.server.delete(&PodRef { key, uid });
    }

    pub(super) fn node_of(&self, name: &str) -> Option<&str> {
        self.server.get(Kind::Pod, &Key::new(SPACE, name))?["spec"]["nodeName"].as_str()
    }

    /// Code of the pending reason.
    pub(super) fn reason(&mut self, name: &str) -> Option<String> {
        self.state.explain(&Key::new(SPACE, name))?.reason
    }
}

pub(super) fn end(pod: &mut Value, phase: &str) {
    pod["status"]["phase"] = json!(phase);
    let code = i32::from(phase == "Failed");
    pod["status"]["containerStatuses"] =
        json!([{"name": "main", "state": {"terminated": {"exitCode": code}}}]);
}

pub(super) fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

pub(super) fn asks(pod: &Value) -> u64 {
    gpus(&pod["spec"]["containers"][0]["resources"]["limits"])
}

pub(super) fn gpus(amounts: &Value) -> u64 {
    amounts[names::GPU_RESOURCE].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Text of an action for checks.
fn words(act: &Action) -> Option<String> {
    Some(match act {
        Action::Bind(bind) => format!("bind {} {}", bind.pod.key.name, bind.node),
        Action::Evict { pod, .. } => format!("evict {}", pod.key.name),
        Action::Delete { pod, .. } => format!("delete {}", pod.key.name),
        Action::DeleteOrphan { pod, .. } => format!("delete orphan {}", pod.key.name),
        Action::Nominate { pod, node } => {
            format!("nominate {} {}", pod.key.name, node.as_deref().unwrap_or("nothing"))
        }
        Action::WriteCondition { pod, condition: why } => {
            let again = if why.already_false { " again" } else { "" };
            format!("explain {} {}{again}", pod.key.name, why.reason)
        }
        Action::LookUpOwner(owner) => format!("look up {}", owner.name),
        Action::Create { name, .. } => format!("create {name}"),
        Action::WriteNodeConditions { node, .. } => format!("conditions of {}", node.name),
        Action::RemoveFinalizer { workload, .. } => {
            format!("remove finalizer {}", workload.name)
        }
        Action::Suspend { unit, suspend, .. } => {
            format!("{} {}", if *suspend { "suspend" } else { "resume" }, unit.name)
        }
        Action::DeleteWorkload { workload, .. } => format!("delete workload {}", workload.name),
        Action::WriteStatus { .. }
        | Action::CreateService { .. }
        | Action::WriteQueueStatus { .. }
        | Action::WriteReason { .. }
        | Action::RecordEvent(_) => return None,
    })
}

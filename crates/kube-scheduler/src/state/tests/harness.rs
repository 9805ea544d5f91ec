//! A state and the API server that it is played against. Nothing is told, done or answered before the test says so.
//!
//! Whatever is played, these must hold: the engine takes all that it is told; a pod that is known to be bound is
//! never bound again; and no GPU is promised twice, as far as we can know.

use agentaflow_kube_core::names;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use agentaflow_engine::Time;

use super::fake_server::{Kind, News, Server, key, uid};
use crate::state::{Action, ActionResult, Bind, BindResult, ClusterState, Key, PodRef, Settings};

/// The namespace of everything.
pub(super) const SPACE: &str = "ns";

/// When a harness begins, in seconds.
const BEGINNING: u64 = 1_700_000_000;

pub(super) struct Harness {
    pub(super) server: Server,
    pub(super) state: ClusterState,
    pub(super) now: Time,
    wake: Option<Time>,
    /// What is to be carried out.
    pub(super) acts: VecDeque<Action>,
    /// What came of it and was not told yet.
    pub(super) outcomes: VecDeque<ActionResult>,
    /// How much of the history was told.
    told: BTreeMap<Kind, usize>,
    /// What the state was told last about each object.
    known: BTreeMap<(Kind, Key), Value>,
    /// Pods that are being bound, or are bound and not seen to be.
    plans: BTreeMap<Key, (Arc<str>, Arc<str>)>,
    /// Acts since the last look, in words.
    said: Vec<String>,
    /// Events since the beginning: what about, one word, one sentence.
    pub(super) notes: Vec<String>,
    settings: Settings,
    /// Acts of those who led before; nobody waits for an answer.
    pub(super) ghosts: VecDeque<Action>,
    /// More may be given out than there is.
    pub(super) confused: bool,
}

impl Harness {
    /// A state that has begun with nothing.
    pub(super) fn new() -> Self {
        Self::of(Server::default())
    }

    /// A state that has begun with what there is.
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
            told: BTreeMap::new(),
            known: BTreeMap::new(),
            plans: BTreeMap::new(),
            said: Vec::new(),
            notes: Vec::new(),
            settings,
            ghosts: VecDeque::new(),
            confused: false,
        };
        harness.begin();
        harness
    }

    fn begin(&mut self) {
        for kind in Kind::ALL {
            self.list(kind);
        }
        self.state.start(self.now);
    }

    /// The program is killed and begins again. What was under way is not done any more.
    pub(super) fn crash(&mut self) {
        let memory = self.state.memory();
        self.state = ClusterState::new(self.settings.clone(), Some(memory), self.now);
        self.acts.clear();
        self.outcomes.clear();
        self.known.clear();
        self.plans.clear();
        self.told.clear();
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

    /// Tells the next news of a kind; whether there were any.
    pub(super) fn tell(&mut self, kind: Kind) -> bool {
        let told = self.told.entry(kind).or_default();
        let news = self.server.history.get(&kind).and_then(|all| all.get(*told)).cloned();
        let Some(news) = news else { return false };
        *told += 1;
        self.tell_news(kind, &news);
        true
    }

    /// Tells once more what was told last.
    pub(super) fn repeat(&mut self, kind: Kind) {
        let told = self.told.get(&kind).copied().unwrap_or(0);
        let last = told.checked_sub(1).and_then(|last| self.server.history.get(&kind)?.get(last));
        if let Some(news) = last.cloned() {
            self.tell_news(kind, &news);
        }
    }

    /// The watch was interrupted: everything is listed anew, and what is not there any more is gone.
    pub(super) fn list(&mut self, kind: Kind) {
        let all: Vec<Value> = self.server.all(kind).cloned().collect();
        let ghosts: Vec<Key> = self
            .known
            .keys()
            .filter(|(known, key)| *known == kind && self.server.get(kind, key).is_none())
            .map(|(_, key)| key.clone())
            .collect();
        for value in all {
            self.tell_news(kind, &News { deleted: false, value });
        }
        for Key { namespace, name } in ghosts {
            let mut value = json!({"metadata": {"name": &*name}});
            if !namespace.is_empty() {
                value["metadata"]["namespace"] = json!(&*namespace);
            }
            self.tell_news(kind, &News { deleted: true, value });
        }
        let length = self.server.history.get(&kind).map_or(0, Vec::len);
        self.told.insert(kind, length);
    }

    fn tell_news(&mut self, kind: Kind, news: &News) {
        let name = key(&news.value);
        if kind == Kind::Pod {
            let planned = self.plans.get(&name).map(|(uid, _)| uid.clone());
            let other = planned.is_some_and(|planned| *planned != *uid(&news.value));
            if news.deleted || other || !news.value["spec"]["nodeName"].is_null() {
                self.plans.remove(&name);
            }
        }
        if news.deleted {
            self.known.remove(&(kind, name));
        } else {
            self.known.insert((kind, name), news.value.clone());
        }
        self.state.apply(self.now, news.change(kind));
    }

    pub(super) fn tell_all(&mut self) {
        for kind in Kind::ALL {
            while self.tell(kind) {}
        }
    }

    /// One pass; its acts are to be carried out.
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
            self.said.extend(words(&act));
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
        let known = known.unwrap_or_else(|| panic!("{name} is bound, and nobody told of it"));
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

    /// Pods that have GPUs of a node, or will have, as far as the state can know.
    fn there(&self, node: &str) -> Vec<(&Key, u64)> {
        let pods = self.known.iter().filter(|((kind, _), _)| *kind == Kind::Pod);
        let there = pods.filter(|((_, name), pod)| match pod["spec"]["nodeName"].as_str() {
            Some(at) => at == node && !is_over(pod),
            None => !is_over(pod) && self.plans.get(name).is_some_and(|(_, at)| **at == *node),
        });
        there.map(|((_, name), pod)| (name, asks(pod))).collect()
    }

    /// Carries out the next act; whether there was one.
    pub(super) fn carry_out(&mut self) -> bool {
        if let Some(act) = self.ghosts.pop_front() {
            self.server.carry_out(&act);
        }
        let Some(act) = self.acts.pop_front() else { return false };
        let outcome = self.server.carry_out(&act);
        self.outcomes.extend(outcome);
        true
    }

    /// Carries out what comes before the next binding; whether there is one.
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
            |act: &Action| matches!(act, Action::Delete { .. } | Action::WriteFinalizer { .. });
        if let Some(next) = self.acts.iter().position(denied) {
            self.acts.remove(next);
        }
    }

    /// The next binding is carried out, and nobody knows.
    pub(super) fn misunderstand(&mut self) {
        if self.up_to_binding()
            && let Some(act) = self.acts.front().cloned()
        {
            self.server.carry_out(&act);
            self.refuse();
        }
    }

    /// Tells what came of an act; whether there was anything to tell.
    pub(super) fn answer(&mut self) -> bool {
        let Some(outcome) = self.outcomes.pop_front() else { return false };
        self.answer_with(outcome);
        true
    }

    pub(super) fn answer_with(&mut self, outcome: ActionResult) {
        if let ActionResult::Bind { pod, result, .. } = &outcome {
            match result {
                BindResult::Bound => {}
                BindResult::Elsewhere(node) => {
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

    /// Everything is told, done and answered until nothing more comes of it.
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
        panic!("it never comes to rest: {:?}", self.said);
    }

    /// The same, and all that is waited for happens.
    #[track_caller]
    pub(super) fn settle_for_long(&mut self) {
        for _ in 0..60 {
            self.settle();
            let Some(wake) = self.wake.filter(|wake| wake.0 > self.now.0) else { return };
            // Past these it is only the engine's own interest in the time.
            if wake.0 > self.now.0 + 3_600_000 {
                return;
            }
            self.pass(wake.0 - self.now.0);
        }
    }

    /// Acts since the last look, sorted, but for words to people.
    pub(super) fn said(&mut self) -> Vec<String> {
        let mut said = std::mem::take(&mut self.said);
        said.sort();
        said
    }

    /// Checks what was done since the last look.
    #[track_caller]
    pub(super) fn check(&mut self, expected: &[&str]) {
        assert_eq!(self.said(), expected);
    }

    /// Lets all that is due happen, and checks what was done.
    #[track_caller]
    pub(super) fn check_settled(&mut self, expected: &[&str]) {
        self.settle();
        self.check(expected);
    }

    pub(super) fn put(&mut self, kind: Kind, value: Value) {
        self.server.put(kind, value);
    }

    /// Kubelets carry out what they are asked for: pods that are being deleted go, and those that have lost their
    /// workload.
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

    /// Somebody deletes a pod.
    pub(super) fn delete(&mut self, name: &str) {
        let key = Key::new(SPACE, name);
        let Some(uid) = self.server.get(Kind::Pod, &key).map(|pod| Arc::from(uid(pod))) else {
            return;
        };
        self.server.delete(&PodRef { key, uid });
    }

    /// The node of a pod, as the API server has it.
    pub(super) fn node_of(&self, name: &str) -> Option<&str> {
        self.server.get(Kind::Pod, &Key::new(SPACE, name))?["spec"]["nodeName"].as_str()
    }

    /// PendingCondition a pod waits, in one word.
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

/// What is checked of an act.
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
        Action::WriteFinalizer { workload, add, .. } => {
            format!("{} finalizer {}", if *add { "add" } else { "remove" }, workload.name)
        }
        Action::WriteStatus { .. } | Action::WriteQueueStatus { .. } | Action::RecordEvent(_) => {
            return None;
        }
    })
}

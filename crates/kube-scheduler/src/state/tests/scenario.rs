//! Random events and the cluster that they change.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::{Kind, key};
use super::harness::{Harness, SPACE, asks, end, gpus, is_over};
use super::objects::{group, member, node, pod, queue, with, workload};
use super::volumes::{claim, class, using, volume};
use crate::state::Key;

/// Numbers choose among existing objects.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Pod {
        gpus: u32,
        priority: Option<u8>,
        owned: bool,
    },
    Member {
        group: u8,
    },
    Theirs {
        gpus: u32,
        node: u8,
    },
    Group {
        group: u8,
        least: u32,
    },
    NoGroup {
        group: u8,
    },
    Workload {
        name: u8,
        gang: u32,
        retries: u32,
    },
    NoWorkload {
        name: u8,
    },
    Queue {
        name: u8,
        gpus: u32,
    },
    NoQueue {
        name: u8,
    },
    Node {
        name: u8,
    },
    NoNode {
        name: u8,
    },
    Delete {
        pod: u8,
    },
    End {
        pod: u8,
        well: bool,
    },
    Kubelets,
    Tell {
        kind: usize,
        count: u8,
    },
    Repeat {
        kind: usize,
    },
    List {
        kind: usize,
    },
    Step,
    CarryOut {
        count: u8,
    },
    Refuse,
    /// The API server refuses to delete a pod, or to change a workload.
    Deny,
    Answer {
        count: u8,
    },
    Settle,
    Pass {
        milliseconds: u64,
    },
    Settings {
        pack: bool,
    },
    Crash,
    /// A binding takes effect although the response reports a failure.
    Misunderstanding,
    /// A crash after which actions in flight still take effect.
    LateCrash,
    Volume {
        node: u8,
    },
}

pub(super) struct Scenario {
    pub(super) harness: Harness,
    made: u32,
    /// Every pod has a claim for a pre-provisioned volume.
    pub(super) stores: bool,
}

impl Scenario {
    pub(super) fn new() -> Self {
        let mut harness = Harness::new();
        for name in 0..3 {
            harness.put(Kind::Node, a_node(name));
        }
        harness.put(Kind::Class, class("local", "kubernetes.io/no-provisioner"));
        Self { harness, made: 0, stores: false }
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("p{}", self.made)
    }

    fn some_pod(&self, number: u8) -> Option<Value> {
        let all: Vec<&Value> = self.harness.server.all(Kind::Pod).collect();
        (!all.is_empty()).then(|| all[usize::from(number) % all.len()].clone())
    }

    pub(super) fn harness(&mut self, event: Event) {
        let harness = &mut self.harness;
        match event {
            Event::Pod { .. } | Event::Member { .. } | Event::Theirs { .. } => self.create(&event),
            Event::Group { group: name, least } => {
                harness.put(Kind::PodGroup, group(&format!("g{name}"), least));
            }
            Event::NoGroup { group } => {
                harness.server.remove(Kind::PodGroup, &Key::new(SPACE, &format!("g{group}")));
            }
            Event::Workload { name, gang, retries } => {
                let name = format!("w{name}");
                if harness.server.get(Kind::Workload, &Key::new(SPACE, &name)).is_none() {
                    harness.put(Kind::Workload, workload(&name, gang, retries));
                }
            }
            Event::NoWorkload { name } => {
                harness.server.delete_workload(&Key::new(SPACE, &format!("w{name}")));
            }
            Event::Queue { name, gpus } => {
                harness.put(Kind::Queue, queue(&format!("q{name}"), gpus));
            }
            Event::NoQueue { name } => {
                harness.server.remove(Kind::Queue, &Key::new("", &format!("q{name}")));
            }
            Event::Node { name } => {
                let node = a_node(name);
                if harness.server.get(Kind::Node, &key(&node)).is_none() {
                    harness.put(Kind::Node, node);
                }
            }
            Event::NoNode { name } => {
                harness.server.remove(Kind::Node, &Key::new("", &format!("n{name}")));
            }
            Event::Volume { node } => self.make_volume(node),
            Event::Delete { .. } | Event::End { .. } => self.befall(&event),
            Event::Kubelets => harness.kubelets(),
            Event::Settings { pack } => {
                let mut settings = crate::state::Settings::new(names::SCHEDULER_NAME);
                if pack {
                    settings.policy.strategy = crate::state::strategy("pack").expect("a strategy");
                }
                harness.set_settings(settings);
            }
            other => self.proceed(&other),
        }
    }

    /// Events between the API server and the scheduler.
    fn proceed(&mut self, event: &Event) {
        let harness = &mut self.harness;
        match *event {
            Event::Tell { kind, count } => {
                for _ in 0..count {
                    harness.tell(Kind::ALL[kind]);
                }
            }
            Event::Repeat { kind } => harness.repeat(Kind::ALL[kind]),
            Event::List { kind } => harness.list(Kind::ALL[kind]),
            Event::Step => harness.step(),
            Event::CarryOut { count } => {
                for _ in 0..count {
                    harness.carry_out();
                }
            }
            Event::Refuse => harness.refuse(),
            Event::Deny => harness.deny(),
            Event::Answer { count } => {
                for _ in 0..count {
                    harness.answer();
                }
            }
            Event::Settle => harness.settle(),
            Event::Pass { milliseconds } => harness.pass(milliseconds),
            Event::Crash => harness.crash(),
            Event::Misunderstanding => harness.misunderstand(),
            Event::LateCrash => {
                let under_way = std::mem::take(&mut harness.acts);
                harness.crash();
                harness.ghosts.extend(under_way);
            }
            _ => {}
        }
    }

    fn create(&mut self, event: &Event) {
        let name = self.name();
        let made = match *event {
            Event::Pod { gpus, priority, owned } => {
                let mut made = pod(&name, gpus);
                if let Some(priority) = priority {
                    made =
                        with(made, "spec|priority", json!(i32::from(priority) * 30_000 - 100_000));
                }
                if owned {
                    made["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1",
                        "kind": "ReplicaSet", "name": "rs", "uid": format!("r{}", gpus),
                        "controller": true}]);
                }
                made
            }
            Event::Member { group } => member(&name, &format!("g{group}"), 1),
            Event::Theirs { gpus, node } => {
                let theirs = with(pod(&name, gpus), "spec|schedulerName", json!("others"));
                let Some(node) = self.room(gpus, node) else { return };
                with(theirs, "spec|nodeName", json!(node))
            }
            _ => return,
        };
        let ours = made["spec"]["schedulerName"] == names::SCHEDULER_NAME;
        if self.stores && ours {
            self.harness.put(Kind::Claim, claim(&name, "local"));
            self.harness.put(Kind::Pod, using(made, &name));
        } else {
            self.harness.put(Kind::Pod, made);
        }
    }

    fn make_volume(&mut self, node: u8) {
        let name = format!("v{}", self.harness.server.all(Kind::Volume).count());
        self.harness.put(Kind::Volume, volume(&name, "local", &format!("n{node}")));
    }

    /// A node with room for a foreign pod, by the API server's objects.
    fn room(&self, wanted: u32, number: u8) -> Option<String> {
        let nodes: Vec<&Value> = self.harness.server.all(Kind::Node).collect();
        let node = nodes.get(usize::from(number) % nodes.len().max(1))?;
        let name = node["metadata"]["name"].as_str()?;
        let there = |pod: &&Value| pod["spec"]["nodeName"] == name && !is_over(pod);
        let used: u64 = self.harness.server.all(Kind::Pod).filter(there).map(asks).sum();
        let has = gpus(&node["status"]["allocatable"]);
        (used + u64::from(wanted) <= has).then(|| name.to_owned())
    }

    fn befall(&mut self, event: &Event) {
        match *event {
            Event::Delete { pod } => {
                if let Some(pod) = self.some_pod(pod) {
                    self.harness.delete(pod["metadata"]["name"].as_str().unwrap_or_default());
                }
            }
            Event::End { pod, well } => {
                let bound = |pod: &Value| !pod["spec"]["nodeName"].is_null() && !is_over(pod);
                if let Some(pod) = self.some_pod(pod).filter(bound) {
                    let phase = if well { "Succeeded" } else { "Failed" };
                    self.harness.server.change(Kind::Pod, &key(&pod), |pod| end(pod, phase));
                }
            }
            _ => {}
        }
    }

    /// Delivers all events and ends running pods until no pending pod can run.
    pub(super) fn end(&mut self) {
        for name in 0..3 {
            self.harness(Event::Node { name });
        }
        for name in 0..3 {
            self.harness(Event::NoWorkload { name });
        }
        for number in 0..self.made * 3 * u32::from(self.stores) {
            self.make_volume((number % 3) as u8);
        }
        for round in 0.. {
            self.harness.settle_for_long();
            self.check_room();
            self.harness.kubelets();
            let waiting = self.could_start();
            if waiting.is_empty() {
                break;
            }
            assert!(round < 40, "these could start, and do not: {waiting:?}");
            let bound: Vec<Key> = self
                .harness
                .server
                .all(Kind::Pod)
                .filter(|pod| !pod["spec"]["nodeName"].is_null() && !is_over(pod))
                .map(key)
                .collect();
            for pod in bound {
                self.harness.server.change(Kind::Pod, &pod, |pod| end(pod, "Succeeded"));
            }
        }
        self.harness.kubelets();
        self.harness.settle_for_long();
        let left: Vec<Key> = self.harness.server.all(Kind::Workload).map(key).collect();
        assert!(left.is_empty(), "these were deleted and are still there: {left:?}");
    }

    /// Checks that no node has unreserved room for a pending single pod.
    fn check_room(&mut self) {
        if self.stores {
            // The room may be on a node without access to the pod's volume.
            return;
        }
        let alone: Vec<(String, u64)> = self
            .harness
            .server
            .all(Kind::Pod)
            .filter(|pod| is_waiting(pod) && pod["metadata"]["labels"][names::POD_GROUP].is_null())
            .map(|pod| (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), asks(pod)))
            .collect();
        for (name, asked) in alone {
            let reason = self.harness.reason(&name).unwrap_or_default();
            if reason == "NoRoom" {
                let room = (0..3).find_map(|node| self.room(asked as u32, node));
                assert_eq!(room, None, "{name} waits, and there is room");
            }
        }
    }

    /// Pending pods that fit into an empty cluster.
    fn could_start(&self) -> Vec<String> {
        let waiting = |group: &Value| {
            let pods = self.harness.server.all(Kind::Pod);
            pods.filter(|pod| {
                is_waiting(pod) && pod["metadata"]["labels"][names::POD_GROUP] == *group
            })
            .count() as u64
        };
        let pods = self.harness.server.all(Kind::Pod).filter(|pod| is_waiting(pod));
        let could = pods.filter(|pod| {
            let group = &pod["metadata"]["labels"][names::POD_GROUP];
            let Some(name) = group.as_str() else { return true };
            let found = self.harness.server.get(Kind::PodGroup, &Key::new(SPACE, name));
            found.is_some_and(|found| found["spec"]["minMember"].as_u64() <= Some(waiting(group)))
        });
        could.map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn is_waiting(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_null()
        && pod["spec"]["schedulerName"] == names::SCHEDULER_NAME
        && pod["metadata"]["deletionTimestamp"].is_null()
        && !is_over(pod)
}

/// Node `n0` has two GPUs, `n1` two, `n2` three.
fn a_node(name: u8) -> Value {
    node(&format!("n{name}"), if name == 2 { 3 } else { 2 })
}

//! Whatever happens, in whatever order it is told: nothing is bound twice or given out twice, the engine understands
//! all that it is told, and in the end everything starts that can.
//!
//! What must always hold is checked by [`Play`] at every step. `PROPTEST_CASES` makes it longer and
//! `PROPTEST_RNG_SEED` plays something else.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use serde_json::{Value, json};

use super::objects::{group, member, node, pod, queue, with, workload};
use super::play::{Play, SPACE, asks, end, gpus, is_over};
use super::server::{Kind, key};
use crate::names;
use crate::world::Key;

/// One thing that happens. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Event {
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
    /// A binding is carried out, and the answer is that it was not.
    Misunderstanding,
    /// As a crash, but what was under way is done all the same, later.
    LateCrash,
}

/// Which of the kinds pods are; those behind it are storage, which is not played here.
const POD: usize = 5;

/// The same with misunderstandings, after which nobody can help that more is given out than there is.
fn confusion() -> impl Strategy<Value = Event> {
    prop_oneof![30 => event(), 1 => Just(Event::Misunderstanding), 1 => Just(Event::LateCrash)]
}

fn event() -> impl Strategy<Value = Event> {
    let kind = || 0..=POD;
    prop_oneof![
        6 => (1..=2_u32, prop::option::weighted(0.3, 0..=10_u8), prop::bool::weighted(0.2))
            .prop_map(|(gpus, priority, owned)| Event::Pod { gpus, priority, owned }),
        6 => (0..3_u8).prop_map(|group| Event::Member { group }),
        2 => (1..=2_u32, any::<u8>()).prop_map(|(gpus, node)| Event::Theirs { gpus, node }),
        3 => (0..3_u8, 1..=3_u32).prop_map(|(group, least)| Event::Group { group, least }),
        1 => (0..3_u8).prop_map(|group| Event::NoGroup { group }),
        3 => (0..3_u8, 1..=2_u32, 0..=1_u32)
            .prop_map(|(name, gang, retries)| Event::Workload { name, gang, retries }),
        1 => (0..3_u8).prop_map(|name| Event::NoWorkload { name }),
        1 => (0..1_u8, 3..=4_u32).prop_map(|(name, gpus)| Event::Queue { name, gpus }),
        1 => (0..1_u8).prop_map(|name| Event::NoQueue { name }),
        2 => (0..3_u8).prop_map(|name| Event::Node { name }),
        1 => (0..3_u8).prop_map(|name| Event::NoNode { name }),
        3 => any::<u8>().prop_map(|pod| Event::Delete { pod }),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(pod, well)| Event::End { pod, well }),
        2 => Just(Event::Kubelets),
        10 => (kind(), 1..6_u8).prop_map(|(kind, count)| Event::Tell { kind, count }),
        6 => (1..9_u8).prop_map(|count| Event::Tell { kind: POD, count }),
        2 => kind().prop_map(|kind| Event::Repeat { kind }),
        2 => kind().prop_map(|kind| Event::List { kind }),
        8 => Just(Event::Step),
        8 => (1..6_u8).prop_map(|count| Event::CarryOut { count }),
        2 => Just(Event::Refuse),
        6 => (1..6_u8).prop_map(|count| Event::Answer { count }),
        3 => Just(Event::Settle),
        2 => (1..40_000_u64).prop_map(|milliseconds| Event::Pass { milliseconds }),
        1 => any::<bool>().prop_map(|pack| Event::Settings { pack }),
        2 => Just(Event::Crash),
    ]
}

fn cases(usual: u32) -> Config {
    let mut config = Config::default();
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(42);
    }
    let cases = usual * config.cases / 256;
    Config { cases, max_shrink_iters: 20_000, failure_persistence: None, ..config }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn whatever_happens_nothing_is_given_out_twice_and_everything_starts_that_can(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut stage = Stage::new();
        for event in events {
            stage.play(event);
        }
        stage.end();
    }

    #[test]
    fn when_answers_are_lost_or_late_everything_starts_all_the_same(
        events in prop::collection::vec(confusion(), 1..120),
    ) {
        let mut stage = Stage::new();
        stage.play.confused = true;
        for event in events {
            stage.play(event);
        }
        stage.end();
    }
}

struct Stage {
    play: Play,
    made: u32,
}

impl Stage {
    fn new() -> Self {
        let mut play = Play::new();
        for name in 0..3 {
            play.put(Kind::Node, a_node(name));
        }
        Self { play, made: 0 }
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("p{}", self.made)
    }

    fn some_pod(&self, number: u8) -> Option<Value> {
        let all: Vec<&Value> = self.play.server.all(Kind::Pod).collect();
        (!all.is_empty()).then(|| all[usize::from(number) % all.len()].clone())
    }

    fn play(&mut self, event: Event) {
        let play = &mut self.play;
        match event {
            Event::Pod { .. } | Event::Member { .. } | Event::Theirs { .. } => self.create(&event),
            Event::Group { group: name, least } => {
                play.put(Kind::PodGroup, group(&format!("g{name}"), least));
            }
            Event::NoGroup { group } => {
                play.server.remove(Kind::PodGroup, &Key::new(SPACE, &format!("g{group}")));
            }
            Event::Workload { name, gang, retries } => {
                let name = format!("w{name}");
                if play.server.get(Kind::Workload, &Key::new(SPACE, &name)).is_none() {
                    play.put(Kind::Workload, workload(&name, gang, retries));
                }
            }
            Event::NoWorkload { name } => {
                play.server.delete_workload(&Key::new(SPACE, &format!("w{name}")));
            }
            Event::Queue { name, gpus } => {
                play.put(Kind::Queue, queue(&format!("q{name}"), gpus));
            }
            Event::NoQueue { name } => {
                play.server.remove(Kind::Queue, &Key::new("", &format!("q{name}")));
            }
            Event::Node { name } => {
                let node = a_node(name);
                if play.server.get(Kind::Node, &key(&node)).is_none() {
                    play.put(Kind::Node, node);
                }
            }
            Event::NoNode { name } => {
                play.server.remove(Kind::Node, &Key::new("", &format!("n{name}")));
            }
            Event::Delete { .. } | Event::End { .. } => self.befall(&event),
            Event::Kubelets => play.kubelets(),
            Event::Settings { pack } => {
                let mut settings = crate::world::Settings::new(names::SCHEDULER_NAME);
                if pack {
                    settings.policy.strategy = crate::world::strategy("pack").expect("a strategy");
                }
                play.set_settings(settings);
            }
            other => self.proceed(&other),
        }
    }

    /// What happens between the API server and us.
    fn proceed(&mut self, event: &Event) {
        let play = &mut self.play;
        match *event {
            Event::Tell { kind, count } => {
                for _ in 0..count {
                    play.tell(Kind::ALL[kind]);
                }
            }
            Event::Repeat { kind } => play.repeat(Kind::ALL[kind]),
            Event::List { kind } => play.list(Kind::ALL[kind]),
            Event::Step => play.step(),
            Event::CarryOut { count } => {
                for _ in 0..count {
                    play.carry_out();
                }
            }
            Event::Refuse => play.refuse(),
            Event::Answer { count } => {
                for _ in 0..count {
                    play.answer();
                }
            }
            Event::Settle => play.settle(),
            Event::Pass { milliseconds } => play.pass(milliseconds),
            Event::Crash => play.crash(),
            Event::Misunderstanding => play.misunderstand(),
            Event::LateCrash => {
                let under_way = std::mem::take(&mut play.acts);
                play.crash();
                play.ghosts.extend(under_way);
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
                    let pointer = format!("metadata|annotations|{}", names::PRIORITY);
                    made = with(made, &pointer, json!(priority.to_string()));
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
        self.play.put(Kind::Pod, made);
    }

    /// A node where others have room, as the API server has it.
    fn room(&self, wanted: u32, number: u8) -> Option<String> {
        let nodes: Vec<&Value> = self.play.server.all(Kind::Node).collect();
        let node = nodes.get(usize::from(number) % nodes.len().max(1))?;
        let name = node["metadata"]["name"].as_str()?;
        let there = |pod: &&Value| pod["spec"]["nodeName"] == name && !is_over(pod);
        let used: u64 = self.play.server.all(Kind::Pod).filter(there).map(asks).sum();
        let has = gpus(&node["status"]["allocatable"]);
        (used + u64::from(wanted) <= has).then(|| name.to_owned())
    }

    fn befall(&mut self, event: &Event) {
        match *event {
            Event::Delete { pod } => {
                if let Some(pod) = self.some_pod(pod) {
                    self.play.delete(pod["metadata"]["name"].as_str().unwrap_or_default());
                }
            }
            Event::End { pod, well } => {
                let bound = |pod: &Value| !pod["spec"]["nodeName"].is_null() && !is_over(pod);
                if let Some(pod) = self.some_pod(pod).filter(bound) {
                    let phase = if well { "Succeeded" } else { "Failed" };
                    self.play.server.change(Kind::Pod, &key(&pod), |pod| end(pod, phase));
                }
            }
            _ => {}
        }
    }

    /// Everything is told, what runs ends, and in the end nothing waits that could run.
    fn end(&mut self) {
        for name in 0..3 {
            self.play(Event::Node { name });
        }
        for name in 0..3 {
            self.play(Event::NoWorkload { name });
        }
        for round in 0.. {
            self.play.settle_for_long();
            self.check_room();
            self.play.kubelets();
            let waiting = self.could_start();
            if waiting.is_empty() {
                break;
            }
            assert!(round < 40, "these could start, and do not: {waiting:?}");
            let bound: Vec<Key> = self
                .play
                .server
                .all(Kind::Pod)
                .filter(|pod| !pod["spec"]["nodeName"].is_null() && !is_over(pod))
                .map(key)
                .collect();
            for pod in bound {
                self.play.server.change(Kind::Pod, &pod, |pod| end(pod, "Succeeded"));
            }
        }
        self.play.kubelets();
        self.play.settle_for_long();
        let left: Vec<Key> = self.play.server.all(Kind::Workload).map(key).collect();
        assert!(left.is_empty(), "these were deleted and are still there: {left:?}");
    }

    /// Where somebody alone waits for room, there is none, or it is kept for another.
    fn check_room(&mut self) {
        let alone: Vec<(String, u64)> = self
            .play
            .server
            .all(Kind::Pod)
            .filter(|pod| is_waiting(pod) && pod["metadata"]["labels"][names::POD_GROUP].is_null())
            .map(|pod| (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), asks(pod)))
            .collect();
        for (name, asked) in alone {
            let reason = self.play.reason(&name).unwrap_or_default();
            if reason == "NoRoom" {
                let room = (0..3).find_map(|node| self.room(asked as u32, node));
                assert_eq!(room, None, "{name} waits, and there is room");
            }
        }
    }

    /// Pods that wait and that an empty cluster would take.
    fn could_start(&self) -> Vec<String> {
        let waiting = |group: &Value| {
            let pods = self.play.server.all(Kind::Pod);
            pods.filter(|pod| {
                is_waiting(pod) && pod["metadata"]["labels"][names::POD_GROUP] == *group
            })
            .count() as u64
        };
        let pods = self.play.server.all(Kind::Pod).filter(|pod| is_waiting(pod));
        let could = pods.filter(|pod| {
            let group = &pod["metadata"]["labels"][names::POD_GROUP];
            let Some(name) = group.as_str() else { return true };
            let found = self.play.server.get(Kind::PodGroup, &Key::new(SPACE, name));
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

//! Forecasts hold when nothing unexpected happens.

use std::collections::BTreeMap;

use agentaflow_engine::{
    Decision, Event, Policy, QueueOrder, Scheduler, Span, Time, Workload, WorkloadId,
};
use proptest::prelude::*;

use crate::cluster;
use crate::driver::TestDriver;
use crate::history::History;
use crate::request::workload;
use crate::{cases, plain};

/// A driver in which workloads run exactly for their estimates and victims stop at once.
struct Clockwork {
    driver: TestDriver,
    ends: BTreeMap<WorkloadId, Time>,
    starts: BTreeMap<WorkloadId, Time>,
    /// Reservations with their first promised start.
    promises: BTreeMap<WorkloadId, Time>,
}

impl Clockwork {
    fn new(history: &History) -> Self {
        let driver = TestDriver::new(history);
        Self { driver, ends: BTreeMap::new(), starts: BTreeMap::new(), promises: BTreeMap::new() }
    }

    fn submit(&mut self, workload: &Workload) {
        self.driver.submit(workload).ok();
    }

    /// Executes one pass; returns the time of the next one.
    fn turn(&mut self) -> Option<Time> {
        let now = self.driver.now;
        let plan = self.driver.decide();
        for decision in &plan.decisions {
            match decision {
                Decision::Place(placement) => {
                    let id = &placement.workload;
                    self.starts.entry(id.clone()).or_insert(now);
                    if let Some(estimate) = self.driver.ledger.workloads[id].estimate {
                        self.ends.insert(id.clone(), now.after(estimate));
                    }
                }
                Decision::Preempt { victims, .. } => {
                    for victim in victims {
                        self.ends.remove(&victim.workload);
                    }
                }
                Decision::Displace { .. }
                | Decision::AwaitReplacement { .. }
                | Decision::Wait { .. } => {}
            }
        }
        self.driver.all_gone();
        for hold in self.driver.engine.snapshot().holds {
            if let (None, Some(start)) = (hold.victims, hold.until) {
                // An earlier workload that gets its quota starts first; that is not backfill.
                let number = |id: &WorkloadId| id.as_str()[1..].parse::<u32>().unwrap_or(0);
                let waiting =
                    self.driver.ledger.workloads.keys().filter(|id| !self.starts.contains_key(*id));
                if waiting.map(number).min() == Some(number(&hold.workload)) {
                    self.promises.entry(hold.workload).or_insert(start);
                }
            }
        }
        let again = self.driver.engine.snapshot().retry_blocked.then_some(now);
        let wake = plan.wake_at.filter(|wake| *wake > now);
        self.ends.values().copied().chain(wake).chain(again).min()
    }

    fn advance(&mut self, to: Time) {
        self.driver.now = to;
        let due: Vec<WorkloadId> =
            self.ends.iter().filter(|(_, end)| **end <= to).map(|(id, _)| id.clone()).collect();
        for id in due {
            self.ends.remove(&id);
            self.driver.tell(Event::Finished(id)).expect("running work can finish");
        }
    }

    /// Runs until no further event is known.
    fn run(&mut self) {
        for _ in 0..2000 {
            match self.turn() {
                Some(next) => self.advance(next),
                None => return,
            }
        }
    }
}

/// Workloads with estimates and without gates.
fn timed() -> impl Strategy<Value = Workload> {
    (workload(), 1..20_u64).prop_map(|(workload, minutes)| Workload {
        estimate: Some(Span::minutes(minutes)),
        gate: None,
        ..workload
    })
}

fn world() -> impl Strategy<Value = History> {
    let queues = prop::collection::vec(cluster::queue(), 0..4);
    (cluster::policy(), cluster::nodes(3), queues).prop_map(|(policy, nodes, queues)| History {
        policy,
        nodes,
        queues,
        steps: Vec::new(),
    })
}

proptest! {
    #![proptest_config(cases(240))]

    #[test]
    fn without_unexpected_events_workloads_start_at_their_eta(
        history in world(),
        work in prop::collection::vec(timed(), 1..14),
        asked_at_once in any::<bool>(),
    ) {
        let mut clockwork = Clockwork::new(&history);
        for workload in &work {
            clockwork.submit(workload);
        }
        let mut started = BTreeMap::new();
        if !asked_at_once && let Some(next) = clockwork.turn() {
            clockwork.advance(next);
            started = clockwork.starts.clone();
        }
        let mut etas = clockwork.driver.engine.etas(clockwork.driver.now);
        clockwork.run();
        clockwork.starts.retain(|id, _| !started.contains_key(id));
        etas.retain(|id, _| !started.contains_key(id));
        prop_assert_eq!(etas, clockwork.starts);
    }

    #[test]
    fn what_if_predicts_the_start_of_a_submitted_workload(
        history in world(),
        work in prop::collection::vec(timed(), 1..8),
        guest in timed(),
    ) {
        let mut clockwork = Clockwork::new(&history);
        for workload in &work {
            clockwork.submit(workload);
        }
        clockwork.turn();
        let mut guest = guest;
        guest.id = format!("w{}", work.len()).into();
        if !clockwork.driver.ledger.queues.contains_key(&guest.queue) {
            guest.queue = "root".into();
        }
        let output = clockwork.driver.engine.what_if(Time(0), guest.clone());
        clockwork.submit(&guest);
        clockwork.run();
        if let Ok(output) = output {
            let start = match output.eta {
                agentaflow_engine::Eta::Now => Some(Time(0)),
                agentaflow_engine::Eta::At(at) => Some(at),
                agentaflow_engine::Eta::Unknown => None,
            };
            prop_assert_eq!(start, clockwork.starts.get(&guest.id).copied());
        }
    }

    #[test]
    fn backfill_never_delays_the_head(
        history in world(),
        work in prop::collection::vec((plain(timed()), 0..10_u64), 1..20),
    ) {
        let policy = Policy { order: Some(QueueOrder::Fifo), backfill: true, preemption: false, ..history.policy.clone() };
        let mut clockwork = Clockwork::new(&History { policy, ..history });
        let mut at = 0;
        for (workload, later) in &work {
            at += later * 20_000;
            loop {
                match clockwork.turn() {
                    Some(next) if next.0 < at => clockwork.advance(next),
                    _ => break,
                }
            }
            clockwork.advance(Time(at));
            clockwork.submit(workload);
        }
        clockwork.run();
        for (id, promised) in &clockwork.promises {
            let start = clockwork.starts.get(id);
            prop_assert!(start.is_some_and(|start| start <= promised), "{} was promised {} and got {:?}", id, promised, start);
        }
    }
}

#[test]
fn an_empty_engine_has_no_forecast() {
    let engine = Scheduler::default();
    assert!(engine.etas(Time(5)).is_empty());
    assert!(engine.explain(Time(5), &"nobody".into()).is_none());
}

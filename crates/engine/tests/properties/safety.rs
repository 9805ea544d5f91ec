//! Safety: no invariant is ever broken.

use std::collections::BTreeSet;

use agentaflow_engine::{
    AdoptedTask, AdoptedWorkload, Event, LostTaskView, ResourceTotals, Scheduler, Snapshot,
    TaskSnapshot, Time, WorkloadSnapshot, WorkloadState, WorkloadView,
};
use proptest::prelude::*;

use crate::cases;
use crate::driver::{Input, TestDriver, replay};
use crate::history::history;

fn restored(engine: &Scheduler) -> Scheduler {
    let text = serde_json::to_string(&engine.snapshot()).expect("a snapshot is plain data");
    let read: Snapshot = serde_json::from_str(&text).expect("a snapshot can be read");
    Scheduler::restore(read).expect("a snapshot of ours is right")
}

/// A driver that starts from observed nodes, foreign use, queues and placements in any order.
fn adopted(engine: &Scheduler, order: u64) -> Scheduler {
    let facts = engine.snapshot();
    let mut fresh = Scheduler::new(facts.policy);
    for queue in facts.queues {
        fresh.apply(facts.now, Event::QueueUpdated(Box::new(queue.queue))).expect("a good queue");
    }
    for host in facts.nodes {
        let id = host.node.id.clone();
        let gpus: BTreeSet<_> = host.node.gpus.iter().map(|gpu| gpu.id.clone()).collect();
        fresh.apply(facts.now, Event::NodeUpdated(Box::new(host.node))).expect("a good node");
        for (foreign, (mut uses, _)) in host.foreign {
            uses.gpus.retain(|gpu, _| gpus.contains(gpu));
            let event =
                Event::ForeignUseUpdated { node: id.clone(), id: foreign, usage: Box::new(uses) };
            fresh.apply(facts.now, event).expect("good foreign use");
        }
    }
    let mut placed: Vec<_> =
        facts.workloads.into_iter().filter(|facts| !facts.tasks.is_empty()).collect();
    placed.sort_by_key(|facts| {
        facts.workload.id.as_str().bytes().fold(order, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(17)
        })
    });
    for WorkloadSnapshot { workload, tasks, placed_at, .. } in placed {
        let placed_tasks: BTreeSet<u32> = tasks.iter().map(|task| task.task).collect();
        let count = |task| workload.request_of(task).gpu_count() as usize;
        let adopt = |task: TaskSnapshot| AdoptedTask {
            task: task.task,
            node: task.node,
            devices: Some(task.gpus.into_iter().map(|part| part.gpu).collect())
                .filter(|gpus: &Vec<_>| task.devices_known && gpus.len() == count(task.task)),
            confirmed: task.confirmed,
            terminating: task.terminating_since.is_some(),
        };
        let tasks = tasks.into_iter().map(adopt).collect();
        let adopted = AdoptedWorkload {
            finished: (0..workload.task_count())
                .filter(|task| !placed_tasks.contains(task))
                .collect(),
            tasks,
            lost: Vec::new(),
            workload,
            placed_at,
        };
        fresh.apply(facts.now, Event::Adopted(Box::new(adopted))).expect("a place that was seen");
    }
    fresh
}

proptest! {
    #![proptest_config(cases(400))]

    /// Driver and ledger check every event and decision.
    #[test]
    fn no_history_overbooks_or_breaks_gangs_quotas_or_terms(history in history(1..90)) {
        TestDriver::play(&history);
    }

    #[test]
    fn equal_histories_give_equal_decisions(history in history(1..70)) {
        let driver = TestDriver::play(&history);
        let mut again = Scheduler::new(history.policy.clone());
        prop_assert_eq!(&replay(&mut again, &driver.log), &driver.plans);
    }

    #[test]
    fn a_restored_engine_decides_like_the_original(history in history(1..70), at in 0.0..1.0_f64) {
        let driver = TestDriver::play(&history);
        let at = (driver.log.len() as f64 * at) as usize;
        let mut never = Scheduler::new(history.policy.clone());
        let mut plans = replay(&mut never, &driver.log[..at]);
        let mut after = restored(&never);
        prop_assert_eq!(never.snapshot(), after.snapshot());
        for (number, input) in driver.log[at..].iter().enumerate() {
            match input {
                Input::Apply(at, event) => {
                    let output = never.apply(*at, event.clone());
                    prop_assert_eq!(output, after.apply(*at, event.clone()), "event {} {:?}", number, event);
                }
                Input::Decide(at) => {
                    let plan = never.decide(*at);
                    prop_assert_eq!(&plan, &after.decide(*at), "input {} after the restart", number);
                    plans.push(plan);
                }
            }
        }
        prop_assert_eq!(never.snapshot(), after.snapshot());
    }

    #[test]
    fn adoption_order_does_not_change_the_bookings(
        history in history(1..70), order in any::<u64>(),
    ) {
        // Pending workloads and reservations are not observable on nodes, nor are places of lost tasks.
        let mut engine = TestDriver::play(&history).engine;
        for view in engine.workloads() {
            for LostTaskView { task, .. } in view.lost {
                let ended = Event::TaskFinished { workload: view.workload.id.clone(), task };
                engine.apply(Time(0), ended).expect("a lost task can be given up");
            }
        }
        let mut facts = engine.snapshot();
        facts.workloads.retain(|facts| !facts.tasks.is_empty());
        facts.holds = vec![];
        facts.savers = vec![];
        facts.blocked_groups = vec![];
        let engine = Scheduler::restore(facts).expect("a part of a snapshot of ours is right");
        let fresh = adopted(&engine, order);
        prop_assert_eq!(fresh.lint(), Vec::new());
        for (there, here) in engine.nodes().iter().zip(fresh.nodes()) {
            prop_assert_eq!((there.cpu_free, there.memory_free, there.tasks), (here.cpu_free, here.memory_free, here.tasks));
        }
        for (there, here) in engine.queues().iter().zip(fresh.queues()) {
            let without_gpus = |totals: ResourceTotals| ResourceTotals { gpu_milli: 0, ..totals };
            prop_assert_eq!(without_gpus(there.used), without_gpus(here.used));
        }
        for view in engine.workloads() {
            let Some(found) = fresh.workload(&view.workload.id) else {
                prop_assert!(view.tasks.is_empty(), "{} is lost", view.workload.id);
                continue;
            };
            let nodes = |view: &WorkloadView| view.tasks.iter().map(|task| (task.task, task.node.clone())).collect::<Vec<_>>();
            prop_assert_eq!(nodes(&view), nodes(&found));
            prop_assert_eq!(view.submitted, found.submitted);
        }
    }

    #[test]
    fn all_resources_are_free_after_all_workloads_finish(history in history(1..70)) {
        let mut driver = TestDriver::play(&history);
        for view in driver.engine.workloads() {
            driver.tell(Event::Finished(view.workload.id)).expect("known work can finish");
        }
        let foreign: Vec<_> = driver.ledger.nodes.iter().flat_map(|(node, host)| {
            host.foreign.keys().map(|id| (node.clone(), id.clone())).collect::<Vec<_>>()
        }).collect();
        for (node, id) in foreign {
            driver.tell(Event::ForeignUseRemoved { node, id }).expect("known use can end");
        }
        driver.settle();
        prop_assert!(driver.engine.is_empty());
        for view in driver.engine.nodes() {
            prop_assert_eq!(view.cpu_free, view.node.cpu.0 as i64);
            prop_assert_eq!(view.memory_free, view.node.memory.0 as i64);
            prop_assert_eq!(view.tasks, 0);
            for (gpu, spec) in view.gpus.iter().zip(&view.node.gpus) {
                prop_assert_eq!((gpu.milli_free, gpu.memory_free as u64, gpu.users), (1000, spec.memory.0, 0));
            }
        }
        for queue in driver.engine.queues() {
            prop_assert_eq!((queue.used, queue.workloads), (ResourceTotals::default(), 0));
        }
        prop_assert!(driver.engine.snapshot().holds.is_empty());
    }

    #[test]
    fn repeated_passes_settle_and_every_pending_workload_has_a_reason(
        history in history(1..60),
    ) {
        let mut driver = TestDriver::play(&history);
        driver.settle();
        for view in driver.engine.workloads() {
            if view.state == WorkloadState::Pending {
                let explained = driver.engine.explain(driver.now, &view.workload.id).expect("it is known");
                prop_assert!(explained.reason.is_some(), "{} could start but waits", view.workload.id);
                let last = driver.engine.last_reason(&view.workload.id);
                prop_assert!(last.is_some(), "no pass found a reason of {}", view.workload.id);
            } else {
                prop_assert_eq!(driver.engine.last_reason(&view.workload.id), None);
            }
        }
    }

    #[test]
    fn the_maximum_time_is_an_ordinary_time(history in history(1..40)) {
        let mut driver = TestDriver::play(&history);
        driver.now = Time(u64::MAX);
        driver.settle();
        driver.confirm_all();
        driver.all_gone();
        driver.settle();
    }
}

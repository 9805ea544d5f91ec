//! Every victim is necessary, and the preemptor gets the freed room.

use std::collections::BTreeSet;

use agentaflow_engine::{
    Decision, Event, Gate, Policy, Scheduler, Time, WorkloadId, WorkloadState,
};
use proptest::prelude::*;

use crate::cases;
use crate::driver::{TestDriver, started};
use crate::history::{Step, history};

/// Reports all tasks of these workloads as stopped.
fn stop_tasks(engine: &mut Scheduler, now: Time, ids: &[WorkloadId]) {
    for id in ids {
        let tasks = engine.workload(id).map(|view| view.tasks).unwrap_or_default();
        for task in tasks {
            engine
                .apply(now, Event::TaskStopped { workload: id.clone(), task: task.task })
                .expect("a victim can go");
        }
    }
}

/// Without any one of the victims the preemptor does not fit; without all of them it starts.
fn check_each(driver: &TestDriver, victims: &[WorkloadId], beneficiary: &WorkloadId) {
    let mut all = driver.engine.clone();
    stop_tasks(&mut all, driver.now, victims);
    let plan = all.decide(driver.now);
    assert!(
        started(&plan).contains(beneficiary),
        "{beneficiary} does not start although its victims are gone"
    );
    for spared in victims {
        let mut copy = driver.engine.clone();
        let holders: BTreeSet<WorkloadId> =
            copy.snapshot().holds.into_iter().map(|hold| hold.workload).collect();
        let others: Vec<WorkloadId> = victims.iter().filter(|id| *id != spared).cloned().collect();
        stop_tasks(&mut copy, driver.now, &others);
        for view in copy.workloads() {
            let id = view.workload.id;
            if view.state == WorkloadState::Pending && !holders.contains(&id) {
                copy.apply(driver.now, Event::Cancelled(id))
                    .expect("waiting work can be cancelled");
            }
        }
        let policy = Policy { preemption: false, ..copy.policy().clone() };
        copy.apply(driver.now, Event::PolicyUpdated(Box::new(policy)))
            .expect("settings can change");
        // The hold expires, and the preemptor is pending like other workloads.
        for gate in [Some(Gate::Paused("for a moment".into())), None] {
            copy.apply(driver.now, Event::GateChanged { workload: beneficiary.clone(), gate })
                .expect("a gate can close");
        }
        let plan = copy.decide(driver.now);
        assert!(
            !started(&plan).contains(beneficiary),
            "{spared} is stopped for {beneficiary} for nothing"
        );
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn every_victim_is_needed_and_the_preemptor_gets_its_room(history in history(1..60)) {
        let mut history = history;
        history.policy.preemption = true;
        let mut driver = TestDriver::new(&history);
        for step in &history.steps {
            if !matches!(step, Step::Decide) {
                driver.step(step);
                continue;
            }
            let plan = driver.decide();
            for decision in &plan.decisions {
                if let Decision::Preempt { victims, beneficiary, .. } = decision {
                    let victims: Vec<_> = victims.iter().map(|victim| victim.workload.clone()).collect();
                    check_each(&driver, &victims, beneficiary);
                }
            }
        }
    }
}

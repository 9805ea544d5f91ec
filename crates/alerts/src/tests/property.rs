//! A sink that fails at random and a driver that restarts at random agree in the end: the sink knows exactly the alerts
//! that fire, and no message is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::{Bench, ONE_SINK};
use crate::{Facts, GpuFacts};

#[derive(Clone, Debug)]
enum Step {
    /// XIDs of the GPUs.
    Observe(Vec<bool>),
    Wait(u64),
    /// Results of the attempts that are due.
    Attempt(Vec<Attempt>),
    Restart,
}

#[derive(Clone, Copy, Debug)]
enum Attempt {
    Delivered,
    /// The message arrived, and the answer was lost.
    Unanswered,
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec(any::<bool>(), 4).prop_map(Step::Observe),
        (0..400u64).prop_map(Step::Wait),
        prop::collection::vec(attempt(), 4).prop_map(Step::Attempt),
        Just(Step::Restart),
    ]
}

fn attempt() -> impl Strategy<Value = Attempt> {
    prop_oneof![Just(Attempt::Delivered), Just(Attempt::Unanswered), Just(Attempt::Lost)]
}

fn facts(broken: &[bool]) -> Facts {
    let gpu = |(index, broken): (usize, &bool)| GpuFacts {
        node: "a".into(),
        gpu: index.to_string(),
        xid: broken.then_some(79),
        ..GpuFacts::default()
    };
    Facts { gpus: broken.iter().enumerate().map(gpu).collect(), ..Facts::default() }
}

/// A receiver that keeps the firing alerts.
#[derive(Default)]
struct Receiver {
    firing: BTreeSet<String>,
}

impl Receiver {
    fn receive(&mut self, delivery: &crate::Delivery) {
        for alert in &delivery.message.firing {
            self.firing.insert(alert.id.clone());
        }
        for alert in &delivery.message.resolved {
            self.firing.remove(&alert.id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_sink_knows_the_firing_alerts_in_the_end(steps in prop::collection::vec(step(), 1..60)) {
        let mut bench = Bench::new(ONE_SINK);
        let mut receiver = Receiver::default();
        let mut broken = vec![false; 4];
        for step in steps {
            match step {
                Step::Observe(now) => {
                    bench.observe(&facts(&now));
                    broken = now;
                }
                Step::Wait(seconds) => { bench.wait(Duration::from_secs(seconds)); }
                Step::Attempt(results) => {
                    for (at, delivery) in bench.due().into_iter().enumerate() {
                        let result = results[at % results.len()];
                        if !matches!(result, Attempt::Lost) {
                            receiver.receive(&delivery);
                        }
                        if matches!(result, Attempt::Delivered) {
                            bench.alerts.delivered(bench.now, &delivery);
                        } else {
                            bench.alerts.failed(bench.now, &delivery, "no answer", None);
                        }
                    }
                }
                Step::Restart => bench.restart(),
            }
        }
        for _ in 0..4 {
            bench.wait(Duration::from_secs(301));
            for delivery in bench.deliver(&facts(&broken)) {
                receiver.receive(&delivery);
            }
        }
        let report = bench.alerts.report(bench.now).alerts;
        let firing = report.iter().filter(|alert| alert.resolved_at.is_none());
        let firing: BTreeSet<String> = firing.map(|alert| alert.id.clone()).collect();
        prop_assert_eq!(firing.len(), broken.iter().filter(|broken| **broken).count());
        prop_assert_eq!(receiver.firing, firing);
    }
}

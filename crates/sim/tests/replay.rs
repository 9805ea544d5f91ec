//! Measurements of replays with loads that can be computed by hand.

use agentaflow_engine::{QueueOrder, Strategy, Time, WaitReason};
use agentaflow_sim::synthetic::{Synthetic, demo};
use agentaflow_sim::{CutOff, Load, Options, Outcome, Stats, replay, scenario};

fn load(text: &str) -> Load {
    scenario::parse(text, "the test").unwrap()
}

fn checked(strategy: Strategy) -> Options {
    Options { lint: true, ..Options::new(strategy) }
}

fn run(load: &Load, options: &Options) -> Outcome {
    replay(load, options, &mut |_| {}).unwrap()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

const ONE_GPU: &str = "
policy: { order: fifo }
nodes: [{ name: n, gpus: 1 }]
jobs:
  - { name: a, gpus: 1, duration: 100s }
  - { name: b, gpus: 1, duration: 50s, at: 10s }
";

#[test]
fn waits_completions_and_makespan_are_measured() {
    let outcome = run(&load(ONE_GPU), &checked(Strategy::LeastUtilized));
    assert_eq!(outcome.wait_seconds, Stats { mean: 45.0, p50: 0.0, p99: 90.0 });
    assert_eq!(outcome.completion_seconds, Stats { mean: 120.0, p50: 100.0, p99: 140.0 });
    assert!(close(outcome.makespan_seconds, 150.0));
    assert!(close(outcome.allocation_percent, 100.0));
    assert_eq!((outcome.jobs, outcome.finished, outcome.dropped), (2, 2, 0));
    assert_eq!((outcome.allocated_milli, outcome.capacity_milli), (1000, 1000));
    assert_eq!((outcome.strategy.as_str(), outcome.order.as_str()), ("least_utilized", "fifo"));
}

#[test]
fn allocation_is_a_time_average() {
    let text = "
nodes: [{ name: n, gpus: 2 }]
jobs: [{ name: a, gpus: 1, duration: 100s, at: 1h }, { name: b, gpus: 0.5, duration: 50s, at: 1h }]
";
    let outcome = run(&load(text), &checked(Strategy::BestFit));
    assert!(close(outcome.allocation_percent, 62.5), "{}", outcome.allocation_percent);
    assert!(close(outcome.makespan_seconds, 100.0));
    assert!(close(outcome.curve[0].at_seconds, 0.0));
}

#[test]
fn unusable_idle_gpu_is_fragmentation() {
    // Two halves are allocated on two devices or on one; the typical task needs a whole one.
    let text = "
nodes: [{ name: n, gpus: 2 }]
jobs:
  - { name: half, gpus: 0.5, duration: 100s, count: 2 }
  - { name: whole, gpus: 1, duration: 1s, at: 200s, count: 98, every: 1s }
";
    let spread = run(
        &load(text),
        &Options { until: Some(Time(100_000)), ..checked(Strategy::LeastUtilized) },
    );
    let packed =
        run(&load(text), &Options { until: Some(Time(100_000)), ..checked(Strategy::BestFit) });
    assert!(close(spread.fragmentation_percent, 100.0), "{}", spread.fragmentation_percent);
    assert!(close(packed.fragmentation_percent, 0.0), "{}", packed.fragmentation_percent);
}

#[test]
fn workloads_that_never_fit_are_dropped_and_cut_off_ones_are_not() {
    let text = "
nodes: [{ name: n, gpus: 1 }]
queues: [{ name: q, limit: { gpus: 0.5 } }]
jobs:
  - { name: huge, gpus: 8, duration: 1s }
  - { name: over, gpus: 1, queue: q, duration: 1s }
  - { name: long, gpus: 1, duration: 1h }
  - { name: next, gpus: 1, duration: 1h }
";
    let outcome = run(&load(text), &checked(Strategy::LeastUtilized));
    assert_eq!((outcome.finished, outcome.dropped, outcome.cut_off), (2, 2, None));
    let because = &outcome.dropped_because;
    assert_eq!((because.len(), because[0].workload.as_str(), because[0].others), (2, "huge", 0));
    assert!(matches!(because[0].reason, WaitReason::NeverFits(_)), "{because:?}");
    let cut = Options { until: Some(Time(60_000)), ..checked(Strategy::LeastUtilized) };
    let outcome = run(&load(text), &cut);
    assert_eq!((outcome.finished, outcome.dropped), (0, 2));
    assert_eq!(outcome.cut_off, Some(CutOff { running: 1, waiting: 1, to_come: 0 }));
}

#[test]
fn preempted_workloads_restart_or_resume() {
    let text = "
policy: { order: priority }
nodes: [{ name: n, gpus: 1 }]
jobs:
  - { name: low, gpus: 1, duration: 100s, priority: 1, preemptible: true }
  - { name: high, gpus: 1, duration: 10s, priority: 9, at: 60s }
";
    let again = run(&load(text), &checked(Strategy::Priority));
    assert_eq!((again.preemptions, again.finished), (1, 2));
    assert!(close(again.makespan_seconds, 170.0), "{}", again.makespan_seconds);
    let resumed = run(&load(text), &Options { resume: true, ..checked(Strategy::Priority) });
    assert_eq!((resumed.preemptions, resumed.finished), (1, 2));
    assert!(close(resumed.makespan_seconds, 110.0), "{}", resumed.makespan_seconds);
}

#[test]
fn the_order_determines_the_waits() {
    let text = "
policy: { backfill: false }
nodes: [{ name: n, gpus: 1 }]
jobs:
  - { name: first, gpus: 1, duration: 10s }
  - { name: long, gpus: 1, duration: 100s, at: 1s }
  - { name: short, gpus: 1, duration: 10s, at: 2s }
";
    let mean = |order| {
        let options = Options { order: Some(order), ..checked(Strategy::LeastUtilized) };
        run(&load(text), &options).wait_seconds.mean
    };
    assert!(close(mean(QueueOrder::Fifo), (0.0 + 9.0 + 108.0) / 3.0));
    assert!(close(mean(QueueOrder::Shortest), (0.0 + 8.0 + 19.0) / 3.0));
}

#[test]
fn replanning_serves_the_least_remaining_service_first() {
    // `long` is preempted by `short` and then resumes; without preemption `short` would wait 95 s.
    let text = "
nodes: [{ name: n, gpus: 1 }]
jobs:
  - { name: long, gpus: 1, duration: 100s }
  - { name: short, gpus: 1, duration: 10s, at: 5s }
  - { name: late, gpus: 1, duration: 90s, at: 20s }
";
    let order = Some(QueueOrder::LeastService);
    let options = Options { order, replan: true, ..checked(Strategy::BestFit) };
    let outcome = run(&load(text), &options);
    // `late` needs 90 s when 90 s of `long` are left: the older one continues.
    assert_eq!((outcome.finished, outcome.preemptions), (3, 1));
    assert!(close(outcome.completion_seconds.mean, (110.0 + 10.0 + 180.0) / 3.0), "{outcome:?}");
}

#[test]
fn equal_loads_have_equal_outcomes() {
    let load =
        Synthetic { nodes: 6, hours: 3.0, load: 1.2, ..Synthetic::default() }.load().unwrap();
    for strategy in Strategy::ALL.iter().copied() {
        let timeless = || Outcome { seconds: 0.0, ..run(&load, &Options::new(strategy)) };
        let outcome = timeless();
        assert_eq!(outcome, timeless(), "{strategy}");
        assert_eq!(outcome.finished + outcome.dropped, outcome.jobs, "{strategy}");
        assert_eq!(outcome.dropped, 0, "{strategy}");
    }
}

#[test]
fn every_strategy_completes_the_demo() {
    let load = demo();
    for strategy in Strategy::ALL.iter().copied() {
        let mut last = None;
        let outcome =
            replay(&load, &checked(strategy), &mut |progress| last = Some(progress)).unwrap();
        assert_eq!((outcome.finished, outcome.dropped), (load.jobs.len() as u64, 0), "{strategy}");
        assert!(outcome.curve.len() <= 500 && outcome.curve.len() > 50);
        assert!(last.is_some_and(|progress| progress.done == progress.total));
    }
}

#[test]
fn duplicate_names_are_rejected() {
    let text = "
nodes: [{ name: n, gpus: 1 }]
jobs: [{ name: a, duration: 1s }]
";
    let mut load = load(text);
    load.jobs.push(load.jobs[0].clone());
    let error = replay(&load, &Options::new(Strategy::BestFit), &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "the scheduler rejected workload `a`");
}

//! Performance figures with limits: measurement, limit and reason.
//!
//! `cargo bench -p agentaflow-engine --bench ranges` prints the figures. The limits apply to one idle core.
//! With `--check` the program fails when a figure misses its limit by more than half, which a busy machine
//! can explain but a lost index cannot; ratios of two figures of the same run have a narrower tolerance.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a bench measures time and prints"
)]

mod load;

use agentaflow_engine::{
    Decision, Event, GpuRequest, MilliCpu, Priority, Request, Scheduler, Strategy, Time, Workload,
};
use load::{MIXED, cluster, workloads};
use std::time::{Duration, Instant};

/// Strategies with a documented rate.
const RATED: [Strategy; 4] =
    [Strategy::LeastUtilized, Strategy::BestFit, Strategy::Priority, Strategy::RoundRobin];

struct Range {
    what: String,
    measured: f64,
    unit: &'static str,
    limit: Limit,
    why: &'static str,
}

enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Range {
    fn holds(&self) -> bool {
        match self.limit {
            Limit::AtLeast(limit) => self.measured >= limit,
            Limit::AtMost(limit) => self.measured <= limit,
        }
    }

    /// The figure misses the limit by more than a busy machine explains.
    fn is_lost(&self) -> bool {
        let slack = if self.unit == "x" { 1.25 } else { 2.0 };
        match self.limit {
            Limit::AtLeast(limit) => self.measured * slack < limit,
            Limit::AtMost(limit) => self.measured > limit * slack,
        }
    }

    fn print(&self) {
        let limit = match self.limit {
            Limit::AtLeast(limit) => format!("at least {limit}"),
            Limit::AtMost(limit) => format!("at most {limit}"),
        };
        let mark = if self.holds() { "ok  " } else { "MISS" };
        println!(
            "{mark} {:<58} {:>12.2} {} ({limit}: {})",
            self.what, self.measured, self.unit, self.why
        );
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = arguments.iter().any(|argument| argument == "--check");
    let only: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted =
        |name: &str| only.is_empty() || only.iter().any(|only| name.contains(only.as_str()));
    let mut ranges = Vec::new();
    // First, before freed memory can be reused.
    if wanted("memory") {
        ranges.push(memory());
    }
    for strategy in RATED.into_iter().filter(|strategy| wanted(strategy.name())) {
        throughput(strategy, &mut ranges);
    }
    if wanted("reasons") {
        let best = (0..3).map(|_| reasons()).min_by(|a, b| a.measured.total_cmp(&b.measured));
        ranges.extend(best);
    }
    if wanted("labels") {
        ranges.extend(labels());
    }
    if wanted("storm") {
        ranges.push(storm());
    }
    for range in &ranges {
        range.print();
    }
    if check && ranges.iter().any(Range::is_lost) {
        std::process::exit(1);
    }
}

/// Decisions per second with 100,000 GPUs, and the cost ratio to 1,000.
fn throughput(strategy: Strategy, ranges: &mut Vec<Range>) {
    // Best of three.
    let best = |nodes, rounds| {
        (0..3).map(|_| seconds_per_decision(strategy, nodes, rounds)).fold(f64::MAX, f64::min)
    };
    let small = best(125, 40);
    let large = best(12_500, 40);
    ranges.push(Range {
        what: format!("{strategy}: decisions at 100,000 GPUs"),
        measured: 1.0 / large,
        unit: "/s",
        limit: Limit::AtLeast(300_000.0),
        why: "a full restart of the largest fleets places everything within a second",
    });
    ranges.push(Range {
        what: format!("{strategy}: cost at 100,000 GPUs over cost at 1,000"),
        measured: large / small,
        unit: "x",
        limit: Limit::AtMost(2.0),
        why: "a decision looks at what changed, not at the cluster",
    });
}

/// Steady state at about half of the capacity: one batch arrives, an earlier one finishes.
fn seconds_per_decision(strategy: Strategy, nodes: usize, rounds: usize) -> f64 {
    let mut scheduler = cluster(nodes, strategy);
    let batch = (nodes * 8 / 20).min(2500);
    let mut running: std::collections::VecDeque<Vec<Workload>> = std::collections::VecDeque::new();
    let mut spent = Duration::ZERO;
    let mut placed = 0;
    for round in 0..rounds + 12 {
        let incoming = workloads(batch, MIXED, round as u64);
        let keep = incoming.clone();
        let now = Time(1000 * round as u64);
        let begin = Instant::now();
        for workload in incoming {
            scheduler.apply(now, Event::Submitted(Box::new(workload))).expect("valid");
        }
        let plan = scheduler.decide(now);
        let took = begin.elapsed();
        if round >= 12 {
            spent += took;
            placed += plan.decisions.iter().filter(|d| matches!(d, Decision::Place(_))).count();
        }
        running.push_back(keep);
        if running.len() > 8 {
            for workload in running.pop_front().unwrap_or_default() {
                scheduler.apply(now, Event::Finished(workload.id)).expect("it exists");
            }
        }
    }
    spent.as_secs_f64() / f64::from(u32::try_from(placed).expect("few"))
}

/// Time until 100,000 pending workloads with fifty distinct requests have a reason.
fn reasons() -> Range {
    let mut scheduler = cluster(12_500, Strategy::LeastUtilized);
    fill(&mut scheduler);
    for workload in workloads(100_000, 50, 7) {
        scheduler.apply(Time(0), Event::Submitted(Box::new(workload))).expect("valid");
    }
    let begin = Instant::now();
    let plan = scheduler.decide(Time(0));
    let took = begin.elapsed();
    let message = plan.decisions.iter().filter(|d| matches!(d, Decision::Wait { .. })).count();
    assert_eq!(message, 100_000, "every workload has a reason");
    Range {
        what: "100,000 waiting workloads of 50 kinds explained".to_owned(),
        measured: took.as_secs_f64() * 1000.0,
        unit: "ms",
        limit: Limit::AtMost(20.0),
        why: "a reason within the blink of an eye, however long the queue",
    }
}

/// Workloads with unique labels, as in Kubernetes, cost as much as equal ones to place and to explain.
fn labels() -> [Range; 2] {
    let best = |of: &dyn Fn() -> f64| (0..3).map(|_| of()).fold(f64::MAX, f64::min);
    let message = best(&|| {
        let mut scheduler = cluster(1000, Strategy::LeastUtilized);
        submit_labelled(&mut scheduler, "fill", 8000, false);
        scheduler.decide(Time(0));
        submit_labelled(&mut scheduler, "wait", 10_000, true);
        let begin = Instant::now();
        let plan = scheduler.decide(Time(1));
        assert_eq!(plan.decisions.len(), 10_000, "every workload has a reason");
        begin.elapsed().as_secs_f64() * 1000.0
    });
    let placed = |differ: bool| {
        let mut scheduler = cluster(1000, Strategy::LeastUtilized);
        let begin = Instant::now();
        submit_labelled(&mut scheduler, "place", 5000, differ);
        let plan = scheduler.decide(Time(0));
        assert_eq!(plan.decisions.len(), 5000, "every workload is placed");
        begin.elapsed().as_secs_f64()
    };
    let ratio = best(&|| placed(true)) / best(&|| placed(false));
    [
        Range {
            what: "10,000 waiting workloads of different labels explained".to_owned(),
            measured: message,
            unit: "ms",
            limit: Limit::AtMost(20.0),
            why: "labels without a selector make no difference",
        },
        Range {
            what: "5,000 placements of different labels over equal ones".to_owned(),
            measured: ratio,
            unit: "x",
            limit: Limit::AtMost(1.5),
            why: "labels without a selector make no difference",
        },
    ]
}

/// Submits workloads of one GPU, with unique or equal labels.
fn submit_labelled(scheduler: &mut Scheduler, name: &str, count: usize, differ: bool) {
    for index in 0..count {
        let own = format!("{}", if differ { index } else { 0 });
        let request = Request {
            gpu: GpuRequest::Whole(1),
            cpu: MilliCpu(1000),
            labels: [("index".into(), own.as_str().into())].into(),
            ..Request::default()
        };
        let workload = Workload::new(format!("{name}-{index}"), request);
        scheduler.apply(Time(0), Event::Submitted(Box::new(workload))).expect("valid");
    }
}

/// Time per preemption: a thousand GPUs with preemptible workloads, and two hundred preemptors, gangs
/// included.
fn storm() -> Range {
    let mut scheduler = cluster(125, Strategy::LeastUtilized);
    let whole = |gpus| Request { gpu: GpuRequest::Whole(gpus), ..Request::default() };
    let submit = |scheduler: &mut Scheduler, workload: Workload| {
        scheduler.apply(Time(0), Event::Submitted(Box::new(workload))).expect("valid");
    };
    for index in 0..1000 {
        let low = Workload::new(format!("low-{index}"), whole(1));
        submit(&mut scheduler, Workload { priority: Priority(1), preemptible: true, ..low });
    }
    scheduler.decide(Time(0));
    for index in 0..200 {
        let (gpus, tasks) = [(1, 1), (1, 1), (2, 1), (8, 1), (1, 8)][index % 5];
        let high = Workload::new(format!("high-{index}"), whole(gpus));
        submit(&mut scheduler, Workload { priority: Priority(9), tasks, ..high });
    }
    let begin = Instant::now();
    let plan = scheduler.decide(Time(1));
    let took = begin.elapsed();
    let stops = plan.decisions.iter().filter(|d| matches!(d, Decision::Preempt { .. })).count();
    // A preemptor of whole nodes may find none without urgent workloads.
    assert!(stops >= 150, "most get a place");
    Range {
        what: "one of 200 preemptions on 1,000 full GPUs".to_owned(),
        measured: took.as_secs_f64() * 1000.0 / 200.0,
        unit: "ms",
        limit: Limit::AtMost(5.0),
        why: "a storm of urgent work is planned within a second",
    }
}

/// Uses every GPU and core.
fn fill(scheduler: &mut Scheduler) {
    for index in 0..12_500 {
        let mut workload = workloads(1, MIXED, 1).remove(0);
        workload.id = format!("fill-{index}").into();
        let whole_node =
            Request { gpu: GpuRequest::Whole(8), cpu: MilliCpu(128_000), ..Request::default() };
        workload.request = whole_node.into();
        scheduler.apply(Time(0), Event::Submitted(Box::new(workload))).expect("valid");
    }
    let plan = scheduler.decide(Time(0));
    assert_eq!(plan.decisions.len(), 12_500, "the cluster is full");
}

/// Resident memory with 100,000 GPUs and 200,000 workloads.
fn memory() -> Range {
    let before = resident_mib();
    let mut scheduler = cluster(12_500, Strategy::LeastUtilized);
    for round in 0..20 {
        for workload in workloads(10_000, MIXED, round) {
            scheduler.apply(Time(0), Event::Submitted(Box::new(workload))).expect("valid");
        }
        scheduler.decide(Time(0));
    }
    let used = resident_mib() - before;
    assert_eq!(scheduler.len(), 200_000);
    Range {
        what: "memory for 100,000 GPUs and 200,000 live workloads".to_owned(),
        measured: used,
        unit: "MiB",
        limit: Limit::AtMost(1024.0),
        why: "a control plane fits beside the work",
    }
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 =
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0.0);
    kib / 1024.0
}

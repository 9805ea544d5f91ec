//! Liveness: every workload that can start does start eventually.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentaflow_engine::{
    Ageing, Event, GpuRequest, MilliCpu, MilliGpu, Node, Policy, Priority, Queue, QueueOrder,
    Quota, Request, Span, Time, WaitReason, Workload, WorkloadId,
};
use proptest::prelude::*;

use crate::cluster;
use crate::driver::{TestDriver, started};
use crate::history::History;
use crate::request::{PRIORITIES, workload};
use crate::{cases, plain};

/// Maximum actual run time in minutes, unknown to the engine.
const LONGEST: u64 = 6;
/// Simulated minutes.
const PLAYED: u64 = 360;

const STREAM: Priority = Priority(5);

/// An endless stream of small workloads.
fn drop_in_the_stream(number: u64, kind: u8, queue: &str) -> Workload {
    let gpu = match kind % 3 {
        0 => GpuRequest::Whole(1),
        1 => GpuRequest::Fraction(MilliGpu::new(250).expect("a share")),
        _ => GpuRequest::None,
    };
    let request = Request { gpu, cpu: MilliCpu(1000), ..Request::default() };
    Workload {
        queue: queue.into(),
        may_preempt: false,
        priority: STREAM,
        ..Workload::new(format!("small{number}"), request)
    }
}

/// The workload waits for room that an empty cluster has.
fn can_ever_start(driver: &TestDriver, id: &WorkloadId) -> bool {
    let explained = driver.engine.explain(driver.now, id).expect("it is known");
    match explained.reason {
        Some(WaitReason::NeverFits(_) | WaitReason::Gang { fits_when_empty: false, .. }) => false,
        Some(WaitReason::Quota { limit, requested, .. }) => requested <= limit,
        _ => true,
    }
}

/// The quota usage of a GPU memory request depends on the GPU, so this test does not predict it.
fn can_be_judged(workload: &Workload, history: &History) -> bool {
    let limited = history.queues.iter().any(|queue| queue.limit != Quota::default());
    let by_memory =
        |(_, request): (u32, &Arc<Request>)| matches!(request.gpu, GpuRequest::Memory(_));
    !(limited && workload.each_role().any(by_memory))
}

fn play(history: &History, work: &[Workload], kinds: &[u8]) -> Result<(), TestCaseError> {
    let mut driver = TestDriver::new(history);
    let mut wanted: Vec<WorkloadId> = Vec::new();
    let mut ends: BTreeMap<WorkloadId, Time> = BTreeMap::new();
    let mut number = 0;
    for minute in 0..PLAYED {
        driver.now = Time(minute * 60_000);
        for id in ends
            .iter()
            .filter(|(_, end)| **end <= driver.now)
            .map(|(id, _)| id.clone())
            .collect::<Vec<_>>()
        {
            ends.remove(&id);
            driver.tell(Event::Finished(id)).expect("running work can finish");
        }
        // The stream never ends: new workloads arrive as earlier ones start.
        for (at, kind) in kinds.iter().enumerate() {
            let queue = if at % 2 == 0 { "root" } else { "q0" };
            let queue = if driver.ledger.queues.contains_key(queue) { queue } else { "root" };
            if driver.engine.pending_count() < 3 * kinds.len() {
                number += 1;
                driver
                    .tell(Event::Submitted(Box::new(drop_in_the_stream(number, *kind, queue))))
                    .ok();
            }
        }
        if minute == 3 {
            wanted = work
                .iter()
                .filter(|workload| can_be_judged(workload, history))
                .filter_map(|workload| driver.submit(workload).ok())
                .collect();
        }
        for _ in 0..20 {
            let plan = driver.decide();
            for id in started(&plan) {
                let minutes = 1 + (id.as_str().len() as u64 + minute) % LONGEST;
                ends.insert(id.clone(), driver.now.after(Span::minutes(minutes)));
                wanted.retain(|other| *other != id);
            }
            driver.all_gone();
            ends.retain(|id, _| driver.ledger.allocations.keys().any(|(holder, _)| holder == id));
            if plan.wake_at.is_none_or(|wake| wake > driver.now)
                && !driver.engine.snapshot().retry_blocked
            {
                break;
            }
        }
        if minute > 3 && wanted.is_empty() {
            return Ok(());
        }
    }
    for id in &wanted {
        prop_assert!(
            !can_ever_start(&driver, id),
            "{} never starts: {:?}",
            id,
            driver.engine.explain(driver.now, id)
        );
    }
    Ok(())
}

/// Workloads with priorities from `least` to `most` that preempt none.
fn with_priorities(work: Vec<Workload>, least: i32, most: i32) -> Vec<Workload> {
    let prepared = |workload: Workload| {
        let level = PRIORITIES.iter().position(|level| *level == workload.priority).unwrap_or(0);
        let priority = Priority(least + level as i32 % (most - least + 1));
        Workload { gate: None, may_preempt: false, priority, ..workload }
    };
    work.into_iter().map(prepared).collect()
}

/// A queue with a guarantee of the whole capacity always comes first.
fn without_guarantees(queues: Vec<Queue>) -> Vec<Queue> {
    let free = |queue: Queue| Queue { guaranteed: Quota::default(), borrow: true, ..queue };
    queues.into_iter().map(free).collect()
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn every_fitting_workload_starts_despite_a_stream_of_small_ones(
        nodes in cluster::nodes(3),
        queues in prop::collection::vec(cluster::queue(), 0..3),
        policy in cluster::policy(),
        work in prop::collection::vec(plain(workload()), 1..6),
        kinds in prop::collection::vec(any::<u8>(), 1..6),
    ) {
        let ageing = Ageing::one_point_per(Span::minutes(10));
        let policy = Policy { order: Some(QueueOrder::FairShare), ageing, ..policy };
        let work = with_priorities(work, 0, 10);
        play(&History { policy, nodes, queues: without_guarantees(queues), steps: Vec::new() }, &work, &kinds)?;
    }

    /// Strict order starves priorities below an endless stream, as in kube-scheduler.
    #[test]
    fn without_ageing_every_fitting_workload_starts_despite_a_stream_of_its_priority_or_a_lower_one(
        nodes in cluster::nodes(3),
        queues in prop::collection::vec(cluster::queue(), 0..3),
        policy in cluster::policy(),
        work in prop::collection::vec(plain(workload()), 1..6),
        kinds in prop::collection::vec(any::<u8>(), 1..6),
    ) {
        let policy = Policy { order: Some(QueueOrder::FairShare), ageing: Ageing::OFF, ..policy };
        let work = with_priorities(work, STREAM.0, 10);
        play(&History { policy, nodes, queues: without_guarantees(queues), steps: Vec::new() }, &work, &kinds)?;
    }

    #[test]
    fn every_workload_within_quota_starts_despite_a_stream_in_its_queue(
        limit in 2..5_u32, size in 1..5_u32, more in 0..5_u32, kinds in prop::collection::vec(0..1_u8, 4..8),
    ) {
        let node = |name: &str| {
            let node = Node { cpu: MilliCpu(64_000), ..Node::new(name) };
            Node { gpus: cluster::other_gpus(&node), ..node }
        };
        let nodes = ["n0", "n1", "n2"].map(node).to_vec();
        let quota = Quota { gpu: Some(u64::from(limit) * 1000), ..Quota::default() };
        let queue = Queue { limit: quota, ..Queue::new("q0") };
        let sized = |gpus: u32| {
            let request = Request { gpu: GpuRequest::Whole(gpus), ..Request::default() };
            Workload { queue: "q0".into(), may_preempt: false, ..Workload::new("w", request) }
        };
        let work: Vec<Workload> = [size, more].into_iter().filter(|size| *size > 0).map(sized).collect();
        let history = History { policy: Policy::default(), nodes, queues: vec![queue], steps: Vec::new() };
        play(&history, &work, &kinds)?;
    }
}

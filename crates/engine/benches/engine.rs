//! Cost of a decision by strategy and cluster size (criterion).
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a bench measures time")]

mod load;

use agentaflow_engine::{Event, Scheduler, Strategy, Time, WorkloadId};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use load::{MIXED, cluster, workloads};

/// Workloads per batch.
const BATCH: usize = 100;

/// A cluster about half full, and a batch of workloads.
fn half_full(nodes: usize, strategy: Strategy) -> Scheduler {
    let mut scheduler = cluster(nodes, strategy);
    for workload in workloads(nodes * 8 / 4, MIXED, 1) {
        scheduler.apply(Time(0), Event::Submitted(Box::new(workload))).expect("valid");
    }
    scheduler.decide(Time(0));
    scheduler
}

/// Submits, places and finishes a batch repeatedly on the same cluster.
fn decisions(criterion: &mut Criterion) {
    for strategy in Strategy::ALL.iter().copied() {
        let mut group = criterion.benchmark_group(format!("decide/{strategy}"));
        group.throughput(Throughput::Elements(BATCH as u64)).sample_size(20);
        for nodes in [125, 1250, 12_500] {
            let mut scheduler = half_full(nodes, strategy);
            let mut round = 2;
            let mut next = || {
                round += 1;
                workloads(BATCH, MIXED, round)
            };
            group.bench_function(BenchmarkId::from_parameter(nodes * 8), |bencher| {
                bencher.iter_batched(
                    &mut next,
                    |batch| {
                        let ids: Vec<WorkloadId> = batch.iter().map(|w| w.id.clone()).collect();
                        for workload in batch {
                            scheduler
                                .apply(Time(1), Event::Submitted(Box::new(workload)))
                                .expect("valid");
                        }
                        let plan = scheduler.decide(Time(1));
                        for id in ids {
                            scheduler.apply(Time(1), Event::Finished(id)).expect("it exists");
                        }
                        plan
                    },
                    BatchSize::SmallInput,
                );
            });
        }
        group.finish();
    }
}

/// Questions that change nothing.
fn questions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ask");
    group.sample_size(10);
    for nodes in [125, 1250] {
        let scheduler = half_full(nodes, Strategy::LeastUtilized);
        let workload = workloads(1, MIXED, 99).remove(0);
        group.bench_function(BenchmarkId::new("what_if", nodes * 8), |bencher| {
            bencher.iter(|| scheduler.what_if(Time(1), workload.clone()));
        });
        group.bench_function(BenchmarkId::new("snapshot", nodes * 8), |bencher| {
            bencher.iter(|| scheduler.snapshot());
        });
    }
    group.finish();
}

criterion_group!(benches, decisions, questions);
criterion_main!(benches);

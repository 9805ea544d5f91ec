//! Values of the server's metrics, and the duration of a scrape.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_api::node::{GpuInstance, GpuStatus, Heartbeat};
use agentaflow_metrics::{Access, Endpoint, Exposition, Format, MetricSource};
use agentaflow_server::core::{Core, NodeRef};

use crate::rig::{Rig, Worker, ended, running, spec};

/// Value of a series, or zero.
fn value(core: &Core, series: &str) -> f64 {
    let mut text = Exposition::default();
    MetricSource::write(core, &mut text);
    let text = text.into_text();
    let mut values = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    values.next().map_or(0.0, |value| value.parse().expect("a number"))
}

/// Waits until a series has this value.
#[track_caller]
fn has<'a>(core: &'a Core, series: &'a str, expected: f64) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..500 {
            if (value(core, series) - expected).abs() < 1e-9 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{caller}: {series} is {} and not {expected}", value(core, series));
    }
}

/// Sends the readings of all GPUs of a worker.
fn readings(core: &Core, worker: &Worker, name: &str, gpus: u32, status: GpuStatus) {
    let gpu = |index: u32| GpuInstance {
        gpu_index: Some(index),
        gpu_uuid: Some(format!("GPU-{name}-{index}")),
        gpu_memory: Some(40_960),
        gpu_memory_available: Some(40_960),
        utilization: Some(50.0),
        temperature: Some(40.0),
        power_usage: Some(300.0),
        status: Some(status),
        ..GpuInstance::default()
    };
    let instances = Some((0..gpus).map(gpu).collect());
    let beat = Heartbeat { gpu_instances: instances, ..Heartbeat::default() };
    core.heartbeat(&NodeRef::Number(worker.node), beat).unwrap();
}

#[tokio::test]
async fn allocation_fragmentation_and_cost_have_the_values_of_the_placed_jobs() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 4).await;
    has(&rig.core, "agentaflow_gpus_largest_block", 4.0).await;
    let share =
        agentaflow_api::job::JobSpec { gpu_count: None, gpu_fraction: Some(0.25), ..spec(1) };
    rig.submit(share).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    for (series, expected) in [
        ("agentaflow_gpus_allocated", 0.25),
        ("agentaflow_gpus_fragmented", 0.75),
        ("agentaflow_gpus_largest_block", 3.0),
        // A GPU costs $3.60 an hour.
        ("agentaflow_running_cost_dollars_per_hour", 0.9),
    ] {
        has(&rig.core, series, expected).await;
    }
    worker.report(key, ended(0, 1_000)).await;
    has(&rig.core, "agentaflow_billed_dollars_total", 0.000_25).await;
    has(&rig.core, "agentaflow_gpus_allocated", 0.0).await;
    has(&rig.core, "agentaflow_running_cost_dollars_per_hour", 0.0).await;
}

#[tokio::test]
async fn the_error_of_an_eta_and_each_decision_are_counted() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let long = agentaflow_api::job::JobSpec { estimated_duration_seconds: Some(600), ..spec(1) };
    rig.submit(long).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    let waits = rig.submit(spec(1)).await;
    has(&rig.core, "agentaflow_decisions_total{outcome=\"pending\",reason=\"NoRoom\"}", 1.0).await;
    let explained = rig.explain(waits).await;
    assert!(explained.eta.is_some(), "{explained:?}");
    has(&rig.core, "agentaflow_eta_error_seconds_count", 0.0).await;
    worker.report(key, ended(0, 100)).await;
    worker.assignment().await;
    has(&rig.core, "agentaflow_eta_error_seconds_count", 1.0).await;
    // The job ended ten minutes early.
    let error = value(&rig.core, "agentaflow_eta_error_seconds_sum");
    assert!((560.0..=600.0).contains(&error), "{error}");
    has(&rig.core, "agentaflow_decisions_total{outcome=\"placed\",reason=\"\"}", 2.0).await;
    has(&rig.core, "agentaflow_queue_wait_seconds_count", 2.0).await;
}

#[tokio::test]
async fn gpu_time_is_allocated_time_and_the_part_with_a_running_kernel() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 4).await;
    rig.submit(spec(2)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    let began = Instant::now();
    // Two of the four GPUs are allocated; the other two have the same readings and do not count.
    readings(&rig.core, &worker, "a", 4, GpuStatus::Busy);
    worker
        .beating(async {
            while value(&rig.core, "agentaflow_gpu_allocated_seconds_total") < 5.0 {
                assert!(began.elapsed() < Duration::from_secs(30), "no GPU time");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    let (allocated, used) = (
        value(&rig.core, "agentaflow_gpu_allocated_seconds_total"),
        value(&rig.core, "agentaflow_gpu_used_seconds_total"),
    );
    let most = 2.0 * began.elapsed().as_secs_f64() + 0.5;
    assert!(allocated <= most, "{allocated} GPU seconds, at most {most}");
    assert!((2.0 * used - allocated).abs() < 0.1, "half-busy GPUs: {used} of {allocated}");
}

#[tokio::test]
async fn a_scrape_of_1000_gpus_takes_less_than_50_ms() {
    let rig = Rig::new().await;
    let mut workers = Vec::new();
    for number in 0..125 {
        let name = format!("n{number}");
        workers.push((rig.worker(&name, 8).await, name));
    }
    // The first nodes are silent by now; heartbeats bring them back.
    let began = Instant::now();
    while value(&rig.core, "agentaflow_gpu_total") < 1_000.0 {
        assert!(began.elapsed() < Duration::from_secs(30), "not all nodes report");
        for (worker, name) in &workers {
            readings(&rig.core, worker, name, 8, GpuStatus::Available);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let source = Arc::new(rig.core.clone());
    let endpoint = Endpoint { access: Access::Open, sources: vec![source] };
    let scrape = || {
        let began = Instant::now();
        let text = endpoint.text(Format::Text);
        assert!(text.contains("agentaflow_gpu_total 1000\n"), "{text}");
        began.elapsed()
    };
    let fastest = (0..30).map(|_| scrape()).min().unwrap();
    println!("a scrape of 1,000 GPUs took {fastest:?}");
    assert!(fastest < Duration::from_millis(50), "{fastest:?}");
}

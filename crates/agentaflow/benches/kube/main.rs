//! Binding rate of the scheduler on a control plane, compared with kube-scheduler and with plain binding calls in the same
//! run: `cargo xtask bench-kube`.
//!
//! There are no limits: figures depend on the machine, and only ratios within one run are meaningful.
//! `AGENTAFLOW_BENCH_PART=conditions` measures conditions only.

mod cluster;
mod contenders;
#[path = "../../../../tests/ports.rs"]
mod ports;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cluster::Cluster;
use contenders::{Contender, Scheduler};

/// Pods that every contender binds.
const PODS: usize = 5_000;
/// Pods for kube-scheduler as it is configured by default, which is held back to 50 calls a second.
const THROTTLED: usize = 1_000;
/// Pods that wait when the time to a reason or to a condition is measured.
const WAITING: usize = 10_000;

fn main() -> ExitCode {
    let Some(kubeconfig) = std::env::var_os("AGENTAFLOW_BENCH_KUBE") else {
        println!("`cargo xtask bench-kube` measures the scheduler on Kubernetes");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    runtime.block_on(async {
        let cluster = Cluster::connect(kubeconfig.as_ref()).await;
        let (nodes, gpus) = cluster.size().await;
        println!(
            "{nodes} nodes, {gpus} GPUs, {PODS} pods of one GPU\n\n| what | result |\n|---|---|"
        );
        let only_conditions = std::env::var("AGENTAFLOW_BENCH_PART").as_deref() == Ok("conditions");
        if !only_conditions {
            binding(&cluster).await;
            waiting(&cluster).await;
        }
        conditions(&cluster).await;
    });
    ExitCode::SUCCESS
}

/// Pods per second of each contender on the same nodes. Plain calls before and after agentaflow measure the limit of
/// the API server, which drifts.
async fn binding(cluster: &Cluster) {
    let before = plain(cluster).await;
    let (ours, memory) = contender(cluster, Contender::Ours, PODS).await;
    let after = plain(cluster).await;
    let ceiling = f64::midpoint(before, after);
    println!("| binding calls with no thinking, before and after | {before:.0}/s, {after:.0}/s |");
    println!("| agentaflow | {ours:.0}/s, {:.0} % of plain calls |", 100.0 * ours / ceiling);
    println!("| its resident memory at most | {memory} MiB |");
    for (other, pods) in
        [(Contender::KubeScheduler, PODS), (Contender::KubeSchedulerAsIs, THROTTLED)]
    {
        let (rate, memory) = contender(cluster, other, pods).await;
        println!("| {other} | {rate:.0}/s, {:.0} % of plain calls |", 100.0 * rate / ceiling);
        println!("| its resident memory at most | {memory} MiB |");
        println!("| agentaflow is faster | {:.1} times |", ours / rate);
    }
}

async fn plain(cluster: &Cluster) -> f64 {
    let name = "bench-plain";
    cluster.create_pods(name, PODS, 1).await;
    // A watch counts bindings, as for the other contenders.
    let (took, ()) = tokio::join!(cluster.bound(name, PODS), cluster.bind_plainly(name));
    cluster.delete_pods(name).await;
    rate(PODS, took)
}

/// Pods a second, and the memory that the scheduler had at most in MiB.
async fn contender(cluster: &Cluster, contender: Contender, pods: usize) -> (f64, u64) {
    let name = contender.scheduler_name();
    cluster.create_pods(name, pods, 1).await;
    let mut scheduler = Scheduler::start(contender, cluster);
    let bound = cluster.bound(name, pods).await;
    let memory = scheduler.peak_memory();
    scheduler.end();
    cluster.delete_pods(name).await;
    (rate(pods, bound), memory)
}

/// The time until the reason of a pod is known while very many wait.
async fn waiting(cluster: &Cluster) {
    let name = Contender::Ours.scheduler_name();
    // More GPUs than any node has: they wait for ever.
    cluster.create_pods(name, WAITING, 64).await;
    let mut scheduler = Scheduler::start(Contender::Ours, cluster);
    let began = Instant::now();
    scheduler.wait_for_reasons(WAITING, Duration::from_mins(2)).await;
    println!(
        "| start to a reason for each of {WAITING} waiting pods, listing included | {:.2} s |",
        began.elapsed().as_secs_f64()
    );
    let began = Instant::now();
    cluster.create_pod(name, "late", 64).await;
    scheduler.wait_for_explanation("late").await;
    println!(
        "| a new pod's reason in /explain, {WAITING} waiting | {} ms |",
        began.elapsed().as_millis()
    );
    scheduler.wait_for_reasons(WAITING + 1, Duration::from_secs(10)).await;
    println!("| and in /metrics | {} ms |", began.elapsed().as_millis());
    println!(
        "| resident memory with {WAITING} waiting, at most | {} MiB |",
        scheduler.peak_memory()
    );
    scheduler.end();
    cluster.delete_pods(name).await;
}

/// The conditions of very many pending pods, for each contender.
async fn conditions(cluster: &Cluster) {
    for contender in
        [Contender::Ours, Contender::KubeScheduler, Contender::KubeSchedulerAsIs, Contender::Ours]
    {
        let name = contender.scheduler_name();
        cluster.create_pods(name, WAITING, 64).await;
        let mut scheduler = Scheduler::start(contender, cluster);
        let (at, limit) = (Duration::from_secs(20), Duration::from_mins(2));
        let (early, all) = cluster.conditions(name, WAITING, at, limit).await;
        let all = all.map_or_else(
            || format!("not all in {} s", limit.as_secs()),
            |all| format!("all in {:.1} s", all.as_secs_f64()),
        );
        println!(
            "| {contender}: pods with a condition 20 s after its start, {WAITING} pending | {early}, {all} |"
        );
        scheduler.end();
        cluster.delete_pods(name).await;
    }
}

fn rate(pods: usize, took: Duration) -> f64 {
    pods as f64 / took.as_secs_f64()
}

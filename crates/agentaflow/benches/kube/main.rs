//! Binding rate of the scheduler on a control plane, compared with kube-scheduler and with plain binding calls in the same
//! run: `cargo xtask bench-kube`.
//!
//! There are no limits: figures depend on the machine, and only ratios within one run are meaningful.
//! `AGENTAFLOW_BENCH_PART` names one part: `binding`, `waiting`, `conditions` or `beside`. `AGENTAFLOW_BENCH_PODS` sets the
//! number of pods of a part that binds.

mod cluster;
mod contenders;
#[path = "../../../../tests/ports.rs"]
mod ports;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cluster::Cluster;
use contenders::{Contender, Scheduler};

/// Pods that every contender binds, unless the environment sets another number.
const PODS: usize = 5_000;
/// Pods for kube-scheduler as it is configured by default, which is held back to 50 calls a second.
const THROTTLED: usize = 1_000;
/// Pods that wait when the time to a reason or to a condition is measured.
const WAITING: usize = 10_000;
/// More GPUs than any node has: the pod stays pending.
const TOO_MANY: u32 = 64;
/// Longest wait for all conditions.
const LIMIT: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    let Some(kubeconfig) = std::env::var_os("AGENTAFLOW_BENCH_KUBE") else {
        println!("`cargo xtask bench-kube` measures the scheduler on Kubernetes");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    runtime.block_on(async {
        let cluster = Cluster::connect(kubeconfig.as_ref()).await;
        let (nodes, gpus) = cluster.size().await;
        let pods = pods();
        println!(
            "{nodes} nodes, {gpus} GPUs, {pods} pods of one GPU\n\n| what | result |\n|---|---|"
        );
        let part = std::env::var("AGENTAFLOW_BENCH_PART").ok();
        let runs = |name: &str| part.as_deref().is_none_or(|part| part == name);
        if runs("binding") {
            binding(&cluster, pods).await;
        }
        if runs("waiting") {
            waiting(&cluster).await;
        }
        if runs("conditions") {
            conditions(&cluster).await;
        }
        if runs("beside") {
            beside(&cluster, pods / 2).await;
        }
    });
    ExitCode::SUCCESS
}

fn pods() -> usize {
    let number = std::env::var("AGENTAFLOW_BENCH_PODS").ok();
    number.map_or(PODS, |number| number.parse().expect("a number of pods"))
}

/// Pods per second of each contender on the same nodes. Plain calls before and after agentaflow measure the limit of
/// the API server, which drifts.
async fn binding(cluster: &Cluster, count: usize) {
    let before = plain(cluster, count).await;
    let (ours, memory) = contender(cluster, Contender::Ours, count).await;
    let after = plain(cluster, count).await;
    let ceiling = f64::midpoint(before, after);
    println!("| binding calls with no thinking, before and after | {before:.0}/s, {after:.0}/s |");
    println!("| agentaflow | {ours:.0}/s, {:.0} % of plain calls |", 100.0 * ours / ceiling);
    println!("| its resident memory at most | {memory} MiB |");
    for (other, pods) in
        [(Contender::KubeScheduler, count), (Contender::KubeSchedulerAsIs, THROTTLED.min(count))]
    {
        let (rate, memory) = contender(cluster, other, pods).await;
        println!("| {other} | {rate:.0}/s, {:.0} % of plain calls |", 100.0 * rate / ceiling);
        println!("| its resident memory at most | {memory} MiB |");
        println!("| agentaflow is faster | {:.1} times |", ours / rate);
    }
}

async fn plain(cluster: &Cluster, count: usize) -> f64 {
    let name = "bench-plain";
    cluster.create_pods(name, count, |_| 1).await;
    // A watch counts bindings, as for the other contenders.
    let (took, ()) = tokio::join!(cluster.bound(name, count), cluster.bind_plainly(name));
    cluster.delete_pods(name).await;
    rate(count, took)
}

/// Pods a second, and the memory that the scheduler had at most in MiB.
async fn contender(cluster: &Cluster, contender: Contender, pods: usize) -> (f64, u64) {
    let name = contender.scheduler_name();
    cluster.create_pods(name, pods, |_| 1).await;
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
    cluster.create_pods(name, WAITING, |_| TOO_MANY).await;
    let mut scheduler = Scheduler::start(Contender::Ours, cluster);
    let began = Instant::now();
    scheduler.wait_for_reasons(WAITING, Duration::from_mins(2)).await;
    println!(
        "| start to a reason for each of {WAITING} waiting pods, listing included | {:.2} s |",
        began.elapsed().as_secs_f64()
    );
    let began = Instant::now();
    cluster.create_pod(name, "late", TOO_MANY).await;
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
        cluster.create_pods(name, WAITING, |_| TOO_MANY).await;
        let mut scheduler = Scheduler::start(contender, cluster);
        let at = tokio::time::sleep(Duration::from_secs(20));
        let (early, all) = cluster.conditions(name, WAITING, at, LIMIT).await;
        println!(
            "| {contender}: pods with a condition 20 s after its start, {WAITING} pending | {early}, {} |",
            time_of_all(all)
        );
        scheduler.end();
        cluster.delete_pods(name).await;
    }
}

/// Bindings and conditions at the same time: every second pod fits no node. The same number of pods is bound alone before.
async fn beside(cluster: &Cluster, half: usize) {
    let (alone, _) = contender(cluster, Contender::Ours, half).await;
    println!("| agentaflow: {half} bindings without other pods | {alone:.0}/s |");
    for (contender, count) in [
        (Contender::Ours, half),
        (Contender::KubeScheduler, half),
        (Contender::KubeSchedulerAsIs, half.min(THROTTLED / 2)),
        (Contender::Ours, half),
    ] {
        let name = contender.scheduler_name();
        let gpus = |number: usize| if number.is_multiple_of(2) { 1 } else { TOO_MANY };
        cluster.create_pods(name, 2 * count, gpus).await;
        let mut scheduler = Scheduler::start(contender, cluster);
        let (bound, all_bound) = tokio::sync::oneshot::channel();
        let binding = async {
            let took = cluster.bound(name, count).await;
            let _ = bound.send(());
            took
        };
        let at = async { drop(all_bound.await) };
        let (took, (early, all)) =
            tokio::join!(binding, cluster.conditions(name, count, at, LIMIT));
        println!(
            "| {contender}: {count} bindings beside {count} pods that do not fit; conditions at the last binding | \
             {:.0}/s; {early}, {} |",
            rate(count, took),
            time_of_all(all)
        );
        scheduler.end();
        cluster.delete_pods(name).await;
    }
}

fn time_of_all(all: Option<Duration>) -> String {
    all.map_or_else(
        || format!("not all in {} s", LIMIT.as_secs()),
        |all| format!("all in {:.1} s", all.as_secs_f64()),
    )
}

fn rate(pods: usize, took: Duration) -> f64 {
    pods as f64 / took.as_secs_f64()
}

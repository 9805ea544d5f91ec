//! Random priority classes: kube-scheduler and the engine choose the same pods for scarce room, and the engine preempts neither
//! more pods nor pods of a higher priority.

use std::time::Duration;

use agentaflow_kube_core::slim::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::dice::Dice;
use crate::judge::Sight;
use crate::number;
use crate::support::{NodePlan, OWNER, PodPlan, Share, wait_for};

/// Longer than the backoff of kube-scheduler after two attempts.
const AFTER_BACKOFF: Duration = Duration::from_secs(5);
/// Interval without a binding after which kube-scheduler has no more to bind.
const CALM: Duration = Duration::from_millis(1_500);

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_scheduler_and_the_engine_agree_on_the_order_of_priorities() {
    let mut dice = Dice(number("AGENTAFLOW_TEST_SEED").unwrap_or(1));
    for round in 0..rounds(2) {
        Scarcity::begin(&mut dice).await.check(&mut dice, round).await;
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_scheduler_preempts_no_fewer_and_no_lower_pods_than_the_engine() {
    let mut dice = Dice(number("AGENTAFLOW_TEST_SEED").unwrap_or(1));
    let share = Share::new().await;
    let classes = Classes::create(&share, &mut dice, "PreemptLowerPriority").await;
    let mut nodes = Vec::new();
    for index in 0..4 {
        let plan = NodePlan::gpus(4).amount("cpu", "8");
        nodes.push(share.node(&format!("n{index}"), &plan).await);
    }
    let mut preempted = 0;
    let rounds = rounds(12);
    for round in 0..rounds {
        preempted += preemption_round(&share, &classes, &nodes, &mut dice, round).await;
    }
    assert!(preempted >= rounds / 2, "only {preempted} preemptions in {rounds} rounds");
}

fn rounds(usual: u64) -> u64 {
    usual * if std::env::var_os("AGENTAFLOW_TEST_FULL").is_some() { 4 } else { 1 }
}

/// Priority classes with distinct random values, ascending.
struct Classes(Vec<String>);

impl Classes {
    async fn create(share: &Share, dice: &mut Dice, preemption: &str) -> Self {
        let mut values: Vec<i64> = vec![-1, 1, 99_999, 100_000, 1_000_000_000];
        while values.len() < 24 {
            let scale = dice.pick(&[10, 1_000, 200_000, 1_000_000_000]);
            let value = dice.below(2 * scale) as i64 - scale as i64;
            if value != 0 && !values.contains(&value) {
                values.push(value);
            }
        }
        values.sort_unstable();
        let mut names = Vec::new();
        for (index, value) in values.into_iter().enumerate() {
            let name = format!("{}-{index:02}", share.id);
            share
                .apply_object(json!({
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                    "preemptionPolicy": preemption,
                }))
                .await;
            names.push(name);
        }
        Self(names)
    }
}

fn plan(share: &Share, name: &str, class: Option<&str>, gpus: usize) -> PodPlan {
    let plan = PodPlan::new(name).gpus(gpus as u32).label(OWNER, &share.id).stop_after("10m");
    let plan = plan.spec("terminationGracePeriodSeconds", json!(600));
    match class {
        Some(class) => plan.spec("priorityClassName", json!(class)),
        None => plan,
    }
}

/// Pending pods on a node whose GPUs appear in two steps.
struct Scarcity {
    share: Share,
    node: String,
    total: usize,
}

impl Scarcity {
    async fn begin(dice: &mut Dice) -> Self {
        let share = Share::new().await;
        let classes = Classes::create(&share, dice, "Never").await;
        let node = share.node("n", &NodePlan::plain().amount("nvidia.com/gpu", "0")).await;
        let mut total = 0;
        for index in 0..20 {
            // Pods of one class have one size, so that only the class decides.
            let class = dice.below(classes.0.len() + 2).min(classes.0.len());
            let gpus = 1 + class % 3;
            total += gpus;
            let class = classes.0.get(class).map(String::as_str);
            share.create_pod(&plan(&share, &format!("p{index}"), class, gpus)).await;
        }
        Self { share, node, total }
    }

    async fn check(&self, dice: &mut Dice, round: u64) {
        wait_for("kube-scheduler tries every pod", async || {
            let pods = self.pods().await;
            let untried = pods.iter().filter(|pod| pod.status.conditions.is_none()).count();
            if untried == 0 { Ok(()) } else { Err(untried) }
        })
        .await;
        let mut gpus = 0;
        for step in 0..2 {
            tokio::time::sleep(AFTER_BACKOFF).await;
            let before = Sight::take(&self.share).await;
            gpus += dice.between(self.total / 6, self.total / 3);
            let amount = json!({"nvidia.com/gpu": gpus.to_string()});
            let status = json!({"status": {"capacity": amount, "allocatable": amount}});
            self.share.patch_node_status(&self.node, &status).await;
            let bound = self.bound_when_calm().await;
            let theirs = added(&before, &bound);
            let ours = before.with_gpus(&self.node, gpus).order();
            assert!(!ours.is_empty(), "round {round}, step {step}: nothing to compare");
            assert_eq!(ours, theirs, "round {round}, step {step}: {gpus} GPUs");
        }
    }

    async fn pods(&self) -> Vec<Pod> {
        let api: Api<Pod> = Api::namespaced(self.share.client(), &self.share.namespace);
        api.list(&ListParams::default()).await.expect("pods").items
    }

    async fn bound_when_calm(&self) -> Vec<Pod> {
        let mut known = 0;
        loop {
            tokio::time::sleep(CALM).await;
            let mut pods = self.pods().await;
            pods.retain(|pod| pod.spec.node_name.is_some());
            if pods.len() == known && known > 0 {
                return pods;
            }
            known = pods.len();
        }
    }
}

/// Priorities of the pods that were bound since, highest first.
fn added(before: &Sight, bound: &[Pod]) -> Vec<i32> {
    let mut new: Vec<i32> = bound
        .iter()
        .filter(|pod| !before.settled().any(|old| old.metadata.uid == pod.metadata.uid))
        .map(|pod| pod.spec.priority.unwrap_or(0))
        .collect();
    new.sort_unstable_by(|a, b| b.cmp(a));
    new
}

/// Fills the nodes, creates one pod more, and compares the victims; returns 1 after a preemption.
async fn preemption_round(
    share: &Share,
    classes: &Classes,
    nodes: &[String],
    dice: &mut Dice,
    round: u64,
) -> u64 {
    fill(share, classes, nodes, dice).await;
    let before = Sight::take(share).await;
    let class = dice.between(classes.0.len() / 3, classes.0.len() - 1);
    let preemptor = plan(share, "preemptor", Some(&classes.0[class]), dice.between(2, 4));
    share.create_pod(&preemptor.asks("cpu", &dice.between(1, 6).to_string())).await;
    let (preemptor, theirs) = wait_for("kube-scheduler answers", async || {
        answer(share).await.ok_or("no condition and no node")
    })
    .await;
    let ours = before.victims(&preemptor);
    let seen = format!("round {round}: ours {ours:?}, theirs {theirs:?}");
    assert_eq!(ours.is_empty(), theirs.is_empty(), "{seen}");
    assert!(ours.len() <= theirs.len() && ours.first() <= theirs.first(), "{seen}");
    clear(share).await;
    u64::from(!theirs.is_empty())
}

/// Running pods with distinct classes: pods of equal priority would be compared by their start times, which are equal.
async fn fill(share: &Share, classes: &Classes, nodes: &[String], dice: &mut Dice) {
    let mut left = classes.0.clone();
    for (index, node) in nodes.iter().enumerate() {
        let (mut gpus, mut cpus) = (4, 8);
        for number in 0..dice.between(2, 5) {
            let size = dice.between(0, 2).min(gpus);
            let cpu = dice.between(1, 3).min(cpus);
            if cpu == 0 {
                break;
            }
            gpus -= size;
            cpus -= cpu;
            let class = left.remove(dice.below(left.len()));
            let pod = plan(share, &format!("r{index}-{number}"), Some(&class), size);
            let pod = pod.asks("cpu", &cpu.to_string()).spec("nodeName", json!(node));
            share.create_pod(&pod).await;
        }
    }
    wait_for("the pods run", async || {
        let pods = share.pods("").await;
        let phase = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.as_ref()?.phase.clone();
        let waiting = pods.iter().filter(|pod| phase(pod).as_deref() != Some("Running")).count();
        if waiting == 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
}

/// The preemptor and the priorities of its victims, highest first; none before kube-scheduler decided.
async fn answer(share: &Share) -> Option<(Pod, Vec<i32>)> {
    let (preemptor, victims) = preemptor_and_victims(share).await?;
    let status = &preemptor.status;
    if status.nominated_node_name.as_deref().is_some_and(|node| !node.is_empty()) {
        // Nomination and deletions are separate writes.
        tokio::time::sleep(CALM).await;
        return preemptor_and_victims(share).await.filter(|(_, victims)| !victims.is_empty());
    }
    let tried = status.conditions.iter().flatten().any(|one| one.kind == "PodScheduled");
    let is_settled = preemptor.spec.node_name.is_some() || (tried && victims.is_empty());
    is_settled.then_some((preemptor, victims))
}

async fn preemptor_and_victims(share: &Share) -> Option<(Pod, Vec<i32>)> {
    let api: Api<Pod> = Api::namespaced(share.client(), &share.namespace);
    let mut pods = api.list(&ListParams::default()).await.expect("pods").items;
    let is_preemptor = |pod: &Pod| pod.metadata.name.as_deref() == Some("preemptor");
    let preemptor = pods.remove(pods.iter().position(is_preemptor)?);
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_some());
    let mut victims: Vec<i32> = pods.iter().map(|pod| pod.spec.priority.unwrap_or(0)).collect();
    victims.sort_unstable_by(|a, b| b.cmp(a));
    Some((preemptor, victims))
}

async fn clear(share: &Share) {
    let api: Api<Pod> = Api::namespaced(share.client(), &share.namespace);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    for pod in share.pods("").await {
        let _ = api.delete(pod.metadata.name.as_deref().unwrap_or_default(), &now).await;
    }
    wait_for("no pod is left", async || {
        let left = share.pods("").await.len();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

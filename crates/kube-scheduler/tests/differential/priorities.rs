//! Random priority classes: kube-scheduler and the engine choose the same pods for scarce room.

use std::time::Duration;

use agentaflow_kube_core::slim::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::dice::Dice;
use crate::judge::Sight;
use crate::seeds;
use crate::support::{NodePlan, OWNER, PodPlan, Share, wait_for};

/// Longer than the backoff of kube-scheduler after two attempts.
const AFTER_BACKOFF: Duration = Duration::from_secs(5);
/// Interval without a binding after which kube-scheduler has no more to bind.
pub(crate) const CALM: Duration = Duration::from_millis(1_500);

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_scheduler_and_the_engine_agree_on_the_order_of_priorities() {
    for seed in seeds() {
        let mut dice = Dice(seed);
        for round in 0..2 {
            Scarcity::begin(&mut dice)
                .await
                .check(&mut dice, &format!("seed {seed}, {round}"))
                .await;
        }
    }
}

/// Priority classes with distinct random values, ascending.
pub(crate) struct Classes(pub(crate) Vec<String>);

impl Classes {
    pub(crate) async fn create(share: &Share, dice: &mut Dice, preemption: &str) -> Self {
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

pub(crate) fn plan(share: &Share, name: &str, class: Option<&str>, gpus: usize) -> PodPlan {
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

    async fn check(&self, dice: &mut Dice, round: &str) {
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

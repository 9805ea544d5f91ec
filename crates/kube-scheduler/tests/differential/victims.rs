//! Random preemptions: the engine preempts neither more pods than kube-scheduler nor pods of a higher priority, and violates no
//! disruption budget.

use std::collections::BTreeMap;

use agentaflow_kube_core::slim::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::dice::Dice;
use crate::judge::{Sight, Victim};
use crate::priorities::{CALM, Classes, plan};
use crate::seeds;
use crate::support::{NodePlan, Share, wait_for};

/// Rounds of each seed.
const ROUNDS: usize = 20;

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_scheduler_preempts_no_fewer_and_no_lower_pods_than_the_engine() {
    for seed in seeds() {
        let mut dice = Dice(seed);
        let share = Share::new().await;
        let classes = Classes::create(&share, &mut dice, "PreemptLowerPriority").await;
        let mut nodes = Vec::new();
        for index in 0..4 {
            let plan = NodePlan::gpus(4).amount("cpu", "8");
            nodes.push(share.node(&format!("n{index}"), &plan).await);
        }
        let (mut preempted, mut protected) = (0, 0);
        for number in 0..ROUNDS {
            let round = Round { share: &share, classes: &classes, nodes: &nodes };
            let found = round.run(&mut dice, &format!("seed {seed}, round {number}")).await;
            preempted += usize::from(found.is_some());
            protected += usize::from(found == Some(true));
        }
        assert!(preempted >= ROUNDS / 2, "only {preempted} preemptions");
        assert!(protected >= ROUNDS / 10, "only {protected} preemptions beside budgets");
    }
}

struct Round<'a> {
    share: &'a Share,
    classes: &'a Classes,
    nodes: &'a [String],
}

impl Round<'_> {
    /// Fills the nodes, creates one pod more, and compares the victims. Returns none without a preemption, else true if budgets existed.
    async fn run(&self, dice: &mut Dice, round: &str) -> Option<bool> {
        let (share, classes) = (self.share, &self.classes.0);
        let labels = fill(share, self.classes, self.nodes, dice).await;
        let budgets = protect(share, &labels, dice).await;
        let before = Sight::take(share).await;
        let class = dice.between(classes.len() / 3, classes.len() - 1);
        let preemptor = plan(share, "preemptor", Some(&classes[class]), dice.between(2, 4));
        share.create_pod(&preemptor.asks("cpu", &dice.between(1, 6).to_string())).await;
        let (preemptor, theirs) = wait_for("kube-scheduler answers", async || {
            answer(share).await.ok_or("no condition and no node")
        })
        .await;
        let ours = before.victims(&preemptor);
        let seen = format!("{round}, budgets {budgets:?}: ours {ours:?}, theirs {theirs:?}");
        assert_eq!(before.violated_budgets(&ours), 0, "{seen}");
        // kube-scheduler violates a budget where it finds no other victims.
        if before.violated_budgets(&theirs) == 0 {
            assert_eq!(ours.is_empty(), theirs.is_empty(), "{seen}");
            let highest = |victims: &[Victim]| victims.first().map(|victim| victim.priority);
            assert!(ours.len() <= theirs.len() && highest(&ours) <= highest(&theirs), "{seen}");
        }
        clear(share, &budgets).await;
        (!theirs.is_empty()).then_some(!budgets.is_empty())
    }
}

/// Running pods; returns their number by label.
async fn fill(
    share: &Share,
    classes: &Classes,
    nodes: &[String],
    dice: &mut Dice,
) -> BTreeMap<String, usize> {
    // Distinct classes, or few of them: start times decide between pods of equal priority.
    let mut left = classes.0.clone();
    let few = dice.chance(50).then(|| dice.between(1, 3));
    let mut labels = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let (mut gpus, mut cpus) = (4, 8);
        for number in 0..dice.between(2, 5) {
            let size = dice.between(0, 2).min(gpus);
            let cpu = dice.between(1, 3).min(cpus);
            if cpu == 0 {
                break;
            }
            (gpus, cpus) = (gpus - size, cpus - cpu);
            let class = match few {
                Some(few) => left[dice.below(few)].clone(),
                None => left.remove(dice.below(left.len())),
            };
            let label = dice.pick(&["red", "blue", "green"]);
            *labels.entry(label.to_owned()).or_default() += 1;
            let pod = plan(share, &format!("r{index}-{number}"), Some(&class), size);
            let pod = pod.asks("cpu", &cpu.to_string()).spec("nodeName", json!(node));
            let pod = pod.label("team", label);
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
    labels
}

/// Protects the pods of some labels with a budget that allows none or one disruption; returns the names of the budgets.
async fn protect(share: &Share, labels: &BTreeMap<String, usize>, dice: &mut Dice) -> Vec<String> {
    let mut budgets = Vec::new();
    for (label, count) in labels {
        if !dice.chance(40) {
            continue;
        }
        let allowed = dice.below(2).min(*count);
        let name = format!("budget-{label}");
        share
            .apply_object(json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": {"name": name},
                "spec": {
                    "minAvailable": count - allowed,
                    "selector": {"matchLabels": {"team": label}},
                },
            }))
            .await;
        let path = budget_path(share, &name);
        wait_for("the budget counts its pods", async || {
            let status = share.request("GET", &path, None).await.json()["status"].take();
            let counted =
                status["currentHealthy"] == *count && status["disruptionsAllowed"] == allowed;
            counted.then_some(()).ok_or_else(|| status.to_string())
        })
        .await;
        budgets.push(name);
    }
    budgets
}

fn budget_path(share: &Share, name: &str) -> String {
    format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{name}", share.namespace)
}

/// The preemptor and its victims, highest priority first; none before kube-scheduler decided.
async fn answer(share: &Share) -> Option<(Pod, Vec<Victim>)> {
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

async fn preemptor_and_victims(share: &Share) -> Option<(Pod, Vec<Victim>)> {
    let api: Api<Pod> = Api::namespaced(share.client(), &share.namespace);
    let mut pods = api.list(&ListParams::default()).await.expect("pods").items;
    let is_preemptor = |pod: &Pod| pod.metadata.name.as_deref() == Some("preemptor");
    let preemptor = pods.remove(pods.iter().position(is_preemptor)?);
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_some());
    let mut victims: Vec<Victim> = pods.iter().map(Victim::of).collect();
    victims.sort_unstable_by(|a, b| b.cmp(a));
    Some((preemptor, victims))
}

async fn clear(share: &Share, budgets: &[String]) {
    for budget in budgets {
        share.request("DELETE", &budget_path(share, budget), None).await;
    }
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

//! Random pods on random nodes: kube-scheduler and the engine must agree on the feasibility of every pod.
//!
//! kube-scheduler places one pod at a time. Before each, the engine gets the same objects from the API server. For a pod that
//! kube-scheduler binds, the engine must accept the same node; for a pod that kube-scheduler calls unschedulable, the engine
//! must find no node. Placed pods stay, so that the cluster fills; some are deleted, and nodes change.
//! `AGENTAFLOW_TEST_SEED` and `AGENTAFLOW_TEST_PODS` choose other cases.
//!
//! Memory amounts are whole MiB, the engine's unit: requests are rounded up and capacities down, so that the engine is stricter
//! than kube-scheduler by at most one MiB for each pod.

mod dice;
mod judge;
mod nodes;
mod pods;
mod priorities;
mod storage;
#[path = "../support/mod.rs"]
mod support;
mod victims;
mod volumes;

use std::time::{Duration, Instant};

use agentaflow_kube_core::slim::Pod;
use dice::Dice;
use judge::{Sight, owner};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use nodes::Keys;
use pods::Field;
use serde_json::{Value, json};
use support::{SOON, Share};

const NODES: usize = 10;
/// Watch events of nodes and pods may overtake each other: a disagreement counts only if it lasts.
const TRIES: u32 = 3;

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_scheduler_and_the_engine_agree_on_feasibility() {
    let count = number("AGENTAFLOW_TEST_PODS").unwrap_or(160);
    for seed in seeds() {
        let mut hunt = Hunt::begin(Dice(seed)).await;
        for turn in 0..count {
            hunt.turn(turn).await;
        }
        let Tally { bound, unschedulable, gated, invalid } = hunt.tally;
        println!("bound {bound}, unschedulable {unschedulable}, gated {gated}, invalid {invalid}");
        let found = &hunt.disagreements;
        let all = found.join("\n");
        assert!(found.is_empty(), "seed {seed}: {} disagreements\n{all}", found.len());
        assert!(bound >= count / 4, "too few pods were placed to mean anything");
        assert!(unschedulable >= count / 10, "too few pods had no place to mean anything");
    }
}

/// `AGENTAFLOW_TEST_SEED`, else one seed, or several in the full tier.
fn seeds() -> Vec<u64> {
    let is_full = std::env::var_os("AGENTAFLOW_TEST_FULL").is_some();
    let all = if is_full { vec![1, 2, 3, 4, 5] } else { vec![1] };
    number("AGENTAFLOW_TEST_SEED").map_or(all, |seed| vec![seed])
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Result of kube-scheduler.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Bound(String),
    Unschedulable(String),
    Gated,
}

#[derive(Default)]
struct Tally {
    bound: u64,
    unschedulable: u64,
    gated: u64,
    invalid: u64,
}

struct Hunt {
    share: Share,
    dice: Dice,
    field: Field,
    tally: Tally,
    made: u64,
    disagreements: Vec<String>,
}

impl Hunt {
    async fn begin(mut dice: Dice) -> Self {
        let share = Share::new().await;
        let keys = Keys::of(&share);
        let mut names = Vec::new();
        for number in 0..NODES {
            let short = format!("n{number}");
            let plan = nodes::plan(&mut dice, &keys, &share.node_name(&short));
            let name = share.node(&short, &plan).await;
            if dice.chance(50) {
                share.patch_node_status(&name, &nodes::declaring(true)).await;
            }
            names.push(name);
        }
        let mut namespaces = vec![share.namespace.clone()];
        for (team, name) in [("red", "red"), ("blue", "blue")] {
            let name = format!("{}-{name}", share.namespace);
            share.create_namespace(&name, json!({"team": team})).await;
            namespaces.push(name);
        }
        let runtime_class = format!("{}-sandbox", share.id);
        share
            .apply_object(json!({
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": runtime_class},
                "handler": "sandbox",
                "overhead": {"podFixed": {"cpu": "250m", "memory": "128Mi"}},
                "scheduling": {"tolerations": [{"key": "spot", "operator": "Exists"}]},
            }))
            .await;
        volumes::create(&share, &keys, &names).await;
        let field = Field { keys, nodes: names, namespaces, runtime_class };
        let (tally, disagreements) = (Tally::default(), Vec::new());
        Self { share, dice, field, tally, made: 0, disagreements }
    }

    async fn turn(&mut self, turn: u64) {
        if turn % 20 == 19 {
            self.change_a_node().await;
        }
        let (namespace, mut pod) = pods::pod(&mut self.dice, &self.field);
        let (key, value) = owner(&self.share);
        pod["metadata"]["labels"][key] = value;
        let mut trouble = None;
        for _ in 0..TRIES {
            let Some((created, verdict)) = self.ask_kube_scheduler(&namespace, &mut pod).await
            else {
                self.tally.invalid += 1;
                return;
            };
            let sight = Sight::take(&self.share).await.without(&created);
            trouble = disagreement(&sight, &created, &verdict);
            if turn % 12 == 11 {
                self.thin_out(&sight).await;
            }
            let name = created.metadata.name.as_deref().unwrap_or_default();
            let settled = trouble.is_none();
            match &verdict {
                Verdict::Bound(_) if settled => self.tally.bound += 1,
                _ => self.remove(&namespace, name).await,
            }
            if settled {
                self.tally.unschedulable += u64::from(matches!(verdict, Verdict::Unschedulable(_)));
                self.tally.gated += u64::from(verdict == Verdict::Gated);
                return;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let trouble = trouble.unwrap_or_default();
        self.disagreements.push(format!("turn {turn}, pod {pod}\n{trouble}\n"));
    }

    async fn change_a_node(&mut self) {
        let name = self.dice.pick(&self.field.nodes);
        let (node, status) = nodes::change(&mut self.dice, &self.field.keys);
        if let Some(patch) = node {
            self.share.patch_node(&name, &patch).await;
        }
        if let Some(patch) = status {
            self.share.patch_node_status(&name, &patch).await;
        }
    }

    /// Deletes some pods: most at once, some with a long termination.
    async fn thin_out(&mut self, sight: &Sight) {
        for pod in sight.settled() {
            if !self.dice.chance(40) {
                continue;
            }
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            if self.dice.chance(15) {
                let api: Api<Pod> = Api::namespaced(self.share.client(), namespace);
                api.delete(name, &DeleteParams::default()).await.expect("a pod is stopped");
            } else {
                self.remove(namespace, name).await;
            }
        }
    }

    /// Returns when the pod is gone.
    async fn remove(&self, namespace: &str, name: &str) {
        let api: Api<Pod> = Api::namespaced(self.share.client(), namespace);
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        api.delete(name, &now).await.expect("a pod is deleted");
    }

    /// None if the API server rejects the pod.
    async fn ask_kube_scheduler(
        &mut self,
        namespace: &str,
        pod: &mut Value,
    ) -> Option<(Pod, Verdict)> {
        self.made += 1;
        let name = format!("p{}", self.made);
        pod["metadata"]["name"] = json!(name);
        // The pod uses its whole grace period.
        pod["metadata"]["annotations"]["kwok.agentaflow.io/stop-after"] = json!("10m");
        let full: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.share.client(), namespace);
        let object = serde_json::from_value(pod.clone()).expect("a pod");
        match full.create(&PostParams::default(), &object).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 422 => return None,
            Err(error) => panic!("{error}: {pod}"),
        }
        let api: Api<Pod> = Api::namespaced(self.share.client(), namespace);
        let began = Instant::now();
        loop {
            let pod = api.get(&name).await.expect("the pod");
            if let Some(verdict) = verdict(&pod) {
                return Some((pod, verdict));
            }
            assert!(began.elapsed() < SOON, "kube-scheduler says nothing about {pod:?}");
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    }
}

fn verdict(pod: &Pod) -> Option<Verdict> {
    if let Some(node) = &pod.spec.node_name {
        return Some(Verdict::Bound(node.clone()));
    }
    let conditions = pod.status.conditions.iter().flatten();
    let condition = conditions.into_iter().find(|condition| condition.kind == "PodScheduled")?;
    match condition.reason.as_deref()? {
        "Unschedulable" => {
            Some(Verdict::Unschedulable(condition.message.clone().unwrap_or_default()))
        }
        "SchedulingGated" => Some(Verdict::Gated),
        _ => None,
    }
}

/// Disagreement of engine and kube-scheduler.
fn disagreement(sight: &Sight, pod: &Pod, verdict: &Verdict) -> Option<String> {
    let mut waiting = pod.clone();
    waiting.spec.node_name = None;
    match verdict {
        Verdict::Bound(node) => {
            let anywhere = sight.place(&waiting, None);
            let there = sight.place(&waiting, Some(node));
            let agree = anywhere.is_ok() && there.as_ref() == Ok(node);
            (!agree).then(|| {
                format!(
                    "kube-scheduler: bound to {node}\nwe: anywhere {anywhere:?}, there {there:?}\nnode {:?}",
                    sight.node(node)
                )
            })
        }
        Verdict::Unschedulable(why) => sight.place(&waiting, None).ok().map(|node| {
            format!(
                "kube-scheduler: unschedulable, {why}\nwe: {node}\nnode {:?}",
                sight.node(&node)
            )
        }),
        Verdict::Gated => sight.place(&waiting, None).ok().map(|node| format!("gated; we: {node}")),
    }
}

//! Properties of random pod histories.

use agentaflow_kube_core::crd::WorkloadPhase;
use agentaflow_kube_core::names;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use serde_json::json;

use super::{Cluster, exit};
use crate::controller::task_pod::{TaskPod, TaskPodState};

/// An event; the number is an index of a pod.
#[derive(Clone, Debug)]
enum Happening {
    Bind(usize),
    Run(usize),
    Succeed(usize),
    Crash(usize),
    Lose(usize, usize),
    Stop(usize),
    Vanish(usize),
    /// Seconds pass.
    Pass(i64),
    /// The last status write is lost.
    Forget,
    Wait(bool),
    Reject(bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    let which = 0_usize..8;
    prop_oneof![
        3 => which.clone().prop_map(Happening::Bind),
        3 => which.clone().prop_map(Happening::Run),
        2 => which.clone().prop_map(Happening::Succeed),
        2 => which.clone().prop_map(Happening::Crash),
        2 => (which.clone(), 0_usize..4).prop_map(|(which, how)| Happening::Lose(which, how)),
        2 => which.clone().prop_map(Happening::Stop),
        2 => which.prop_map(Happening::Vanish),
        4 => (1_i64..700).prop_map(Happening::Pass),
        1 => Just(Happening::Forget),
        1 => any::<bool>().prop_map(Happening::Wait),
        1 => any::<bool>().prop_map(Happening::Reject),
    ]
}

fn happen(cluster: &mut Cluster, what: &Happening) {
    let lost = [
        json!({ "reason": "Evicted", "message": "The node was low on resource: memory." }),
        json!({ "reason": "UnexpectedAdmissionError" }),
        json!({ "reason": "NodeLost", "containerStatuses": exit(137)["containerStatuses"] }),
        json!({ "conditions": [{ "type": "DisruptionTarget", "status": "True" }] }),
    ];
    let name = |which: &usize| cluster.names().get(*which).cloned();
    let open = |name: &String| {
        cluster.pods.iter().any(|pod| {
            pod.metadata.name.as_ref() == Some(name)
                && !matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
        })
    };
    match what {
        Happening::Bind(which) => {
            if let Some(name) = name(which) {
                cluster.pod(&name).spec.node_name.get_or_insert_with(|| "node-a".to_owned());
            }
        }
        Happening::Run(which) => {
            if let Some(name) = name(which).filter(open) {
                cluster.run(&name);
            }
        }
        Happening::Succeed(which) => {
            if let Some(name) = name(which).filter(open) {
                cluster.succeed(&name);
            }
        }
        Happening::Crash(which) => {
            if let Some(name) = name(which).filter(open) {
                cluster.crash(&name);
            }
        }
        Happening::Lose(which, how) => {
            if let Some(name) = name(which).filter(open) {
                cluster.fail(&name, lost[*how].clone());
            }
        }
        Happening::Stop(which) => {
            if let Some(name) = name(which) {
                cluster.stop(&name);
            }
        }
        Happening::Vanish(which) => {
            if let Some(name) = name(which) {
                cluster.vanish(&name);
            }
        }
        Happening::Pass(seconds) => cluster.pass(*seconds),
        Happening::Forget => {}
        Happening::Wait(true) => cluster.waits("NoRoom", "There is no room."),
        Happening::Wait(false) => cluster.view.reason = None,
        Happening::Reject(on) => cluster.view.rejected = on.then(|| "no".to_owned()),
    }
}

fn terminal(cluster: &Cluster) -> bool {
    matches!(cluster.phase(), Some(WorkloadPhase::Succeeded | WorkloadPhase::Failed))
}

/// Pods that may still run, by task.
fn live(cluster: &Cluster) -> BTreeMap<u32, usize> {
    let mut all = BTreeMap::new();
    for pod in &cluster.pods {
        let member = TaskPod::read(pod, cluster.now).expect("a pod of ours");
        if matches!(member.state, TaskPodState::Live | TaskPodState::Ending(_)) {
            *all.entry(member.task).or_default() += 1;
        }
    }
    all
}

/// Number of failed pods.
fn broken(cluster: &Cluster) -> u32 {
    let read = |pod| TaskPod::read(pod, cluster.now).expect("a pod of ours");
    cluster.pods.iter().filter(|pod| read(pod).state == TaskPodState::Failed).count() as u32
}

/// Deterministic cases, unless a seed is given.
fn config() -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(42);
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_task_runs_twice_and_no_lost_pod_costs_a_retry(
        size in 1_u32..4,
        retries in 0_u32..3,
        story in prop::collection::vec(happening(), 1..60),
    ) {
        let mut cluster = Cluster::new(json!({ "gangSize": size, "retries": retries }));
        cluster.settle();
        let mut crashes = 0;
        for what in &story {
            let old_failures = broken(&cluster);
            happen(&mut cluster, what);
            crashes += broken(&cluster).saturating_sub(old_failures);
            let before = cluster.clone();
            cluster.settle();
            let (old, new) = (&before.workload.status, &cluster.workload.status);
            if terminal(&before) {
                prop_assert_eq!(old, new, "what is finished stays as it is");
            }
            for (task, count) in live(&cluster) {
                let had = live(&before).get(&task).copied().unwrap_or(0);
                prop_assert!(count <= 1 || count <= had, "task {} has {} pods after {:?}", task, count, what);
            }
            prop_assert!(new.retries <= retries);
            prop_assert!(new.retries <= old.retries + 1);
            let needed = new.retries + u32::from(new.phase == Some(WorkloadPhase::Failed));
            prop_assert!(needed <= crashes, "only a crash costs a retry or fails a workload: {:?}", what);
            if terminal(&cluster) {
                prop_assert!(cluster.pods.iter().all(|pod| {
                    pod.metadata.deletion_timestamp.is_some()
                        || matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
                }), "what is finished holds nothing");
            }
            if matches!(what, Happening::Forget) && !terminal(&before) {
                cluster.workload.status = before.workload.status;
            }
            let kept = cluster.pods.iter().filter(|pod| {
                pod.status.phase.as_deref() == Some("Failed") && pod.metadata.deletion_timestamp.is_none()
            });
            prop_assert!(kept.count() <= 2 * size as usize, "old failures are removed");
        }
    }

    #[test]
    fn a_workload_whose_pods_succeed_in_the_end_succeeds(
        size in 1_u32..4,
        story in prop::collection::vec(happening(), 0..30),
    ) {
        let mut cluster = Cluster::new(json!({ "gangSize": size, "retries": 1_000 }));
        cluster.settle();
        for what in &story {
            happen(&mut cluster, what);
            cluster.settle();
        }
        cluster.view.rejected = None;
        for _ in 0..20 {
            cluster.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
            cluster.pass(400);
            cluster.settle();
            for name in cluster.names() {
                if cluster.pod(&name).status.phase.as_deref() != Some("Failed") {
                    cluster.succeed(&name);
                }
            }
        }
        cluster.settle();
        prop_assert_eq!(cluster.phase(), Some(WorkloadPhase::Succeeded));
        let marked = cluster.pods.iter().all(|pod| {
            pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::POD_RETRIES))
        });
        prop_assert!(marked, "every pod says which round it belongs to");
    }
}

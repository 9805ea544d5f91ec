//! Both schedulers on the same nodes, while the scheduler under test is killed and loses the API server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentaflow_kube_core::crd::GpuWorkload;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};

use crate::bursts::{Chance, is_over, workload};
use crate::kube_outage::behind_cable;
use crate::ledger::Ledger;
use crate::support::{NodePlan, PodPlan, Proxy, Scheduler, Share, state, wait_within};

/// Maximum number of pending pods.
const CROWD: usize = 24;

struct Extent {
    kills: usize,
    outages: usize,
}

/// `cargo xtask test --full` sets the variable.
fn extent() -> Extent {
    if std::env::var_os("AGENTAFLOW_TEST_FULL").is_some() {
        Extent { kills: 40, outages: 6 }
    } else {
        Extent { kills: 6, outages: 2 }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn kills_and_outages_beside_kube_scheduler_overcommit_no_gpu_and_split_no_gang() {
    let share = Share::new().await;
    share.nodes(4, &NodePlan::gpus(4)).await;
    // kube-scheduler may take a GPU in the same moment: the kubelet then rejects the later pod.
    let ledger = Ledger::with_kubelets(&share).await;
    let (mut scheduler, cable) = behind_cable(&share).await;
    let mut traffic = Traffic::new(&share);
    let over = AtomicBool::new(false);
    let strikes = async {
        strike(&mut scheduler, &cable, &ledger).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(strikes, traffic.flow(&ledger, &over));
    traffic.ends().await;
    ledger.check();
    scheduler.counts("agentaflow_gpu_available", 16.0).await;
    scheduler.counts("agentaflow_workloads_pending", 0.0).await;
    eprintln!(
        "{} pods, {} gangs; {} rejected by kubelets; at most {} GPUs in use",
        traffic.pods.len(),
        traffic.gangs.len(),
        ledger.refused(),
        ledger.most()
    );
    assert!(ledger.most() > 10, "so few GPUs in use at once are no test: {}", ledger.most());
}

/// Kills with random pauses, and outages in between. Every second outage is longer than the lease.
async fn strike(scheduler: &mut Scheduler, cable: &Proxy, ledger: &Ledger) {
    let Extent { kills, outages } = extent();
    let mut chance = Chance::new(3);
    for outage in 0..outages {
        for _ in 0..kills / outages {
            tokio::time::sleep(Duration::from_millis(300 + chance.below(700))).await;
            scheduler.program.restart();
        }
        scheduler.leads().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        cable.unplug();
        if outage % 2 == 0 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        } else {
            // Without its lease the program ends; its container starts again.
            let ended = scheduler.program.ended().await;
            assert!(!ended.success(), "{ended}");
            scheduler.program.restart();
        }
        ledger.end_outage();
        cable.plug();
        scheduler.leads().await;
    }
}

/// Random load: half of the pods are for kube-scheduler.
struct Traffic<'a> {
    share: &'a Share,
    chance: Chance,
    count: u32,
    pods: BTreeSet<String>,
    gangs: BTreeSet<String>,
    deleted: BTreeSet<String>,
}

impl<'a> Traffic<'a> {
    fn new(share: &'a Share) -> Self {
        let (pods, gangs, deleted) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { share, chance: Chance::new(11), count: 0, pods, gangs, deleted }
    }

    async fn flow(&mut self, ledger: &Ledger, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if ledger.waiting() < CROWD {
                self.happen().await;
            }
            let pause = 20 + self.chance.below(80);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn happen(&mut self) {
        self.count += 1;
        let name = format!("w{}", self.count);
        let runs = PodPlan::new(&name)
            .start_after("300ms")
            .complete_after(&format!("{}ms", 300 + self.chance.below(1500)));
        let gpus = 1 + self.chance.below(2) as u32;
        match self.chance.below(20) {
            0..9 => {
                self.share.create_pod(&runs.gpus(gpus)).await;
                self.pods.insert(name);
            }
            9..13 => {
                let plan = runs.gpus(gpus).scheduler(&self.share.scheduler_name());
                self.share.create_pod(&plan).await;
                self.pods.insert(name);
            }
            13..18 => {
                let size = 2 + self.chance.below(4) as u32;
                self.share.create_workload(workload(self.share, &name, size, gpus, &runs)).await;
                self.gangs.insert(name);
            }
            _ => self.delete_one().await,
        }
    }

    /// Deletes one of the newest pods or gangs, which is probably still pending.
    async fn delete_one(&mut self) {
        let from = if self.chance.below(2) == 0 { &mut self.pods } else { &mut self.gangs };
        let newest: Vec<String> = from.iter().rev().take(8).cloned().collect();
        if newest.is_empty() {
            return;
        }
        let name = newest[self.chance.below(newest.len() as u64) as usize].clone();
        if self.pods.remove(&name) {
            self.share.delete_pod(&name).await;
        } else if self.gangs.remove(&name) {
            let workloads = self.share.api::<GpuWorkload>();
            let deleted = workloads.delete(&name, &DeleteParams::default()).await;
            deleted.expect("the workload is deleted");
        }
        self.deleted.insert(name);
    }

    /// Waits until every pod has ended, every gang has succeeded, and the deleted ones are gone.
    async fn ends(&self) {
        wait_within(Duration::from_secs(90), "all work ended", async || {
            let open = self.open().await;
            if open.is_empty() { Ok(()) } else { Err(open.join("\n")) }
        })
        .await;
    }

    async fn open(&self) -> Vec<String> {
        let pods = self.share.pods("").await;
        let find = |name: &str| pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
        let mut open = Vec::new();
        for name in &self.pods {
            match find(name) {
                None => open.push(format!("pod {name} is lost")),
                Some(pod) if !is_over(pod) || failed_by_itself(pod) => open.push(state(pod)),
                Some(_) => {}
            }
        }
        for name in &self.deleted {
            open.extend(find(name).map(|pod| format!("deleted, yet there: {}", state(pod))));
        }
        let all = self.share.api::<GpuWorkload>().list(&ListParams::default()).await;
        let all = all.expect("workloads").items;
        let named = |name: &String| all.iter().any(|one| one.metadata.name.as_ref() == Some(name));
        let lost = self.gangs.iter().filter(|name| !named(name));
        open.extend(lost.map(|name| format!("workload {name} is lost")));
        for found in all {
            let name = found.metadata.name.unwrap_or_default();
            let status = found.status.unwrap_or_default();
            let phase = status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
            if self.deleted.contains(&name) || phase != "Succeeded" || status.retries != 0 {
                let (retries, message) = (status.retries, status.message);
                open.push(format!("workload {name} {phase}, {retries} retries: {message:?}"));
            }
        }
        open
    }
}

/// A pod without a controller stays rejected; every other failure is a fault.
fn failed_by_itself(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let text = |text: Option<&String>| text.map(String::as_str).unwrap_or_default().to_owned();
    text(status.and_then(|status| status.phase.as_ref())) == "Failed"
        && text(status.and_then(|status| status.reason.as_ref())) != "OutOfnvidia.com/gpu"
}

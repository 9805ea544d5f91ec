//! Repeated kills of the scheduler.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentaflow_kube_core::crd::GpuWorkload;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::PROGRAM;
use crate::bursts::{Chance, is_over, workload};
use crate::ledger::Ledger;
use crate::support::{NodePlan, PodPlan, Scheduler, Share, state, wait_within};

/// Kills of the scheduler; `cargo xtask test --full` sets the variable.
fn kills() -> usize {
    if std::env::var_os("AGENTAFLOW_TEST_FULL").is_some() { 50 } else { 10 }
}

/// Maximum number of pending pods.
const CROWD: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_repeatedly_killed_scheduler_places_every_pod_once() {
    let share = Share::new().await;
    share.nodes(4, &NodePlan::gpus(4)).await;
    let ledger = Ledger::open(&share).await;
    // A restarted container keeps its pod name, and thus its lease.
    let mut scheduler = Scheduler::start(PROGRAM, &share, &["--identity", "one"]).await;
    let mut traffic = Traffic::new(&share);
    traffic.settle_in().await;
    let over = AtomicBool::new(false);
    let kills = async {
        let mut chance = Chance::new(1);
        for kill in 0..kills() {
            // Every second run is measured from its first decision.
            if kill % 2 == 1 {
                scheduler.crash_and_restart().await;
            } else {
                scheduler.program.restart();
            }
            tokio::time::sleep(Duration::from_millis(chance.below(400))).await;
        }
        scheduler.program.restart();
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(kills, traffic.flow(&ledger, &over));
    traffic.ends().await;
    ledger.check();
    // Four pods and a gang of two remain; all other GPUs are free.
    scheduler.counts("agentaflow_gpu_available", 10.0).await;
    scheduler.counts("agentaflow_workloads_pending", 0.0).await;
    eprintln!(
        "{} pods, {} workloads, {} jobs; at most {} GPUs in use",
        traffic.pods.len(),
        traffic.workloads.len(),
        traffic.jobs.len(),
        ledger.most()
    );
    assert!(ledger.most() > 12, "so few GPUs in use at once are no test: {}", ledger.most());
}

struct Traffic<'a> {
    share: &'a Share,
    chance: Chance,
    count: u32,
    pods: BTreeSet<String>,
    jobs: BTreeSet<String>,
    workloads: BTreeSet<String>,
    deleted: BTreeSet<String>,
}

impl<'a> Traffic<'a> {
    fn new(share: &'a Share) -> Self {
        Self {
            share,
            chance: Chance::new(7),
            count: 0,
            pods: BTreeSet::new(),
            jobs: BTreeSet::new(),
            workloads: BTreeSet::new(),
            deleted: BTreeSet::new(),
        }
    }

    /// Pods that stay.
    async fn settle_in(&mut self) {
        self.share.burst("stays", 4, |name| self.share.one_gpu(name)).await;
        self.pods.extend((0..4).map(|index| format!("stays-{index}")));
        self.share
            .create_workload(workload(self.share, "gang-stays", 2, 1, &PodPlan::new("x")))
            .await;
    }

    async fn flow(&mut self, ledger: &Ledger, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if ledger.waiting() < CROWD {
                self.happen().await;
            }
            let pause = 20 + self.chance.below(60);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn happen(&mut self) {
        self.count += 1;
        let name = format!("w{}", self.count);
        let gpus = 1 + self.chance.below(2) as u32;
        let runs =
            PodPlan::new(&name).complete_after(&format!("{}ms", 200 + self.chance.below(1200)));
        match self.chance.below(20) {
            0..8 => {
                let plan = runs.gpus(gpus).scheduler(&self.share.scheduler_name());
                self.share.create_pod(&plan).await;
                self.pods.insert(name);
            }
            8..11 => self.create_job(name, runs).await,
            11..17 => {
                let size = 1 + self.chance.below(4) as u32;
                self.share.create_workload(workload(self.share, &name, size, gpus, &runs)).await;
                self.workloads.insert(name);
            }
            _ => self.delete_one().await,
        }
    }

    async fn create_job(&mut self, name: String, runs: PodPlan) {
        let template = runs.gpus(1).scheduler(&self.share.scheduler_name()).template();
        let job = json!({
            "metadata": {"name": name},
            "spec": {"completions": 2, "parallelism": 2, "template": template},
        });
        let job: Job = serde_json::from_value(job).expect("a job");
        self.share.api().create(&PostParams::default(), &job).await.expect("a new job");
        self.jobs.insert(name);
    }

    /// Deletes a pod or workload in any state.
    async fn delete_one(&mut self) {
        let from = if self.chance.below(2) == 0 { &mut self.pods } else { &mut self.workloads };
        let fleeting: Vec<String> =
            from.iter().filter(|name| name.starts_with('w')).cloned().collect();
        if fleeting.is_empty() {
            return;
        }
        // Of the newest, which are probably still pending.
        let latest = fleeting.len().saturating_sub(8);
        let chosen = latest + self.chance.below((fleeting.len() - latest) as u64) as usize;
        let name = fleeting[chosen].clone();
        let how = DeleteParams::default();
        if self.pods.remove(&name) {
            self.share.delete_pod(&name).await;
        } else if self.workloads.remove(&name) {
            self.share.api::<GpuWorkload>().delete(&name, &how).await.expect("it is deleted");
        }
        self.deleted.insert(name);
    }

    /// Waits until all requested pods are placed and all deleted ones are gone.
    async fn ends(&self) {
        wait_within(Duration::from_mins(1), "everything placed or gone", async || {
            let open = self.open().await;
            if open.is_empty() { Ok(()) } else { Err(open.join("\n")) }
        })
        .await;
    }

    /// Remaining differences.
    async fn open(&self) -> Vec<String> {
        let mut open = Vec::new();
        let pods = self.share.pods("").await;
        let find = |name: &str| pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
        for name in &self.pods {
            match find(name) {
                None => open.push(format!("pod {name} is lost")),
                Some(pod) if name.starts_with('w') != is_over(pod) || !is_bound(pod) => {
                    open.push(state(pod));
                }
                Some(_) => {}
            }
        }
        for name in &self.deleted {
            open.extend(find(name).map(|pod| format!("deleted, yet there: {}", state(pod))));
        }
        let jobs = self
            .share
            .api::<Job>()
            .list(&kube::api::ListParams::default())
            .await
            .expect("jobs")
            .items;
        for name in &self.jobs {
            let job = jobs.iter().find(|job| job.metadata.name.as_ref() == Some(name));
            let status = job.and_then(|job| job.status.as_ref());
            if status.and_then(|status| status.succeeded) != Some(2) {
                open.push(format!("job {name}: {status:?}"));
            }
        }
        let all = self.share.api::<GpuWorkload>().list(&kube::api::ListParams::default()).await;
        let all = all.expect("workloads").items;
        let named = |name: &String| all.iter().any(|one| one.metadata.name.as_ref() == Some(name));
        let lost = self.workloads.iter().filter(|name| !named(name));
        open.extend(lost.map(|name| format!("workload {name} is lost")));
        for found in all {
            let name = found.metadata.name.unwrap_or_default();
            let status = found.status.unwrap_or_default();
            let phase = status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
            let wanted = if name == "gang-stays" { "Running" } else { "Succeeded" };
            if self.deleted.contains(&name) || phase != wanted || status.retries != 0 {
                open.push(format!(
                    "workload {name} {phase}, {} retries: {:?}",
                    status.retries, status.message
                ));
            }
        }
        open
    }
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

//! Both schedulers on the same nodes, while the scheduler under test is killed and loses the API server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentaflow_kube_core::crd::GpuWorkload;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::bursts::{Chance, is_over, workload};
use crate::kube_outage::behind_cable;
use crate::ledger::Ledger;
use crate::support::{NodePlan, OWNER, PodPlan, Proxy, Scheduler, Share, state, wait_within};

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
    share
        .apply_object(json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": urgent_class(&share)}, "value": 1000,
        }))
        .await;
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
    let preempted = preemptions(&share).await;
    eprintln!(
        "{} pods, {} gangs, {} jobs; {preempted} preempted, {} rejected by kubelets; at most {} GPUs in use",
        traffic.pods.len(),
        traffic.gangs.len(),
        traffic.jobs.len(),
        ledger.refused(),
        ledger.most()
    );
    assert!(!traffic.jobs.is_empty(), "no job is no test");
    assert!(ledger.most() > 10, "so few GPUs in use at once are no test: {}", ledger.most());
}

/// Class of the gangs that preempt other gangs.
fn urgent_class(share: &Share) -> String {
    format!("urgent-{}", share.id)
}

/// Number of preempted objects.
async fn preemptions(share: &Share) -> usize {
    let events = share.api::<Event>().list(&ListParams::default()).await.expect("events").items;
    events.iter().filter(|event| event.reason.as_deref() == Some("Preempted")).count()
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

/// Random load: half of the bare pods are for kube-scheduler.
struct Traffic<'a> {
    share: &'a Share,
    chance: Chance,
    count: u32,
    pods: BTreeSet<String>,
    gangs: BTreeSet<String>,
    jobs: BTreeSet<String>,
    deleted: BTreeSet<String>,
}

impl<'a> Traffic<'a> {
    fn new(share: &'a Share) -> Self {
        let none = BTreeSet::new;
        let (pods, gangs, jobs, deleted) = (none(), none(), none(), none());
        Self { share, chance: Chance::new(11), count: 0, pods, gangs, jobs, deleted }
    }

    async fn flow(&mut self, ledger: &Ledger, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if ledger.waiting() < CROWD {
                self.happen(ledger).await;
            }
            let pause = 20 + self.chance.below(80);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn happen(&mut self, ledger: &Ledger) {
        self.count += 1;
        let name = format!("w{}", self.count);
        let runs = PodPlan::new(&name)
            .start_after("300ms")
            .complete_after(&format!("{}ms", 300 + self.chance.below(1500)));
        let gpus = 1 + self.chance.below(2) as u32;
        // A slow machine creates little: the first object is a job.
        let kind = if self.count == 1 { 16 } else { self.chance.below(20) };
        match kind {
            0..7 => {
                self.share.create_pod(&runs.gpus(gpus)).await;
                self.pods.insert(name);
            }
            7..11 => {
                // A bare pod would not come back after a preemption.
                let plan = runs.gpus(gpus).annotation("agentaflow.gpu/preemptible", "false");
                self.share.create_pod(&plan.scheduler(&self.share.scheduler_name())).await;
                self.pods.insert(name);
            }
            11..16 => {
                let size = 2 + self.chance.below(4) as u32;
                let urgent = json!(urgent_class(self.share));
                // The other gangs run long enough to be preempted.
                let runs = if kind < 13 {
                    runs.spec("priorityClassName", urgent)
                } else {
                    runs.complete_after("4s")
                };
                ledger.add_gang(&name, size as usize);
                self.share.create_workload(workload(self.share, &name, size, gpus, &runs)).await;
                self.gangs.insert(name);
            }
            16..18 => {
                let size = 2 + self.chance.below(3) as u32;
                ledger.add_gang(&name, size as usize);
                self.share
                    .apply_object(job(
                        self.share,
                        &name,
                        size,
                        &runs.gpus(gpus).complete_after("4s"),
                    ))
                    .await;
                self.jobs.insert(name);
            }
            _ => self.delete_one(ledger).await,
        }
    }

    /// Deletes one of the newest pods, gangs or jobs, which is probably still pending.
    async fn delete_one(&mut self, ledger: &Ledger) {
        let from = match self.chance.below(3) {
            0 => &self.pods,
            1 => &self.gangs,
            _ => &self.jobs,
        };
        let newest: Vec<String> = from.iter().rev().take(8).cloned().collect();
        if newest.is_empty() {
            return;
        }
        let name = newest[self.chance.below(newest.len() as u64) as usize].clone();
        ledger.remove_gang(&name);
        if self.pods.remove(&name) {
            self.share.delete_pod(&name).await;
        } else if self.gangs.remove(&name) {
            let workloads = self.share.api::<GpuWorkload>();
            let deleted = workloads.delete(&name, &DeleteParams::default()).await;
            deleted.expect("the workload is deleted");
        } else if self.jobs.remove(&name) {
            let deleted = self.share.api::<Job>().delete(&name, &DeleteParams::background()).await;
            deleted.expect("the job is deleted");
        }
        self.deleted.insert(name);
    }

    /// Waits until every pod has ended, every gang and job has succeeded, and the deleted ones are gone.
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
        open.extend(self.open_jobs().await);
        open
    }

    async fn open_jobs(&self) -> Vec<String> {
        let found = self.share.api::<Job>().list(&ListParams::default()).await.expect("jobs").items;
        let named =
            |name: &String| found.iter().any(|job| job.metadata.name.as_ref() == Some(name));
        let lost = self.jobs.iter().filter(|name| !named(name));
        let mut open: Vec<String> = lost.map(|name| format!("job {name} is lost")).collect();
        for job in &found {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let status = job.status.clone().unwrap_or_default();
            let is_complete = status.completion_time.is_some();
            if self.deleted.contains(name) || !is_complete {
                open.push(format!("job {name}: {status:?}"));
            }
        }
        open
    }
}

/// A suspended Job whose pods start together. A pod that a kubelet rejects counts as failed.
fn job(share: &Share, name: &str, pods: u32, plan: &PodPlan) -> Value {
    let plan = plan.clone().scheduler(&share.scheduler_name());
    let template = plan.spec("nodeSelector", json!({OWNER: share.id})).template();
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "suspend": true, "parallelism": pods, "completions": pods, "backoffLimit": 1000,
            "template": template,
        },
    })
}

/// A pod without a controller stays rejected; every other failure is a fault.
fn failed_by_itself(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let text = |text: Option<&String>| text.map(String::as_str).unwrap_or_default().to_owned();
    text(status.and_then(|status| status.phase.as_ref())) == "Failed"
        && text(status.and_then(|status| status.reason.as_ref())) != "OutOfnvidia.com/gpu"
}

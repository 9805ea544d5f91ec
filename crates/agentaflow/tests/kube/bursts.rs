//! Workloads, bursts of pods and seeded random numbers for scheduler tests.

use agentaflow_kube_core::crd::{GpuWorkload, GpuWorkloadStatus};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::{PodPlan, Scheduler, Share, wait_for};

/// A `GPUWorkload` of `pods` pods with `gpus` GPUs each, for the scheduler of the share.
pub(crate) fn workload(share: &Share, name: &str, pods: u32, gpus: u32, pod: &PodPlan) -> Value {
    let mut template = pod.template();
    template["spec"]["schedulerName"] = json!(share.scheduler_name());
    json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": name},
        "spec": {
            "gpuMemoryRequired": 0,
            "gpuRequirements": {"gpuCount": gpus},
            "gangSize": pods,
            "podTemplate": template,
        },
    })
}

impl Share {
    pub(crate) async fn create_workload(&self, object: Value) {
        let object: GpuWorkload = serde_json::from_value(object).expect("a workload");
        let made = self.api::<GpuWorkload>().create(&PostParams::default(), &object).await;
        made.expect("a new workload");
    }

    /// `None` if the workload does not exist.
    pub(crate) async fn workload(&self, name: &str) -> Option<GpuWorkloadStatus> {
        let found = self.api::<GpuWorkload>().get_opt(name).await.expect("an answer");
        found.map(|found| found.status.unwrap_or_default())
    }

    /// Waits until the workload is `Running`, `Succeeded`, `Failed` …
    pub(crate) async fn workload_is(&self, name: &str, phase: &str) -> GpuWorkloadStatus {
        wait_for(&format!("workload {name} {phase}"), async || {
            let status = self.workload(name).await.ok_or("there is no such workload")?;
            let now = status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
            if now == phase { Ok(status) } else { Err(format!("{now}: {:?}", status.message)) }
        })
        .await
    }

    /// Unfinished pods of a workload with their nodes.
    pub(crate) async fn pods_of(&self, workload: &str) -> Vec<(String, Option<String>)> {
        let pods = self.pods(&format!("agentaflow.gpu/workload={workload}")).await;
        let live = pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !is_over(pod));
        live.map(|pod| {
            (pod.metadata.name.unwrap_or_default(), pod.spec.and_then(|spec| spec.node_name))
        })
        .collect()
    }

    /// Creates pods with one GPU each concurrently: `name-0`, `name-1` …
    pub(crate) async fn burst(&self, name: &str, count: usize, plan: impl Fn(&str) -> PodPlan) {
        let names = (0..count).map(|index| format!("{name}-{index}"));
        futures_util::stream::iter(names)
            .for_each_concurrent(4, async |name| {
                self.create_pod(&plan(&name)).await;
            })
            .await;
    }

    /// A pod of one GPU for the scheduler of the share.
    pub(crate) fn one_gpu(&self, name: &str) -> PodPlan {
        PodPlan::new(name).gpus(1).scheduler(&self.scheduler_name())
    }
}

pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

impl Scheduler {
    /// Waits until a metric has a value.
    pub(crate) async fn counts(&self, name: &str, value: f64) {
        wait_for(&format!("{name} {value}"), async || {
            let now = self.metric(name);
            if now == Some(value) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
    }

    /// Waits until a metric has at least this value.
    pub(crate) async fn counts_at_least(&self, name: &str, least: f64) {
        wait_for(&format!("{name} at least {least}"), async || {
            let now = self.metric(name);
            if now.is_some_and(|now| now >= least) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
    }

    pub(crate) async fn leads(&self) {
        self.counts("agentaflow_leader", 1.0).await;
    }
}

/// Seeded random numbers.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

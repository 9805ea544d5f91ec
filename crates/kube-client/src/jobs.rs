//! Jobs: list, get, cancel, complete.

use agentaflow_api::Stamp;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, Workload};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::named::{Kind, Named};
use super::show::View;
use super::{Cluster, Failure, list};

impl Cluster {
    /// Jobs with one of these statuses, newest first; an empty list selects all.
    pub async fn jobs(&self, status: &[JobStatus]) -> Result<Vec<Job>, Failure> {
        let workloads = self.workloads().await?;
        let mut pods: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in self.workload_pods(None).await? {
            if let Some(owner) = owner_of(&pod) {
                pods.entry(owner).or_default().push(pod);
            }
        }
        let view = self.view();
        let none = Vec::new();
        let shown = workloads.iter().map(|workload| {
            let uid = workload.metadata.uid.as_deref().unwrap_or_default();
            view.workload(workload, pods.get(uid).unwrap_or(&none))
        });
        let mut jobs: Vec<Job> = shown.collect();
        for pod in self.lone_pods().await? {
            jobs.push(self.show_pod(&pod));
        }
        jobs.retain(|job| status.is_empty() || status.contains(&job.status));
        jobs.sort_by(|a, b| {
            b.created_at.cmp(&a.created_at).then_with(|| a.k8s_job_name.cmp(&b.k8s_job_name))
        });
        Ok(jobs)
    }

    pub async fn job(&self, name: &str) -> Result<Job, Failure> {
        self.job_of(&self.named(name)?).await
    }

    /// Deletes a job; its pods get their grace period. An ended job is kept for its status and logs.
    pub async fn cancel(&self, name: &str) -> Result<Job, Failure> {
        let named = self.named(name)?;
        let mut job = self.job_of(&named).await?;
        if job.status.is_final() {
            return Ok(job);
        }
        // The scheduler's finalizer keeps the workload until its pods are gone.
        let how = DeleteParams::background();
        let gone = match named.kind {
            Kind::Workload => {
                let api: Api<Workload> = self.namespaced(&named.namespace);
                api.delete(&named.name, &how).await?.is_right()
            }
            Kind::Pod => {
                let api: Api<core::Pod> = self.namespaced(&named.namespace);
                self.refuse_owned(&api.get(&named.name).await?)?;
                api.delete(&named.name, &how).await?.is_right()
            }
        };
        job.cancel_requested = true;
        if gone {
            job.status = JobStatus::Cancelled;
        }
        Ok(job)
    }

    /// Marks a job as complete: the scheduler stops its pods, and the job counts as completed.
    pub async fn complete(&self, name: &str) -> Result<Job, Failure> {
        let named = self.named(name)?;
        if named.kind == Kind::Pod {
            return Err(Failure::Unsupported(format!(
                "a pod cannot be completed by hand; `agentaflow cancel {name}` stops it"
            )));
        }
        let job = self.job_of(&named).await?;
        match job.status {
            JobStatus::Completed => return Ok(job),
            JobStatus::Failed | JobStatus::Cancelled => {
                let status = job.status.as_str();
                return Err(Failure::refused(format!("`{name}` is over already: {status}")));
            }
            _ => {}
        }
        let api: Api<Workload> = self.namespaced(&named.namespace);
        let message = json!({"metadata": {"annotations": {names::COMPLETE: "true"}}});
        api.patch(&named.name, &PatchParams::default(), &Patch::Merge(message)).await?;
        // The state before the change: the scheduler applies the change later.
        Ok(job)
    }

    pub(super) fn view(&self) -> View {
        View { everywhere: self.everywhere, now: Stamp::now() }
    }

    pub(super) fn named(&self, name: &str) -> Result<Named, Failure> {
        Named::parse(name, &self.namespace)
    }

    pub(super) async fn job_of(&self, named: &Named) -> Result<Job, Failure> {
        match named.kind {
            Kind::Workload => {
                let workload = self.workload(named).await?;
                let pods = self.pods_of(&workload).await?;
                Ok(self.view().workload(&workload, &pods))
            }
            Kind::Pod => Ok(self.show_pod(&self.lone_pod(named).await?)),
        }
    }

    pub(super) async fn workload(&self, named: &Named) -> Result<Workload, Failure> {
        let api: Api<Workload> = self.namespaced(&named.namespace);
        api.get_opt(&named.name).await?.ok_or_else(|| named.missing())
    }

    pub(super) async fn lone_pod(&self, named: &Named) -> Result<core::Pod, Failure> {
        let api: Api<core::Pod> = self.namespaced(&named.namespace);
        api.get_opt(&named.name).await?.ok_or_else(|| named.missing())
    }

    pub(super) async fn pods_of(&self, workload: &Workload) -> Result<Vec<Pod>, Failure> {
        let uid = workload.metadata.uid.clone();
        let mut pods = self.workload_pods(Some(workload)).await?;
        pods.retain(|pod| owner_of(pod) == uid);
        Ok(pods)
    }

    pub(super) fn show_pod(&self, pod: &core::Pod) -> Job {
        let whole = serde_json::to_value(pod).unwrap_or_default();
        let slim = serde_json::from_value(whole.clone()).unwrap_or_default();
        self.view().pod(&slim, &whole["spec"])
    }

    async fn workloads(&self) -> Result<Vec<Workload>, Failure> {
        let found = list::all(&self.listed::<Workload>(), ListParams::default()).await;
        found.map_err(
            |error| {
                if error.is_missing() { Failure::no_kind("GPUWorkload") } else { error }
            },
        )
    }

    async fn workload_pods(&self, of: Option<&Workload>) -> Result<Vec<Pod>, Failure> {
        let label = names::POD_WORKLOAD;
        let Some(workload) = of else {
            return list::all(&self.listed::<Pod>(), ListParams::default().labels(label)).await;
        };
        let name = workload.metadata.name.as_deref().unwrap_or_default();
        let wanted = format!("{label}={}", agentaflow_kube_core::gpu_workload::label_value(name));
        let api = self.namespaced(workload.metadata.namespace.as_deref().unwrap_or_default());
        list::all(&api, ListParams::default().labels(&wanted)).await
    }

    /// Pods of this scheduler that belong to no workload.
    pub(super) async fn lone_pods(&self) -> Result<Vec<core::Pod>, Failure> {
        let wanted = ListParams::default()
            .fields(&format!("spec.schedulerName={}", names::SCHEDULER_NAME))
            .labels(&format!("!{}", names::POD_WORKLOAD));
        list::all(&self.listed::<core::Pod>(), wanted).await
    }

    /// API for the namespaces in scope: one or all.
    pub(super) fn listed<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        if self.everywhere {
            return Api::all(self.client.clone());
        }
        self.namespaced(&self.namespace)
    }

    pub(super) fn namespaced<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Rejects a pod with an owner, which would create the pod again.
    fn refuse_owned(&self, pod: &core::Pod) -> Result<(), Failure> {
        let owners = pod.metadata.owner_references.iter().flatten();
        let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
            return Ok(());
        };
        let (kind, name) = (&owner.kind, &owner.name);
        let space = pod.metadata.namespace.as_deref().unwrap_or(&self.namespace);
        Err(Failure::refused(format!(
            "the pod belongs to {kind} `{name}`, which would make it again: \
             `kubectl delete {} {name} -n {space}` ends both",
            kind.to_lowercase()
        )))
    }
}

/// UID of the workload that owns a pod.
fn owner_of(pod: &Pod) -> Option<String> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners
        .into_iter()
        .find(|owner| owner.kind == "GPUWorkload" && owner.controller == Some(true))?;
    Some(owner.uid.clone())
}

pub(super) fn is_workload(object: &Value) -> bool {
    let group = object["apiVersion"].as_str().and_then(|version| version.split('/').next());
    object["kind"] == "GPUWorkload" && group == Some(names::GROUP)
}

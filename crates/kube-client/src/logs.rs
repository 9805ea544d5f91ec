//! Output of tasks.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{AsyncBufReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::LogParams;
use std::time::Duration;

use super::follow::Following;
use super::named::{Kind, Named};
use super::{Cluster, Failure, LogQuery, Unreachable, show, template};

/// Poll interval of a pod that has not started.
const LOOK: Duration = Duration::from_millis(500);

/// Lines at the end of a failed job's output that are searched for the cause.
const TAIL: i64 = 200;

impl Cluster {
    /// Output of a task. With `follow`, waits for the start of the task, and delivers the complete output of its pod across
    /// interrupted connections.
    pub async fn logs(
        &self,
        name: &str,
        query: &LogQuery,
    ) -> Result<BoxStream<'static, Result<Bytes, Failure>>, Failure> {
        let named = self.named(name)?;
        let mut pod = self.pod_of_task(&named, query.task).await;
        while query.follow && self.is_worth_waiting(&named, pod.as_ref()).await? {
            tokio::time::sleep(LOOK).await;
            pod = self.pod_of_task(&named, query.task).await;
        }
        let pod = pod?;
        let api: Api<core::Pod> = self.namespaced(&named.namespace);
        let how = LogParams {
            follow: query.follow,
            tail_lines: query.tail.map(|lines| i64::try_from(lines).unwrap_or(i64::MAX)),
            container: main_container(&pod),
            ..LogParams::default()
        };
        if query.follow {
            return Ok(Following::begin(api, &pod, how).await?.pieces());
        }
        let pod = pod.metadata.name.unwrap_or_default();
        let lines = api.log_stream(&pod, &how).await?;
        let pieces = futures_util::stream::try_unfold(Box::pin(lines), |mut lines| async move {
            let mut piece = Vec::new();
            match lines.read_until(b'\n', &mut piece).await {
                Ok(0) => Ok(None),
                Ok(_) => Ok(Some((Bytes::from(piece), lines))),
                Err(error) => Err(Failure::Unreachable(Unreachable::Other(format!(
                    "the output broke off: {error}"
                )))),
            }
        });
        Ok(pieces.boxed())
    }

    /// UID of the current or last pod of a task. Each retry is a new pod, and a recreated pod may have the name of its
    /// predecessor.
    pub async fn pod_uid(&self, name: &str, task: u32) -> Result<String, Failure> {
        let pod = self.pod_of_task(&self.named(name)?, task).await?;
        Ok(pod.metadata.uid.unwrap_or_default())
    }

    /// Last lines of a job's output; empty if they cannot be read.
    pub(super) async fn tail(&self, named: &Named, task: u32) -> String {
        let Ok(pod) = self.pod_of_task(named, task).await else { return String::new() };
        let api: Api<core::Pod> = self.namespaced(&named.namespace);
        let how = LogParams {
            tail_lines: Some(TAIL),
            limit_bytes: Some(1 << 20),
            container: main_container(&pod),
            ..LogParams::default()
        };
        api.logs(pod.metadata.name.as_deref().unwrap_or_default(), &how).await.unwrap_or_default()
    }

    /// The newest pod of a task.
    async fn pod_of_task(&self, named: &Named, task: u32) -> Result<core::Pod, Failure> {
        if named.kind == Kind::Pod {
            return self.lone_pod(named).await;
        }
        let workload = self.workload(named).await?;
        let pods = self.pods_of(&workload).await?;
        let pod = show::current(&pods).get(&task).and_then(|pod| pod.metadata.name.clone());
        let pod = pod.ok_or_else(|| {
            let name = &named.name;
            Failure::NotFound(format!("task {task} of `{name}` has no pod (any more)"))
        })?;
        self.lone_pod(&Named { kind: Kind::Pod, name: pod, ..named.clone() }).await
    }

    /// True if the job may still produce output.
    async fn is_worth_waiting(
        &self,
        named: &Named,
        pod: Result<&core::Pod, &Failure>,
    ) -> Result<bool, Failure> {
        match pod {
            Ok(pod) => {
                let status = pod.status.as_ref();
                let phase = status.and_then(|status| status.phase.as_deref());
                Ok(matches!(phase, Some("Pending") | None))
            }
            Err(Failure::NotFound(_)) => Ok(!self.job_of(named).await?.status.is_final()),
            Err(_) => Ok(false),
        }
    }
}

/// Container that runs the task, if the pod has several.
fn main_container(pod: &core::Pod) -> Option<String> {
    let spec = serde_json::to_value(pod.spec.as_ref()?).ok()?;
    let several = spec["containers"].as_array().is_some_and(|all| all.len() > 1);
    let main = template::main_container(&spec).filter(|_| several)?;
    main["name"].as_str().map(str::to_owned)
}

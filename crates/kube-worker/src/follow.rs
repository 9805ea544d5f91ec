//! Follows a task to its end: copies its output and determines its exit.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use agentaflow_agent::runtime::Exit;
use agentaflow_agent::runtime::run_clock::RunStart;
use agentaflow_agent::runtime::stop_record::{self, StopRecord};
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_backoff::BackoffPolicy;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::output::{self, OutputSource};
use crate::pod_status;
use crate::watch::ClusterWatch;

/// Longest interval between two checks, independent of watch events.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Delays between requests for the output of a pod.
const OUTPUT_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(200), Duration::from_secs(5));

/// Longest time to read the rest of the output.
const OUTPUT_LIMIT: Duration = Duration::from_mins(1);

/// Longest wait for output in flight of a terminating pod, and the interval between checks.
const TERMINATING_LIMIT: Duration = Duration::from_secs(5);
const COPY_CHECK: Duration = Duration::from_millis(10);

type End = Option<Result<Exit, String>>;

/// Follows one task until the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    end: watch::Receiver<End>,
    _task: Arc<AbortOnDropHandle<()>>,
}

pub(crate) struct FollowedTask {
    pub(crate) key: TaskKey,
    pub(crate) watch: Arc<ClusterWatch>,
    pub(crate) pods: Api<Pod>,
    pub(crate) folder: PathBuf,
    pub(crate) limit: u64,
    pub(crate) stopped: Arc<OnceLock<StopRecord>>,
    /// True while a log stream is open.
    pub(crate) copying: AtomicBool,
}

impl Follower {
    pub(crate) fn start(followed: FollowedTask) -> Self {
        let (sender, end) = watch::channel(None);
        let task = tokio::spawn(async move {
            let exit = followed.follow().await;
            // Fails if all receivers are dropped.
            let _ = sender.send(Some(exit));
        });
        Self { end, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// Waits for the end of the task and of its output.
    pub(crate) async fn end(mut self) -> Result<Exit, String> {
        let end = self.end.wait_for(Option::is_some).await;
        let end = end.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| Err("the follower was cancelled".to_owned()))
    }
}

impl FollowedTask {
    async fn follow(&self) -> Result<Exit, String> {
        let output = self.follow_output();
        tokio::pin!(output);
        let (exit, pod) = tokio::select! {
            end = self.wait_for_end() => end?,
            // Never ends by itself.
            () = &mut output => return Err("the follower was cancelled".to_owned()),
        };
        // A terminating pod may be gone before the next log request: wait for the open stream.
        let terminating = pod.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        let rest = async {
            while self.copying.load(Ordering::Relaxed) {
                sleep(COPY_CHECK).await;
            }
        };
        if terminating {
            tokio::select! {
                _ = timeout(TERMINATING_LIMIT, rest) => {}
                () = &mut output => {}
            }
        }
        if let Some(pod) = pod {
            self.finish(&pod).await;
        }
        Ok(exit)
    }

    /// Waits for the end; returns the pod too if it still exists.
    async fn wait_for_end(&self) -> Result<(Exit, Option<Arc<Pod>>), String> {
        let mut changes = self.watch.changes();
        let mut last: Option<Arc<Pod>> = None;
        let mut last_running: Option<Instant> = None;
        loop {
            let task = self.watch.task(self.key);
            let stopped = self.stopped.get().copied().or_else(|| stop_record::load(&self.folder));
            let deadline_exceeded = task.job.as_deref().is_some_and(pod_status::deadline_exceeded);
            let with_deadline = |exit: Exit| Exit {
                stopped: exit.stopped.or(deadline_exceeded.then_some(StopCause::LeaseLost)),
                ..exit
            };
            if let Some(exit) = task.pod.as_deref().and_then(|pod| pod_status::exit(pod, stopped)) {
                let ran = self.run_time(exit.ran, last_running);
                return Ok((with_deadline(Exit { ran, ..exit }), task.pod));
            }
            if task.pod.as_deref().is_some_and(|pod| pod_status::started_at(pod).is_some()) {
                last_running = Some(Instant::now());
            }
            if task.pod.is_none()
                && (task.job.as_deref().is_none_or(|job| pod_status::succeeded(job).is_some())
                    || last.is_some())
            {
                let cause = stopped.map(|stopped| stopped.cause);
                if cause.is_some() || deadline_exceeded {
                    // The watch missed the end of the pod and saw only its deletion.
                    let started_at = last.as_deref().and_then(pod_status::started_at);
                    return Ok((
                        with_deadline(Exit { stopped: cause, started_at, ..Exit::default() }),
                        None,
                    ));
                }
                match task.job.as_deref().map(pod_status::succeeded) {
                    None => return Err("the Job was deleted".to_owned()),
                    Some(Some(true)) => {
                        return Ok((Exit { code: Some(0), ..Exit::default() }, None));
                    }
                    Some(Some(false)) => {
                        return Err("the pod was deleted before its exit was observed".to_owned());
                    }
                    Some(None) => {}
                }
            }
            last = task.pod.or(last);
            // Fails only when the watches have ended.
            let _ = timeout(CHECK_INTERVAL, changes.changed()).await;
        }
    }

    /// The kubelet measures with the wall clock of its node.
    fn run_time(
        &self,
        measured: Option<Duration>,
        last_running: Option<Instant>,
    ) -> Option<Duration> {
        let Some(start) = RunStart::load(&self.folder) else { return measured };
        let least = last_running.map(|seen| start.elapsed().saturating_sub(seen.elapsed()));
        Some(start.correct(measured, least.unwrap_or_default()))
    }

    /// Copies the output and reconnects after errors; never ends.
    async fn follow_output(&self) {
        let mut backoff = OUTPUT_RETRIES.start();
        loop {
            let pod = self.watch.task(self.key).pod;
            if let Some(pod) = pod.filter(|pod| pod_status::started_at(pod).is_some()) {
                let name = pod.name_any();
                self.copying.store(true, Ordering::Relaxed);
                let followed = output::follow(&self.source(&name)).await;
                self.copying.store(false, Ordering::Relaxed);
                match followed {
                    Ok(()) => backoff.reset(),
                    Err(error) => debug!(pod = name, %error, "cannot read the output"),
                }
            }
            backoff.sleep().await;
        }
    }

    /// Reads the rest of the output and the result.
    async fn finish(&self, pod: &Pod) {
        let name = pod.name_any();
        let source = self.source(&name);
        match timeout(OUTPUT_LIMIT, output::complete(&source)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(pod = name, %error, "cannot read the end of the output");
            }
            Err(_) => warn!(pod = name, "timeout while reading the end of the output"),
        }
        if let Some(result) = pod_status::result(pod)
            && let Err(error) = fs::write(self.folder.join("out").join("output.json"), result)
        {
            warn!(pod = name, %error, "cannot save the result");
        }
    }

    fn source<'a>(&'a self, pod: &'a str) -> OutputSource<'a> {
        let folder: &Path = &self.folder;
        OutputSource { pods: &self.pods, pod, folder, limit: self.limit }
    }
}

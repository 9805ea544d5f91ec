//! Follows a task to its end: its output, and how it ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentaflow_agent::runtime::Exit;
use agentaflow_agent::runtime::stopped::{Stopped, remembered};
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_backoff::BackoffPolicy;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::ending;
use crate::output::{self, Source};
use crate::watch::Watch;

/// Looks again at least so often, whatever the watches say.
const LOOK: Duration = Duration::from_secs(5);

/// Delays between requests for the output of a pod.
const OUTPUT_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(200), Duration::from_secs(5));

/// How long the last of the output may take to come.
const LAST_OUTPUT: Duration = Duration::from_mins(1);

/// The same for one whose pod is about to go, and how often it is looked whether it has come.
const ON_ITS_WAY: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(10);

/// What a task's end is told with: the exit, or what went wrong.
type End = Option<Result<Exit, String>>;

/// Follows one task, until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    end: watch::Receiver<End>,
    _task: Arc<AbortOnDropHandle<()>>,
}

/// A task, and where its output goes.
pub(crate) struct Subject {
    pub(crate) key: TaskKey,
    pub(crate) watch: Arc<Watch>,
    pub(crate) pods: Api<Pod>,
    pub(crate) folder: PathBuf,
    pub(crate) limit: u64,
    pub(crate) stopped: Arc<OnceLock<Stopped>>,
    /// Output is on its way.
    pub(crate) copying: AtomicBool,
}

impl Follower {
    pub(crate) fn start(subject: Subject) -> Self {
        let (sender, end) = watch::channel(None);
        let task = tokio::spawn(async move {
            let exit = subject.follow().await;
            // Nobody may want to know any more.
            let _ = sender.send(Some(exit));
        });
        Self { end, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// How the task ended, once it has and its output is complete.
    pub(crate) async fn end(mut self) -> Result<Exit, String> {
        let told = self.end.wait_for(Option::is_some).await;
        let end = told.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| Err("the task is not followed any more".to_owned()))
    }
}

impl Subject {
    async fn follow(&self) -> Result<Exit, String> {
        let output = self.follow_output();
        tokio::pin!(output);
        let (exit, pod) = tokio::select! {
            end = self.until_end() => end?,
            // Never ends by itself.
            () = &mut output => return Err("the output is not followed any more".to_owned()),
        };
        // A pod that is being deleted may be gone before it can be asked again: what is on its way is waited for.
        let going = pod.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        let rest = async {
            while self.copying.load(Ordering::Relaxed) {
                sleep(GLANCE).await;
            }
        };
        if going {
            tokio::select! {
                _ = timeout(ON_ITS_WAY, rest) => {}
                () = &mut output => {}
            }
        }
        if let Some(pod) = pod {
            self.finish(&pod).await;
        }
        Ok(exit)
    }

    /// Waits for the end; with the pod, if it is still there.
    async fn until_end(&self) -> Result<(Exit, Option<Arc<Pod>>), String> {
        let mut changes = self.watch.changes();
        let mut last: Option<Arc<Pod>> = None;
        loop {
            let seen = self.watch.look(self.key);
            let stopped = self.stopped.get().copied().or_else(|| remembered(&self.folder));
            let ran_out = seen.job.as_deref().is_some_and(ending::ran_out);
            let late = |exit: Exit| Exit {
                stopped: exit.stopped.or(ran_out.then_some(StopCause::LeaseLost)),
                ..exit
            };
            if let Some(exit) = seen.pod.as_deref().and_then(|pod| ending::exit(pod, stopped)) {
                return Ok((late(exit), seen.pod));
            }
            if seen.pod.is_none()
                && (seen.job.as_deref().is_none_or(|job| ending::verdict(job).is_some())
                    || last.is_some())
            {
                let cause = stopped.map(|stopped| stopped.cause);
                if cause.is_some() || ran_out {
                    // Its end was not seen, only that it is gone.
                    let started_at = last.as_deref().and_then(ending::began);
                    return Ok((
                        late(Exit { stopped: cause, started_at, ..Exit::default() }),
                        None,
                    ));
                }
                match seen.job.as_deref().map(ending::verdict) {
                    None => return Err("the Job is gone: somebody deleted it".to_owned()),
                    Some(Some(true)) => {
                        return Ok((Exit { code: Some(0), ..Exit::default() }, None));
                    }
                    Some(Some(false)) => {
                        return Err("its pod is gone, and nobody saw how".to_owned());
                    }
                    Some(None) => {}
                }
            }
            last = seen.pod.or(last);
            // Fails only when nothing is watched any more.
            let _ = timeout(LOOK, changes.changed()).await;
        }
    }

    /// Copies the output through whatever happens to the connection, for ever.
    async fn follow_output(&self) {
        let mut backoff = OUTPUT_RETRIES.start();
        loop {
            let pod = self.watch.look(self.key).pod;
            if let Some(pod) = pod.filter(|pod| ending::began(pod).is_some()) {
                let name = pod.name_any();
                self.copying.store(true, Ordering::Relaxed);
                let followed = output::follow(&self.source(&name)).await;
                self.copying.store(false, Ordering::Relaxed);
                match followed {
                    Ok(()) => backoff.reset(),
                    Err(error) => debug!(pod = name, %error, "the output does not come"),
                }
            }
            backoff.sleep().await;
        }
    }

    /// Takes what the pod still has: the rest of the output, and the result.
    async fn finish(&self, pod: &Pod) {
        let name = pod.name_any();
        let source = self.source(&name);
        match timeout(LAST_OUTPUT, output::complete(&source)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(pod = name, %error, "the end of the output may be missing");
            }
            Err(_) => warn!(pod = name, "the end of the output did not come in time"),
        }
        if let Some(result) = ending::result(pod)
            && let Err(error) = fs::write(self.folder.join("out").join("output.json"), result)
        {
            warn!(pod = name, %error, "the result could not be kept");
        }
    }

    fn source<'a>(&'a self, pod: &'a str) -> Source<'a> {
        let folder: &Path = &self.folder;
        Source { pods: &self.pods, pod, folder, limit: self.limit }
    }
}

//! Adopts tasks that an earlier agent started, and containers of a Docker daemon that starts later.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use agentaflow_api::job::Runtime as RuntimeKind;
use agentaflow_api::link::{StopCause, TaskKey};

use super::{Task, TaskOrigin, Tasks, folder};
use crate::guardian::record;
use crate::runtime::docker::Docker;
use crate::runtime::{FoundTask, Runtime};

impl Tasks {
    pub(crate) fn has_docker(&self) -> bool {
        self.host.runtime(RuntimeKind::Docker).is_some()
    }

    /// Adds a Docker daemon that started after the agent, and adopts its containers.
    pub(crate) async fn add_docker(&self, docker: Docker) {
        let docker: Arc<dyn Runtime> = Arc::new(docker.with_lease(self.host.lease.clone()));
        let found = docker.list().await.unwrap_or_default();
        self.adopt_found(&docker, &found, &mut BTreeSet::new());
        // Called once; a second call would keep the first daemon.
        let _ = self.host.late_docker.set(docker);
    }

    pub(crate) async fn adopt(&self) {
        let mut unknown: BTreeSet<TaskKey> = record::folders(&self.host.dir).into_iter().collect();
        for runtime in &self.host.runtimes {
            let found = runtime.list().await;
            if let Err(error) = &found {
                warn!(runtime = runtime.kind().as_str(), %error, "cannot list the tasks of this runtime");
            }
            self.adopt_found(runtime, found.as_deref().unwrap_or_default(), &mut unknown);
            if found.is_err() {
                self.adopt_from_folders(runtime, &mut unknown);
            }
        }
        for key in unknown {
            info!(%key, "the task was never started; removing its folder");
            self.host.remove_folder(&record::folder(&self.host.dir, key));
        }
    }

    fn adopt_found(
        &self,
        runtime: &Arc<dyn Runtime>,
        found: &[FoundTask],
        unknown: &mut BTreeSet<TaskKey>,
    ) {
        for found in found {
            unknown.remove(&found.key);
            let assignment = folder::assignment(&record::folder(&self.host.dir, found.key));
            match assignment.filter(|assignment| assignment.key == found.key) {
                Some(assignment) => {
                    self.resume_gpu_usage(found.key);
                    let origin = TaskOrigin::Adopted(found.started_at);
                    self.spawn(Task::new(assignment, Arc::clone(runtime)), origin);
                }
                None => self.kill_unknown(Arc::clone(runtime), found.key),
            }
        }
    }

    /// Adopts tasks by their folders: the runtime does not answer, but may still run them.
    fn adopt_from_folders(&self, runtime: &Arc<dyn Runtime>, unknown: &mut BTreeSet<TaskKey>) {
        unknown.retain(|key| {
            let assignment = folder::assignment(&record::folder(&self.host.dir, *key));
            let Some(assignment) = assignment.filter(|found| found.runtime == runtime.kind())
            else {
                return true;
            };
            self.resume_gpu_usage(*key);
            self.spawn(Task::new(assignment, Arc::clone(runtime)), TaskOrigin::Adopted(None));
            false
        });
    }

    /// Kills a task without a readable folder.
    fn kill_unknown(&self, runtime: Arc<dyn Runtime>, key: TaskKey) {
        warn!(%key, "the task has no folder; killing it");
        let host = Arc::clone(&self.host);
        self.spawn_until_shutdown(async move {
            runtime.stop(key, StopCause::Replaced, Duration::ZERO).await;
            let _ = runtime.wait(key).await;
            runtime.remove(key).await;
            host.remove_folder(&record::folder(&host.dir, key));
        });
    }
}

/// True if an earlier agent left a task that runs in a container.
pub(crate) fn left_containers(dir: &Path) -> bool {
    record::folders(dir).into_iter().any(|key| {
        let assignment = folder::assignment(&record::folder(dir, key));
        assignment.is_some_and(|assignment| assignment.runtime == RuntimeKind::Docker)
    })
}

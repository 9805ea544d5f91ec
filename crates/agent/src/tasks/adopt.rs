//! Takes over what earlier agents left, and an engine that comes late.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use agentaflow_api::job::Runtime as Kind;
use agentaflow_api::link::{StopCause, TaskKey};

use super::{Birth, Task, Tasks, folder};
use crate::guardian::record;
use crate::runtime::docker::Docker;
use crate::runtime::{Found, Runtime};

impl Tasks {
    /// Containers can be run here.
    pub(crate) fn has_docker(&self) -> bool {
        self.host.runtime(Kind::Docker).is_some()
    }

    /// Takes an engine into use that was found only now. No task of an earlier agent was on it.
    pub(crate) async fn add_docker(&self, docker: Docker) {
        let docker: Arc<dyn Runtime> = Arc::new(docker.heeding(self.host.lease.clone()));
        let found = docker.list().await.unwrap_or_default();
        self.adopt_found(&docker, &found, &mut BTreeSet::new());
        // Called once; were it called twice, the first engine would stay.
        let _ = self.host.late_docker.set(docker);
    }

    /// Takes over the tasks of an earlier agent.
    pub(crate) async fn adopt(&self) {
        let mut unknown: BTreeSet<TaskKey> = record::folders(&self.host.dir).into_iter().collect();
        for runtime in &self.host.runtimes {
            let found = runtime.list().await;
            if let Err(error) = &found {
                warn!(runtime = runtime.kind().as_str(), %error, "cannot see which tasks there are");
            }
            self.adopt_found(runtime, found.as_deref().unwrap_or_default(), &mut unknown);
            if found.is_err() {
                self.adopt_unseen(runtime, &mut unknown);
            }
        }
        for key in unknown {
            info!(%key, "was never started: forgetting it");
            self.host.throw(&record::folder(&self.host.dir, key));
        }
    }

    fn adopt_found(
        &self,
        runtime: &Arc<dyn Runtime>,
        found: &[Found],
        unknown: &mut BTreeSet<TaskKey>,
    ) {
        for found in found {
            unknown.remove(&found.key);
            let assignment = folder::assignment(&record::folder(&self.host.dir, found.key));
            match assignment.filter(|assignment| assignment.key == found.key) {
                Some(assignment) => {
                    let birth = Birth::Adopted(found.started_at);
                    self.spawn(Task::new(assignment, Arc::clone(runtime)), birth);
                }
                None => self.bury(Arc::clone(runtime), found.key),
            }
        }
    }

    /// The runtime does not answer now; its tasks may still be there.
    fn adopt_unseen(&self, runtime: &Arc<dyn Runtime>, unknown: &mut BTreeSet<TaskKey>) {
        unknown.retain(|key| {
            let assignment = folder::assignment(&record::folder(&self.host.dir, *key));
            let Some(assignment) = assignment.filter(|found| found.runtime == runtime.kind())
            else {
                return true;
            };
            self.spawn(Task::new(assignment, Arc::clone(runtime)), Birth::Adopted(None));
            false
        });
    }

    /// Kills a task of which nothing is known.
    fn bury(&self, runtime: Arc<dyn Runtime>, key: TaskKey) {
        warn!(%key, "nothing is known of this task: killing it");
        let host = Arc::clone(&self.host);
        self.look_after(async move {
            runtime.stop(key, StopCause::Replaced, Duration::ZERO).await;
            let _ = runtime.wait(key).await;
            runtime.remove(key).await;
            host.throw(&record::folder(&host.dir, key));
        });
    }
}

/// Some task in this folder of an earlier agent is a container.
pub(crate) fn left_containers(dir: &Path) -> bool {
    record::folders(dir).into_iter().any(|key| {
        let assignment = folder::assignment(&record::folder(dir, key));
        assignment.is_some_and(|assignment| assignment.runtime == Kind::Docker)
    })
}

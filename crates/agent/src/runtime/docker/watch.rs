//! Follows a container to its end: copies the output, then reads the exit state.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::Docker as DockerClient;
use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as State,
    ContainerStatsResponse,
};
use bollard::query_parameters::EventsOptions;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use agentaflow_api::units::Stamp;
use agentaflow_backoff::BackoffPolicy;

use super::super::run_clock::{RunStart, wall_time};
use super::super::stop_record::{self, StopRecord};
use super::super::{Exit, TaskUsage};
use super::output::OutputSource;
use super::{fault, output, status};

/// Delays between inspections of a container whose output ended, and of a Docker daemon that does not answer.
const INSPECTIONS: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(5), Duration::from_secs(5));

/// Longest delay of an OOM event after the end of the container.
const OOM_EVENT_DELAY: Duration = Duration::from_secs(1);

type End = Option<Result<Exit, String>>;

/// Watches one container until the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Watcher {
    end: watch::Receiver<End>,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl Watcher {
    pub(super) fn start(
        client: DockerClient,
        id: String,
        folder: PathBuf,
        log_limit: u64,
        stopped: Arc<OnceLock<StopRecord>>,
    ) -> Self {
        let (sender, end) = watch::channel(None);
        let task = tokio::spawn(async move {
            let source =
                OutputSource { client: &client, id: &id, folder: &folder, limit: log_limit };
            let exit = follow(&source, &stopped).await;
            // Fails if all receivers are dropped.
            let _ = sender.send(Some(exit));
        });
        Self { end, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// Waits for the end of the container and of its output.
    pub(super) async fn end(mut self) -> Result<Exit, String> {
        let end = self.end.wait_for(Option::is_some).await;
        let end = end.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| Err("the watch of the container was cancelled".to_owned()))
    }
}

async fn follow(source: &OutputSource<'_>, stopped: &OnceLock<StopRecord>) -> Result<Exit, String> {
    let OutputSource { client, id, folder, .. } = *source;
    let mut backoff = INSPECTIONS.start();
    let found = loop {
        if let Err(error) = output::follow(source).await {
            tracing::warn!("cannot read the output of container {id}: {error}");
        }
        match client.inspect_container(id, None).await {
            Ok(found) if has_ended(&found) => break found,
            Err(error) if fault::is_missing(&error) => {
                return Err("the container was removed".to_owned());
            }
            // The container is about to end, or Docker was restarted or does not answer.
            Ok(_) | Err(_) => backoff.sleep().await,
        }
    };
    if let Err(error) = output::complete(source).await {
        tracing::warn!("cannot read the end of the output of container {id}: {error}");
    }
    let stopped = stopped.get().copied().or_else(|| stop_record::load(folder));
    let mut exit = exit(&found, stopped);
    if let Some(start) = RunStart::load(folder).filter(|_| exit.started_at.is_some()) {
        // Docker uses the clock of this host.
        let least = if start.wall_stepped() { start.elapsed() } else { Duration::ZERO };
        exit.ran = Some(start.correct(exit.ran, least));
    }
    if exit.stopped.is_none() && may_be_out_of_memory(&found) {
        exit.out_of_memory = has_oom_event(client, id, exit.started_at).await;
    }
    Ok(exit)
}

fn has_ended(found: &ContainerInspectResponse) -> bool {
    matches!(status(found), State::EXITED | State::DEAD | State::CREATED)
}

/// True for a killed container with a memory limit whose state does not mention the OOM killer.
fn may_be_out_of_memory(found: &ContainerInspectResponse) -> bool {
    let killed =
        |state: &ContainerState| state.exit_code == Some(137) && state.oom_killed != Some(true);
    found.state.as_ref().is_some_and(killed)
        && found.host_config.as_ref().is_some_and(|host| host.memory > Some(0))
}

/// True if Docker reports an OOM event for the container. The event may arrive after the end, and Docker before 23 then
/// does not set `OOMKilled`.
async fn has_oom_event(client: &DockerClient, id: &str, since: Option<Stamp>) -> bool {
    let since = since.map_or(0, |since| since.0 / 1000);
    let only = |name: &str, value: &str| (name.to_owned(), vec![value.to_owned()]);
    let filters = HashMap::from([only("container", id), only("event", "oom")]);
    let options =
        EventsOptions { since: Some(since.to_string()), until: None, filters: Some(filters) };
    let mut events = client.events(Some(options));
    matches!(timeout(OOM_EVENT_DELAY, events.next()).await, Ok(Some(Ok(_))))
}

fn exit(found: &ContainerInspectResponse, stopped: Option<StopRecord>) -> Exit {
    let state = found.state.clone().unwrap_or_default();
    if state.status == Some(State::CREATED) {
        return Exit { stopped: stopped.map(|stopped| stopped.cause), ..Exit::default() };
    }
    let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
    let started_at = started_at(found);
    let ended_at = state.finished_at.as_deref().and_then(timestamp);
    let was_stopped = |stopped: &StopRecord| ended_at.is_none_or(|ended| ended >= stopped.at);
    Exit {
        code,
        signal: code.filter(|code| (129..=192).contains(code)).map(|code| code - 128),
        // The OOM killer may have ended a child process while the container succeeded.
        out_of_memory: state.oom_killed == Some(true) && code != Some(0),
        stopped: stopped.filter(was_stopped).map(|stopped| stopped.cause),
        ran: wall_time(started_at, ended_at),
        started_at,
    }
}

pub(super) fn started_at(found: &ContainerInspectResponse) -> Option<Stamp> {
    found.state.as_ref().and_then(|state| state.started_at.as_deref()).and_then(timestamp)
}

/// Docker writes the year 1 for "never".
fn timestamp(text: &str) -> Option<Stamp> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Stamp(at.as_millisecond())).filter(|at| at.0 > 0)
}

pub(super) fn usage(stats: &ContainerStatsResponse) -> TaskUsage {
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage);
    let memory = stats.memory_stats.as_ref();
    // The kernel records a peak only with cgroup v1; with v2 the current usage without page cache has to do.
    let peak = memory.and_then(|memory| memory.max_usage);
    let now = memory.and_then(|memory| {
        let cached = memory.stats.as_ref().and_then(|stats| stats.get("inactive_file").copied());
        Some(memory.usage?.saturating_sub(cached.unwrap_or(0)))
    });
    let bytes = peak.filter(|bytes| *bytes > 0).or(now).unwrap_or(0);
    TaskUsage {
        cpu: Duration::from_nanos(cpu.unwrap_or(0)),
        memory: bytes.div_ceil(1 << 20),
        memory_now: now.unwrap_or(0).div_ceil(1 << 20),
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::link::StopCause;
    use bollard::models::{ContainerMemoryStats, ContainerState};

    use super::*;

    fn ended(code: i64) -> ContainerInspectResponse {
        let state = ContainerState {
            status: Some(State::EXITED),
            exit_code: Some(code),
            started_at: Some("2026-11-15T06:43:29.120456789Z".to_owned()),
            finished_at: Some("2026-11-15T06:43:31.620456789Z".to_owned()),
            ..ContainerState::default()
        };
        ContainerInspectResponse { state: Some(state), ..ContainerInspectResponse::default() }
    }

    #[test]
    fn a_signal_is_read_from_the_exit_code() {
        let killed = exit(&ended(143), None);
        assert_eq!((killed.code, killed.signal), (Some(143), Some(15)));
        assert_eq!(killed.ran, Some(Duration::from_millis(2500)));
        assert_eq!(exit(&ended(3), None).signal, None);
        assert_eq!(exit(&ended(255), None).signal, None);
    }

    #[test]
    fn an_end_before_the_start_gives_no_run_time() {
        let mut found = ended(0);
        let state = found.state.as_mut().unwrap();
        std::mem::swap(&mut state.started_at, &mut state.finished_at);
        let exit = exit(&found, None);
        assert_eq!((exit.code, exit.ran), (Some(0), None));
    }

    #[test]
    fn a_stop_after_the_end_does_not_count() {
        let mut stopped = StopRecord::now(StopCause::Cancelled, Duration::ZERO);
        assert_eq!(exit(&ended(0), Some(stopped)).stopped, None);
        stopped.at = timestamp("2026-11-15T06:43:30Z").unwrap();
        assert_eq!(exit(&ended(0), Some(stopped)).stopped, Some(StopCause::Cancelled));
    }

    #[test]
    fn a_container_that_never_ran_has_no_exit_code_and_no_start_time() {
        let mut found = ended(0);
        found.state.as_mut().unwrap().status = Some(State::CREATED);
        assert_eq!(exit(&found, None), Exit::default());
        assert_eq!(timestamp("0001-01-01T00:00:00Z"), None);
    }

    #[test]
    fn memory_is_the_peak_or_the_usage_without_page_cache() {
        let stats = |max_usage| ContainerStatsResponse {
            memory_stats: Some(ContainerMemoryStats {
                usage: Some(30 << 20),
                max_usage,
                stats: Some([("inactive_file".to_owned(), 10 << 20)].into()),
                ..ContainerMemoryStats::default()
            }),
            ..ContainerStatsResponse::default()
        };
        assert_eq!(usage(&stats(Some(50 << 20))).memory, 50);
        assert_eq!(usage(&stats(None)).memory, 20);
    }
}

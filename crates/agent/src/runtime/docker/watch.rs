//! Follows a container to its end: first its output, then how it ended.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::Docker as Engine;
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

use super::super::stopped::{self, Stopped};
use super::super::{Exit, Used};
use super::output::Source;
use super::{fault, output, status};

/// Delays between inspections of a container whose output ended, and of a Docker daemon that does not answer.
const INSPECTIONS: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(5), Duration::from_secs(5));

/// How long after a container's end word of a lack of memory may come.
const LATE_NEWS: Duration = Duration::from_secs(1);

/// What a task's end is told with: the exit, or what went wrong.
type End = Option<Result<Exit, String>>;

/// Watches one container, until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub(super) struct Watcher {
    end: watch::Receiver<End>,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl Watcher {
    pub(super) fn start(
        engine: Engine,
        id: String,
        folder: PathBuf,
        log_limit: u64,
        stopped: Arc<OnceLock<Stopped>>,
    ) -> Self {
        let (sender, end) = watch::channel(None);
        let task = tokio::spawn(async move {
            let source = Source { engine: &engine, id: &id, folder: &folder, limit: log_limit };
            let exit = follow(&source, &stopped).await;
            // Nobody may want to know any more.
            let _ = sender.send(Some(exit));
        });
        Self { end, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// How the container ended, once it has and its output is complete.
    pub(super) async fn end(mut self) -> Result<Exit, String> {
        let told = self.end.wait_for(Option::is_some).await;
        let end = told.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| Err("the container is not watched any more".to_owned()))
    }
}

async fn follow(source: &Source<'_>, stopped: &OnceLock<Stopped>) -> Result<Exit, String> {
    let Source { engine, id, folder, .. } = *source;
    let mut backoff = INSPECTIONS.start();
    let found = loop {
        if let Err(error) = output::follow(source).await {
            tracing::warn!("the output of the container {id} does not come: {error}");
        }
        match engine.inspect_container(id, None).await {
            Ok(found) if is_over(&found) => break found,
            Err(error) if fault::is_missing(&error) => {
                return Err("the container is gone: somebody removed it".to_owned());
            }
            // It is about to end, or the engine was restarted under it, or does not answer.
            Ok(_) | Err(_) => backoff.sleep().await,
        }
    };
    if let Err(error) = output::complete(source).await {
        tracing::warn!("the end of the output of the container {id} is missing: {error}");
    }
    let stopped = stopped.get().copied().or_else(|| stopped::remembered(folder));
    let mut exit = exit(&found, stopped);
    if exit.stopped.is_none() && may_lack_memory(&found) {
        exit.out_of_memory = lacked_memory(engine, id, exit.started_at).await;
    }
    Ok(exit)
}

fn is_over(found: &ContainerInspectResponse) -> bool {
    matches!(status(found), State::EXITED | State::DEAD | State::CREATED)
}

/// It was killed, it had a limit, and its state does not say that this was why.
fn may_lack_memory(found: &ContainerInspectResponse) -> bool {
    let killed =
        |state: &ContainerState| state.exit_code == Some(137) && state.oom_killed != Some(true);
    found.state.as_ref().is_some_and(killed)
        && found.host_config.as_ref().is_some_and(|host| host.memory > Some(0))
}

/// Whether the engine hears, or has heard, that the kernel ended the container for its memory. That word may come after
/// the word of the end, and engines before 23 do not put it into the state then.
async fn lacked_memory(engine: &Engine, id: &str, since: Option<Stamp>) -> bool {
    let since = since.map_or(0, |since| since.0 / 1000);
    let only = |name: &str, value: &str| (name.to_owned(), vec![value.to_owned()]);
    let filters = HashMap::from([only("container", id), only("event", "oom")]);
    let options =
        EventsOptions { since: Some(since.to_string()), until: None, filters: Some(filters) };
    let mut heard = engine.events(Some(options));
    matches!(timeout(LATE_NEWS, heard.next()).await, Ok(Some(Ok(_))))
}

fn exit(found: &ContainerInspectResponse, stopped: Option<Stopped>) -> Exit {
    let state = found.state.clone().unwrap_or_default();
    if state.status == Some(State::CREATED) {
        return Exit { stopped: stopped.map(|stopped| stopped.cause), ..Exit::default() };
    }
    let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
    let started_at = began(found);
    let ended_at = state.finished_at.as_deref().and_then(moment);
    let ran = started_at.zip(ended_at).map_or(0, |(began, ended)| ended.0 - began.0);
    let was_stopped = |stopped: &Stopped| ended_at.is_none_or(|ended| ended >= stopped.at);
    Exit {
        code,
        signal: code.filter(|code| (129..=192).contains(code)).map(|code| code - 128),
        // The kernel may have ended a part of it only, and the rest went well.
        out_of_memory: state.oom_killed == Some(true) && code != Some(0),
        stopped: stopped.filter(was_stopped).map(|stopped| stopped.cause),
        ran: Duration::from_millis(u64::try_from(ran).unwrap_or(0)),
        started_at,
    }
}

/// When a container began to run.
pub(super) fn began(found: &ContainerInspectResponse) -> Option<Stamp> {
    found.state.as_ref().and_then(|state| state.started_at.as_deref()).and_then(moment)
}

/// The engine writes the year 1 for "never".
fn moment(text: &str) -> Option<Stamp> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Stamp(at.as_millisecond())).filter(|at| at.0 > 0)
}

/// CPU time and memory from the engine's statistics.
pub(super) fn used(stats: &ContainerStatsResponse) -> Used {
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage);
    let memory = stats.memory_stats.as_ref();
    // The kernel's own record exists with the first version of cgroups only; with the second, the most that
    // was ever seen has to do, less the files that it merely keeps at hand.
    let record = memory.and_then(|memory| memory.max_usage);
    let now = memory.and_then(|memory| {
        let cached = memory.stats.as_ref().and_then(|stats| stats.get("inactive_file").copied());
        Some(memory.usage?.saturating_sub(cached.unwrap_or(0)))
    });
    let bytes = record.filter(|bytes| *bytes > 0).or(now).unwrap_or(0);
    Used { cpu: Duration::from_nanos(cpu.unwrap_or(0)), memory: bytes.div_ceil(1 << 20) }
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
        assert_eq!(killed.ran, Duration::from_millis(2500));
        assert_eq!(exit(&ended(3), None).signal, None);
        assert_eq!(exit(&ended(255), None).signal, None);
    }

    #[test]
    fn a_stop_that_came_after_the_end_did_not_stop_it() {
        let mut stopped = Stopped::now(StopCause::Cancelled, Duration::ZERO);
        assert_eq!(exit(&ended(0), Some(stopped)).stopped, None);
        stopped.at = moment("2026-11-15T06:43:30Z").unwrap();
        assert_eq!(exit(&ended(0), Some(stopped)).stopped, Some(StopCause::Cancelled));
    }

    #[test]
    fn a_container_that_never_ran_has_no_exit_code_and_no_beginning() {
        let mut found = ended(0);
        found.state.as_mut().unwrap().status = Some(State::CREATED);
        assert_eq!(exit(&found, None), Exit::default());
        assert_eq!(moment("0001-01-01T00:00:00Z"), None);
    }

    #[test]
    fn memory_is_the_kernels_record_or_what_is_used_without_cached_files() {
        let stats = |max_usage| ContainerStatsResponse {
            memory_stats: Some(ContainerMemoryStats {
                usage: Some(30 << 20),
                max_usage,
                stats: Some([("inactive_file".to_owned(), 10 << 20)].into()),
                ..ContainerMemoryStats::default()
            }),
            ..ContainerStatsResponse::default()
        };
        assert_eq!(used(&stats(Some(50 << 20))).memory, 50);
        assert_eq!(used(&stats(None)).memory, 20);
    }
}

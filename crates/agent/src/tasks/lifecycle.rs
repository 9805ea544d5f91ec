//! Lifecycle of one task: start, wait for the end, report, clean up.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{Instrument as _, info, info_span, warn};

use agentaflow_api::event::EventKind;
use agentaflow_api::job::{ResourceUsage, Runtime as RuntimeKind};
use agentaflow_api::link::{Ended, StopCause, TaskUpdate};
use agentaflow_api::units::{Cores, Stamp};

use super::{Host, StopOrder, Task, TaskOrigin, folder, launch};
use crate::clock::millis;
use crate::guardian::client::GuardianUnreachable;
use crate::guardian::record;
use crate::report::Tail;
use crate::runtime::process::guardian_unreachable;
use crate::runtime::run_clock::{RunStart, wall_time};
use crate::runtime::{Exit, Launch, Progress, StartError, TaskUsage};

/// Shortest wait for the end of an interrupted start.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(30);

/// Retry interval of a runtime that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a task from start to clean-up. Its logs carry the trace of the job.
pub(super) async fn run(host: &Host, task: &Task, origin: TaskOrigin) {
    let trace_id = task.assignment.trace_id.map(tracing::field::display);
    let span = info_span!("task", key = %task.key, trace_id);
    run_in_span(host, task, origin).instrument(span).await;
}

async fn run_in_span(host: &Host, task: &Task, origin: TaskOrigin) {
    let dir = record::folder(&host.dir, task.key);
    let update = run_to_end(host, task, origin).await;
    if !task.is_stale() {
        let accepted = host.outbox.finish(task.key, update).await;
        info!(accepted, "task ended");
    }
    host.outbox.drop_task(task.key);
    host.gpus.forget(task.key);
    task.runtime.remove(task.key).await;
    if let Some(guardian) =
        host.guardian.as_ref().filter(|_| task.assignment.runtime == RuntimeKind::Docker)
    {
        guardian.forget(task.key);
    }
    host.remove_folder(&dir);
}

async fn run_to_end(host: &Host, task: &Task, origin: TaskOrigin) -> TaskUpdate {
    let mut orders = task.stop_order.subscribe();
    let dir = record::folder(&host.dir, task.key);
    let tail = Tail::new(
        task.key,
        dir.join("output.log"),
        host.log_limit,
        matches!(origin, TaskOrigin::Assigned),
    );
    let (started_at, ran) = match origin {
        TaskOrigin::Adopted(at) => {
            let start = RunStart::load(&dir);
            let ran =
                start.map(|start| start.elapsed()).or_else(|| wall_time(at, Some(Stamp::now())));
            (at, ran.unwrap_or_default())
        }
        TaskOrigin::Assigned => match start(host, task, &mut orders).await {
            Ok(at) => {
                RunStart::now().save(&dir);
                (Some(at), Duration::ZERO)
            }
            Err(update) => {
                host.outbox.follow(tail);
                return update;
            }
        },
    };
    if let Some(started_at) = started_at {
        // No other code sets it.
        let _ = task.started.set(started_at);
        if let Some(objects) = task.runtime.kubernetes_objects(task.key) {
            host.outbox.send(task.key, TaskUpdate::Placed(objects));
        }
        host.outbox.send(task.key, TaskUpdate::Running { started_at });
    }
    if matches!(origin, TaskOrigin::Adopted(_)) {
        // The request is sent at once; the task already runs, so the answer does not matter.
        drop(protect(host, task));
    }
    host.outbox.follow(tail.clone());
    let exit = wait_for_end(task, &mut orders, ran).await;
    end_report(host, task, exit, &tail).await
}

/// Registers a leased container with the guardian, which stops the container when the lease expires.
fn protect(
    host: &Host,
    task: &Task,
) -> Option<impl Future<Output = Result<(), GuardianUnreachable>> + use<>> {
    let container = task.assignment.leased && task.assignment.runtime == RuntimeKind::Docker;
    let guardian = host.guardian.as_ref().filter(|_| container)?;
    Some(guardian.protect(task.key, host.docker_socket.clone()?))
}

async fn start(
    host: &Host,
    task: &Task,
    orders: &mut watch::Receiver<Option<StopOrder>>,
) -> Result<Stamp, TaskUpdate> {
    host.outbox.send(task.key, TaskUpdate::Accepted);
    let launch = launch::prepare(host, &task.assignment, &*task.runtime).map_err(|error| {
        TaskUpdate::Refused { detail: format!("cannot create the task folder: {error}") }
    })?;
    let progress = |kind: EventKind, detail: String| {
        host.outbox.send(task.key, TaskUpdate::Progress { kind, detail });
    };
    tokio::select! {
        // A process starts at once; only the pull of an image takes long enough to be interrupted.
        biased;
        started = begin(host, task, &launch, &progress) => started.map_err(failed),
        order = next_order(orders) => Err(interrupt(task, order).await),
    }
}

/// Starts a task, unless the lease has expired or the guardian could not stop the task when it expires.
async fn begin(
    host: &Host,
    task: &Task,
    launch: &Launch,
    progress: Progress<'_>,
) -> Result<Stamp, StartError> {
    if let Some(protected) = protect(host, task) {
        protected.await.map_err(guardian_unreachable)?;
    }
    if task.assignment.leased && host.lease.expired_at().is_some() {
        let detail = "the lease expired: the node has lost its connection to the server";
        return Err(StartError::Node(detail.to_owned()));
    }
    task.runtime.start(launch, progress).await
}

async fn next_order(orders: &mut watch::Receiver<Option<StopOrder>>) -> StopOrder {
    loop {
        if let Ok(order) = orders.wait_for(Option::is_some).await
            && let Some(order) = *order
        {
            return order;
        }
        // The sender was dropped, so no order will arrive.
        std::future::pending::<()>().await;
    }
}

fn failed(error: StartError) -> TaskUpdate {
    match error {
        StartError::Job(failure) => {
            let failed_to_start = Some(failure);
            TaskUpdate::Ended(Box::new(Ended { failed_to_start, ..Ended::default() }))
        }
        StartError::Node(detail) => {
            warn!(%detail, "the node cannot run this task");
            TaskUpdate::Refused { detail }
        }
    }
}

/// Stops a task during its start, and returns when all of its processes and containers are gone.
async fn interrupt(task: &Task, order: StopOrder) -> TaskUpdate {
    let limit = INTERRUPT_LIMIT.max(order.grace.saturating_mul(2));
    let exit = loop {
        // Repeated in each round: the task may have started only now.
        task.runtime.stop(task.key, order.cause, order.grace).await;
        match timeout(limit, task.runtime.wait(task.key)).await {
            Ok(Ok(exit)) => break exit,
            _ if is_gone(task).await => break Exit::default(),
            _ => sleep(RETRY_INTERVAL).await,
        }
    };
    TaskUpdate::Ended(Box::new(Ended {
        exit_code: exit.code,
        signal: exit.signal,
        stopped: Some(order.cause),
        started_at: exit.started_at,
        ran_ms: wire_ms(exit.ran),
        ..Ended::default()
    }))
}

/// Waits for the end of the task; stops the task on an order and after its timeout.
async fn wait_for_end(
    task: &Task,
    orders: &mut watch::Receiver<Option<StopOrder>>,
    ran: Duration,
) -> Exit {
    let grace = Duration::from_millis(task.assignment.grace_ms);
    let limit = task.assignment.timeout_ms.map(Duration::from_millis);
    let mut deadline = limit.map(|limit| Instant::now() + limit.saturating_sub(ran));
    let mut last = *orders.borrow_and_update();
    if let Some(order) = last {
        task.runtime.stop(task.key, order.cause, order.grace).await;
    }
    let end = wait_until_known(task);
    tokio::pin!(end);
    loop {
        tokio::select! {
            exit = &mut end => return Exit { stopped: exit.stopped.or(last.filter(|_| exit.code.is_none()).map(|order| order.cause)), ..exit },
            Ok(()) = orders.changed() => {
                last = *orders.borrow_and_update();
                if let Some(order) = last {
                    task.runtime.stop(task.key, order.cause, order.grace).await;
                }
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                deadline = None;
                task.runtime.stop(task.key, StopCause::TimedOut, grace).await;
            }
        }
    }
}

/// True if the runtime answers and does not list the task.
async fn is_gone(task: &Task) -> bool {
    task.runtime.list().await.is_ok_and(|all| all.iter().all(|found| found.key != task.key))
}

/// Waits for the end, and retries while the runtime fails.
async fn wait_until_known(task: &Task) -> Exit {
    loop {
        let error = match task.runtime.wait(task.key).await {
            Ok(exit) => return exit,
            Err(error) => error,
        };
        if is_gone(task).await {
            warn!(%error, "the runtime no longer has this task");
            return Exit { stopped: Some(StopCause::LeaseLost), ..Exit::default() };
        }
        sleep(RETRY_INTERVAL).await;
    }
}

async fn end_report(host: &Host, task: &Task, exit: Exit, tail: &Tail) -> TaskUpdate {
    let used = task.runtime.used(task.key).await;
    let output_data =
        folder::result(&record::folder(&host.dir, task.key)).unwrap_or_else(|error| {
            host.outbox.warn(task.key, error.to_string());
            None
        });
    TaskUpdate::Ended(Box::new(Ended {
        exit_code: exit.code,
        signal: exit.signal,
        stopped: exit.stopped,
        out_of_memory: exit.out_of_memory,
        failed_to_start: None,
        started_at: exit.started_at.or(task.started.get().copied()),
        ran_ms: wire_ms(exit.ran),
        output_data,
        usage: ResourceUsage {
            gpu: host.gpus.usage(task.key),
            ..usage(used, host.gpus.peak_memory(task.key), exit.ran)
        },
        log_bytes: tail.total(),
        log_tail: String::new(),
    }))
}

fn usage(used: TaskUsage, peak: Option<u64>, ran: Option<Duration>) -> ResourceUsage {
    ResourceUsage {
        gpu_memory: peak,
        // All zero: the runtime does not measure usage.
        cpu_cores: ran
            .filter(|_| used != TaskUsage::default())
            .map(|ran| Cores((used.cpu.as_millis() * 1000 / ran.as_millis().max(1)) as u64)),
        memory: (used.memory > 0).then_some(used.memory),
        storage: None,
        gpu: None,
    }
}

/// Zero means unknown on the wire.
fn wire_ms(ran: Option<Duration>) -> u64 {
    ran.map_or(0, |ran| millis(ran).max(1))
}

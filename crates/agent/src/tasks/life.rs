//! The life of one task: started, watched, ended, reported, cleaned up.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use agentaflow_api::event::EventKind;
use agentaflow_api::job::{ResourceUsage, Runtime as Kind};
use agentaflow_api::link::{Ended, StopCause, TaskUpdate};
use agentaflow_api::units::{Cores, Stamp};

use super::{Birth, Host, Order, Task, folder, launch};
use crate::guardian::client::GuardianAway;
use crate::guardian::record;
use crate::report::Tail;
use crate::runtime::process::away;
use crate::runtime::{Exit, Launch, Progress, StartError, Used};

/// How long a start that was interrupted may take to come to its end.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(30);

/// How often a runtime that does not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Lives the whole life of a task.
pub(super) async fn live(host: &Host, task: &Task, birth: Birth) {
    let dir = record::folder(&host.dir, task.key);
    let update = run(host, task, birth).await;
    if !task.is_forgotten() {
        let accepted = host.outbox.finish(task.key, update).await;
        info!(key = %task.key, accepted, "over");
    }
    host.outbox.drop_task(task.key);
    host.gpus.forget(task.key);
    task.runtime.remove(task.key).await;
    if let Some(guardian) =
        host.guardian.as_ref().filter(|_| task.assignment.runtime == Kind::Docker)
    {
        guardian.forget(task.key);
    }
    host.throw(&dir);
}

async fn run(host: &Host, task: &Task, birth: Birth) -> TaskUpdate {
    let mut orders = task.order.subscribe();
    let tail = Tail::new(
        task.key,
        record::folder(&host.dir, task.key).join("output.log"),
        host.log_limit,
        matches!(birth, Birth::Fresh),
    );
    let (started_at, ran) = match birth {
        Birth::Adopted(at) => (at, at.map_or(Duration::ZERO, since)),
        Birth::Fresh => match start(host, task, &mut orders).await {
            Ok(at) => (Some(at), Duration::ZERO),
            Err(update) => {
                host.outbox.follow(tail);
                return update;
            }
        },
    };
    if let Some(started_at) = started_at {
        // Set once: this is the only place.
        let _ = task.started.set(started_at);
        if let Some(place) = task.runtime.place(task.key) {
            host.outbox.tell(task.key, TaskUpdate::Placed(place));
        }
        host.outbox.tell(task.key, TaskUpdate::Running { started_at });
    }
    if matches!(birth, Birth::Adopted(_)) {
        // Told at once; nobody has to wait for the answer, since it runs already.
        drop(protect(host, task));
    }
    host.outbox.follow(tail.clone());
    let exit = until_end(task, &mut orders, ran).await;
    conclude(host, task, exit, &tail).await
}

/// A container that must not outlive the lease is put into the guardian's care.
fn protect(
    host: &Host,
    task: &Task,
) -> Option<impl Future<Output = Result<(), GuardianAway>> + use<>> {
    let container = task.assignment.leased && task.assignment.runtime == Kind::Docker;
    let guardian = host.guardian.as_ref().filter(|_| container)?;
    Some(guardian.protect(task.key, host.engine.clone()?))
}

async fn start(
    host: &Host,
    task: &Task,
    orders: &mut watch::Receiver<Option<Order>>,
) -> Result<Stamp, TaskUpdate> {
    host.outbox.tell(task.key, TaskUpdate::Accepted);
    let launch = launch::prepare(host, &task.assignment, &*task.runtime).map_err(|error| {
        TaskUpdate::Refused { detail: format!("this node cannot make the task's folder: {error}") }
    })?;
    let progress = |kind: EventKind, detail: String| {
        host.outbox.tell(task.key, TaskUpdate::Progress { kind, detail });
    };
    tokio::select! {
        // A process starts in no time; only a container's image can take long enough to be interrupted.
        biased;
        started = begin(host, task, &launch, &progress) => started.map_err(|error| failed(task, error)),
        order = ordered(orders) => Err(interrupt(task, order).await),
    }
}

/// Starts a task, unless nobody would stop it when the lease runs out, or it has run out already.
async fn begin(
    host: &Host,
    task: &Task,
    launch: &Launch,
    progress: Progress<'_>,
) -> Result<Stamp, StartError> {
    if let Some(protected) = protect(host, task) {
        protected.await.map_err(away)?;
    }
    if task.assignment.leased && host.lease.lost().is_some() {
        let detail = "the lease has run out: this node has lost touch with the server";
        return Err(StartError::Node(detail.to_owned()));
    }
    task.runtime.start(launch, progress).await
}

/// Waits for an order to stop.
async fn ordered(orders: &mut watch::Receiver<Option<Order>>) -> Order {
    loop {
        if let Ok(order) = orders.wait_for(Option::is_some).await
            && let Some(order) = *order
        {
            return order;
        }
        // Whoever gives orders is gone, and no order will come.
        std::future::pending::<()>().await;
    }
}

fn failed(task: &Task, error: StartError) -> TaskUpdate {
    match error {
        StartError::Job(failure) => {
            let failed_to_start = Some(failure);
            TaskUpdate::Ended(Box::new(Ended { failed_to_start, ..Ended::default() }))
        }
        StartError::Node(detail) => {
            warn!(key = %task.key, %detail, "cannot run this task here");
            TaskUpdate::Refused { detail }
        }
    }
}

/// Stops a task that was being started, and sees that nothing is left of it.
async fn interrupt(task: &Task, order: Order) -> TaskUpdate {
    let limit = INTERRUPT_LIMIT.max(order.grace.saturating_mul(2));
    let exit = loop {
        // Again each time: it may have begun to run only now.
        task.runtime.stop(task.key, order.cause, order.grace).await;
        match timeout(limit, task.runtime.wait(task.key)).await {
            Ok(Ok(exit)) => break exit,
            _ if is_gone(task).await => break Exit::default(),
            _ => sleep(ASK_AGAIN).await,
        }
    };
    TaskUpdate::Ended(Box::new(Ended {
        exit_code: exit.code,
        signal: exit.signal,
        stopped: Some(order.cause),
        started_at: exit.started_at,
        ran_ms: exit.ran.as_millis() as u64,
        ..Ended::default()
    }))
}

/// Waits for the end, and brings it about when it is ordered or the time is up.
async fn until_end(
    task: &Task,
    orders: &mut watch::Receiver<Option<Order>>,
    ran: Duration,
) -> Exit {
    let grace = Duration::from_millis(task.assignment.grace_ms);
    let limit = task.assignment.timeout_ms.map(Duration::from_millis);
    let mut deadline = limit.map(|limit| Instant::now() + limit.saturating_sub(ran));
    let mut last = *orders.borrow_and_update();
    if let Some(order) = last {
        task.runtime.stop(task.key, order.cause, order.grace).await;
    }
    let end = until_known_end(task);
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

/// The runtime says that it has nothing of this task.
async fn is_gone(task: &Task) -> bool {
    task.runtime.list().await.is_ok_and(|all| all.iter().all(|found| found.key != task.key))
}

/// Waits for the end through trouble with the runtime.
async fn until_known_end(task: &Task) -> Exit {
    loop {
        let error = match task.runtime.wait(task.key).await {
            Ok(exit) => return exit,
            Err(error) => error,
        };
        if is_gone(task).await {
            warn!(key = %task.key, %error, "nothing is left of this task");
            return Exit { stopped: Some(StopCause::LeaseLost), ..Exit::default() };
        }
        sleep(ASK_AGAIN).await;
    }
}

/// Puts together what is to be said of the end.
async fn conclude(host: &Host, task: &Task, exit: Exit, tail: &Tail) -> TaskUpdate {
    let used = task.runtime.used(task.key).await;
    let output_data =
        folder::result(&record::folder(&host.dir, task.key)).unwrap_or_else(|detail| {
            host.outbox.tell(task.key, TaskUpdate::Progress { kind: EventKind::Warning, detail });
            None
        });
    TaskUpdate::Ended(Box::new(Ended {
        exit_code: exit.code,
        signal: exit.signal,
        stopped: exit.stopped,
        out_of_memory: exit.out_of_memory,
        failed_to_start: None,
        started_at: exit.started_at.or(task.started.get().copied()),
        ran_ms: exit.ran.as_millis() as u64,
        output_data,
        usage: usage(used, host.gpus.peak_memory(task.key), exit.ran),
        log_bytes: tail.total(),
        last_words: String::new(),
    }))
}

fn usage(used: Used, peak: Option<u64>, ran: Duration) -> ResourceUsage {
    let ran_ms = ran.as_millis().max(1);
    ResourceUsage {
        gpu_memory: peak,
        // A runtime that does not measure tells nothing at all.
        cpu_cores: (used != Used::default())
            .then(|| Cores((used.cpu.as_millis() * 1000 / ran_ms) as u64)),
        memory: (used.memory > 0).then_some(used.memory),
        storage: None,
    }
}

fn since(at: Stamp) -> Duration {
    Duration::from_millis((Stamp::now().0 - at.0).max(0) as u64)
}

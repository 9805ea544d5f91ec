//! Columns and cells of job, node and event lists.

use agentaflow_api::end::EndReason;
use agentaflow_api::event::Event;
use agentaflow_api::ids::UserId;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::{GpuInstance, GpuStatus, Node, NodeStatus};
use agentaflow_console::format::{self, ago, dollars, money, one_line, seconds_since};
use agentaflow_console::labels::{
    cordoned_gpus, failure, gpu_number, gpus_allocated, gpus_requested, job_name, job_nodes,
    node_gpus, node_status,
};

use crate::list::Listing;
use crate::output::{Column, Side, WIDE};

pub(crate) const fn left<T>(title: &'static str, rank: u8, cell: fn(&T) -> String) -> Column<T> {
    Column { title, rank, side: Side::Left, plain: None, short: None, cell }
}

pub(crate) const fn right<T>(title: &'static str, rank: u8, cell: fn(&T) -> String) -> Column<T> {
    Column { title, rank, side: Side::Right, plain: None, short: None, cell }
}

/// Root of the queue tree.
pub(crate) const ROOT: &str = "root";

/// Priority of a job without a priority.
pub(crate) const DEFAULT_PRIORITY: i32 = 5;

pub(crate) const JOBS: Listing<Job> =
    Listing { columns: &JOBS_COLUMNS, name: Job::handle, empty: "No jobs found." };

const JOBS_COLUMNS: [Column<Job>; 12] = [
    left("JOB", 0, Job::handle),
    left("NAME", 1, short_job_name).plain(job_name),
    left("STATUS", 0, job_status),
    left("NODE", 2, job_nodes),
    left("GPUS", 4, job_gpus).plain(|job| gpus_of(job).to_string()),
    right("TIME", 1, |job: &Job| job.duration_seconds.map_or_else(String::new, format::short_time))
        .plain(|job| job.duration_seconds.map_or_else(String::new, |time| time.to_string())),
    right("COST", 5, |job: &Job| money(job.cost)).plain(|job| dollars(job.cost)),
    left("USER", WIDE, |job| job_user(job).unwrap_or_default()),
    left("QUEUE", WIDE, job_queue),
    right("PRIORITY", WIDE, |job| job.spec.priority.unwrap_or(DEFAULT_PRIORITY).to_string()),
    right("AGE", WIDE, |job: &Job| format::short_time(seconds_since(job.created_at).floor()))
        .plain(|job| seconds_since(job.created_at).to_string()),
    left("REASON", 3, job_reason).short(job_short_reason),
];

pub(crate) const NODES: Listing<Node> = Listing {
    columns: &NODES_COLUMNS,
    name: node_name,
    empty: "No nodes found. Run `agentaflow agent --server URL` on a GPU host to add one.",
};

pub(crate) const CLUSTER_NODES: Listing<Node> = Listing {
    empty: "No GPU nodes found. A GPU node offers `nvidia.com/gpu` and matches --node-selector of the scheduler. \
            Run `agentaflow doctor` to find the cause.",
    ..NODES
};

const NODES_COLUMNS: [Column<Node>; 9] = [
    left("NAME", 0, node_name),
    left("ID", 6, |node| node.node_id.clone()),
    left("STATUS", 0, node_status),
    left("GPUS", 0, node_gpus).plain(|node| node.spec.gpu_count.to_string()),
    right("GPUS FREE", 1, |node| free_gpus(node).to_string()),
    right("GPU MEMORY FREE", 3, |node: &Node| format::memory(free_gpu_memory(node)))
        .plain(|node| free_gpu_memory(node).to_string()),
    right("JOBS", 2, |node| node.current_jobs.to_string()),
    left("RUNTIMES", 4, |node| node.spec.runtimes.join(", ")),
    right("SEEN", 5, |node: &Node| node.last_seen.map_or_else(|| "never".to_owned(), ago))
        .plain(|node| node.last_seen.map_or_else(String::new, |at| at.to_string())),
];

pub(crate) const EVENTS: Listing<Event> = Listing {
    columns: &EVENTS_COLUMNS,
    name: |event| event.seq.to_string(),
    empty: "No events found.",
};

const EVENTS_COLUMNS: [Column<Event>; 5] = [
    left("TIME", 0, |event| event.at.to_string()),
    left("EVENT", 0, |event| event.kind.to_string()),
    right("JOB", 1, |event| event_job(event).unwrap_or_default()),
    left("NODE", 2, |event| event.node_id.clone().unwrap_or_default()),
    left("MESSAGE", 0, |event| one_line(&event.message)),
];

pub(crate) fn event_job(event: &Event) -> Option<String> {
    event.job.clone().or_else(|| event.job_id.map(|id| id.to_string()))
}

/// The name of a job, cut for a table.
pub(crate) fn short_job_name(job: &Job) -> String {
    cut_name(job_name(job))
}

/// A name cut to 32 characters.
pub(crate) fn cut_name(name: String) -> String {
    if name.chars().count() <= 32 {
        name
    } else {
        name.chars().take(31).collect::<String>() + "…"
    }
}

/// Owner of a job by name, or by id if the server hides the name. A cluster has no users.
pub(crate) fn job_user(job: &Job) -> Option<String> {
    let number = || (job.user_id != UserId(0)).then(|| job.user_id.to_string());
    job.username.clone().or_else(number)
}

pub(crate) fn job_queue(job: &Job) -> String {
    let named = job.spec.queue.as_deref().filter(|queue| !queue.is_empty());
    one_line(named.unwrap_or(ROOT))
}

/// GPUs allocated to a job, or requested while pending: `2`, `0.5`, `8 GiB`, `2 × 1g.5gb`.
fn job_gpus(job: &Job) -> String {
    let count = ((gpus_of(job) * 1000.0).round() / 1000.0).to_string();
    let text = match (count.as_str(), &job.spec.mig_profile, shared_memory(job)) {
        ("0", ..) => return "-".to_owned(),
        (_, Some(profile), _) => format!("{count} × {profile}"),
        ("1", None, Some(memory)) => format::memory(memory),
        (_, None, Some(memory)) => format!("{count} × {}", format::memory(memory)),
        (_, None, None) => count,
    };
    if job.simulated && !job.tasks.is_empty() { text + " SIMULATED" } else { text }
}

/// Requested GPU memory of a job that shares a GPU by memory.
fn shared_memory(job: &Job) -> Option<u64> {
    let spec = &job.spec;
    let memory = spec.gpu_memory_required.filter(|memory| *memory > 0)?;
    (spec.gpu_count.is_none() && spec.gpu_fraction.is_none()).then_some(memory)
}

fn gpus_of(job: &Job) -> f64 {
    if !job.status.is_final() && job.tasks.is_empty() {
        gpus_requested(job)
    } else {
        gpus_allocated(job)
    }
}

/// GPUs by number, `GPUs 0, 1`, or by name: `GPU-6f1c2a7e`, `2 × NVIDIA A100`.
pub(crate) fn gpus(names: &[String]) -> String {
    // A cluster prefixes the node, which the caller shows.
    let short = |name: &String| {
        let name = name.rsplit('/').next().unwrap_or_default();
        // The first part of a UUID is unique on a node.
        let end = if name.starts_with("GPU-") { name.len().min(12) } else { name.len() };
        name.get(..end).unwrap_or(name).to_owned()
    };
    let names: Vec<_> = names.iter().map(short).collect();
    let numbers = names.iter().all(|name| name.chars().all(|c| c.is_ascii_digit()));
    match (numbers, names.as_slice()) {
        (true, [name]) => format!("GPU {name}"),
        (true, names) => format!("GPUs {}", names.join(", ")),
        (false, names) => names.join(", "),
    }
}

pub(crate) fn job_status(job: &Job) -> String {
    job.status.as_str().to_owned()
}

pub(crate) fn node_name(node: &Node) -> String {
    node.spec.node_name.clone()
}

/// Pending reason or end reason.
fn job_reason(job: &Job) -> String {
    match job.status {
        JobStatus::Pending => one_line(job.wait_reason.as_deref().unwrap_or_default()),
        JobStatus::Failed => failure(job),
        JobStatus::Cancelled => {
            let reason = job.error_message.as_deref().or(job.end_reason.map(EndReason::as_str));
            one_line(reason.unwrap_or_default())
        }
        _ => String::new(),
    }
}

/// The REASON column where space is short.
fn job_short_reason(job: &Job) -> String {
    match (&job.pending_reason, job.status) {
        (Some(reason), JobStatus::Pending) => {
            let now = agentaflow_api::Stamp::now();
            one_line(&agentaflow_explain::pending::short_reason(reason, now))
        }
        _ => job_reason(job),
    }
}

/// Unused GPUs that accept new tasks.
pub(crate) fn free_gpus(node: &Node) -> usize {
    if node.status != NodeStatus::Active {
        return 0;
    }
    let free = |gpu: &GpuInstance| gpu.status.is_none_or(|status| status == GpuStatus::Available);
    let cordoned = cordoned_gpus(node);
    let gpus = node.spec.gpu_instances.iter().enumerate();
    gpus.filter(|(position, gpu)| !cordoned.contains(&gpu_number(*position, gpu)) && free(gpu))
        .count()
}

/// GPU memory available to new tasks, without that of cordoned GPUs.
pub(crate) fn free_gpu_memory(node: &Node) -> u64 {
    let cordoned = cordoned_gpus(node);
    match (node.status, cordoned.as_slice()) {
        (NodeStatus::Active, []) => node.gpu_memory_available,
        (NodeStatus::Active, _) => {
            let gpus = node.spec.gpu_instances.iter().enumerate();
            let schedulable =
                gpus.filter(|(position, gpu)| !cordoned.contains(&gpu_number(*position, gpu)));
            let free: u64 = schedulable.filter_map(|(_, gpu)| gpu.gpu_memory_available).sum();
            free.min(node.gpu_memory_available)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentaflow_api::job::TaskPlace;

    #[test]
    fn a_pending_job_shows_its_requested_gpus() {
        let mut job = Job::default();
        assert_eq!(job_gpus(&job), "-");
        job.spec.gpu_memory_required = Some(1024);
        assert_eq!(job_gpus(&job), "1 GiB");
        job.spec.gpu_count = Some(9);
        assert_eq!(job_gpus(&job), "9");
        job.spec.replicas = Some(2);
        assert_eq!(job_gpus(&job), "18");
        job.spec.gpu_fraction = Some(0.25);
        assert_eq!(job_gpus(&job), "0.5");
        job.status = JobStatus::Cancelled;
        assert_eq!(job_gpus(&job), "-");
        let mut job = Job::default();
        job.spec.mig_profile = Some("1g.5gb".to_owned());
        assert_eq!(job_gpus(&job), "1 × 1g.5gb");
        job.spec.gpu_count = Some(2);
        assert_eq!(job_gpus(&job), "2 × 1g.5gb");
    }

    #[test]
    fn a_shared_gpu_shows_its_fraction() {
        let on = |gpu: &str| TaskPlace { gpus: vec![gpu.to_owned()], ..TaskPlace::default() };
        let mut job = Job { tasks: vec![on("0"), on("0")], ..Job::default() };
        job.status = JobStatus::Running;
        job.spec.gpu_fraction = Some(0.25);
        assert_eq!(job_gpus(&job), "0.5");
        job.simulated = true;
        assert_eq!(job_gpus(&job), "0.5 SIMULATED");
        job.spec.gpu_fraction = None;
        job.spec.gpu_memory_required = Some(8192);
        assert_eq!(job_gpus(&job), "2 × 8 GiB SIMULATED");
        job.tasks.pop();
        assert_eq!(job_gpus(&job), "8 GiB SIMULATED");
        assert_eq!(gpus_allocated(&job).to_string(), "1");
    }

    #[test]
    fn gpu_names_are_short() {
        let message =
            |names: &[&str]| gpus(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(message(&["0"]), "GPU 0");
        assert_eq!(message(&["gpu-7/0", "gpu-7/1"]), "GPUs 0, 1");
        assert_eq!(message(&["n/GPU-6f1c2a7e-0000-0000-0000-000000000000"]), "GPU-6f1c2a7e");
        assert_eq!(message(&["2 × NVIDIA A100"]), "2 × NVIDIA A100");
        assert_eq!(message(&["GPU-ééééééééé"]), "GPU-éééé");
    }

    #[test]
    fn a_long_job_name_is_cut() {
        let mut job = Job::default();
        job.spec.job_name = Some("x".repeat(40));
        assert_eq!(short_job_name(&job).chars().count(), 32);
    }
}

//! `agentaflow describe`: details of a job, node, queue or user.

use std::fmt::Write as _;

use agentaflow_api::account::User;
use agentaflow_api::client::user::JobQuery;
use agentaflow_api::event::Event;
use agentaflow_api::explain::Explanation;
use agentaflow_api::job::{Job, JobSpec, JobStatus};
use agentaflow_api::node::{GpuInstance, GpuStatus, Node, PriceSource};
use agentaflow_api::queue::{Queue, QuotaSpec};
use agentaflow_console::format::{self, counted, one_line};
use agentaflow_console::labels::{self, cordoned_gpus, gpu_number};
use agentaflow_units::{did_you_mean, nearest};
use anyhow::{Context as _, Result};
use clap_complete::engine::ArgValueCandidates;
use serde::Serialize;

use super::{explain, status};
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::failure::usage;
use crate::list::OneFormat;
use crate::listing::{self, JOBS, left, right};
use crate::nearest::not_found;
use crate::output::{self, Column};

/// Latest events shown for a job.
const SHOWN_EVENTS: usize = 15;

/// Show details of a job, node, queue or user
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Resource kind (workload, node, queue or user), or a job
    #[arg(value_name = "KIND|JOB", add = ArgValueCandidates::new(candidates::kinds_and_jobs))]
    kind_or_job: String,
    /// Resource name; jobs of a server also by number
    #[arg(add = ArgValueCandidates::new(candidates::names_of_kind))]
    name: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ResourceKind {
    #[value(aliases = ["job", "jobs", "workloads", "gw"])]
    Workload,
    #[value(aliases = ["nodes", "gn"])]
    Node,
    #[value(aliases = ["queues", "gq"])]
    Queue,
    #[value(alias = "users")]
    User,
}

impl Args {
    /// The kind and name of the resource; a single operand is a job.
    fn resource(&self) -> Result<(ResourceKind, &str)> {
        let kind = |word: &str| <ResourceKind as clap::ValueEnum>::from_str(word, false);
        // The kubectl form `node/gpu-7`.
        if let (None, Some((Ok(kind), name))) =
            (&self.name, self.kind_or_job.split_once('/').map(|(word, name)| (kind(word), name)))
        {
            return Ok((kind, name));
        }
        match (kind(&self.kind_or_job), &self.name) {
            (Ok(kind), Some(name)) => Ok((kind, name)),
            (Ok(_), None) => {
                Err(usage(format!("missing name: agentaflow describe {} NAME", self.kind_or_job)))
            }
            (Err(_), None) => Ok((ResourceKind::Workload, &self.kind_or_job)),
            (Err(_), Some(_)) => {
                let kinds = ["workload", "job", "node", "queue", "user"];
                let near = nearest(&self.kind_or_job, kinds);
                Err(usage(format!(
                    "unknown kind `{}`{}: use workload, node, queue or user",
                    self.kind_or_job,
                    did_you_mean(near)
                )))
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct JobDetails {
    job: Job,
    explanation: Option<Explanation>,
    events: Vec<Event>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let (kind, name) = args.resource()?;
        match kind {
            ResourceKind::Workload => {
                let job = backend.job(name).await;
                let job = job.with_context(|| format!("cannot describe job {name}"))?;
                let explanation = backend.explain(name).await.ok();
                let events = backend.events(name).await.unwrap_or_default();
                let users = backend.users().await;
                let owner = users.iter().find(|user| user.id == job.user_id);
                let details = JobDetails { job, explanation, events };
                args.output.print(&details, |details| Ok(job_text(details, owner)))
            }
            ResourceKind::Node => {
                let nodes = backend.nodes().await?;
                let matches = |node: &&Node| node.spec.node_name == *name || node.node_id == *name;
                let node = nodes.iter().find(matches).ok_or_else(|| {
                    let names: Vec<_> =
                        nodes.iter().map(|node| node.spec.node_name.clone()).collect();
                    not_found("node", name, &names)
                })?;
                let placed = vec![JobStatus::Running, JobStatus::Scheduled];
                let query = JobQuery { status: placed, limit: Some(1000), skip: None };
                let mut jobs = backend.jobs(&query).await.unwrap_or_default();
                jobs.retain(|job| job.tasks.iter().any(|task| task.node_id == node.node_id));
                args.output.print(node, |node| Ok(node_text(node, &jobs)))
            }
            ResourceKind::Queue => {
                let queues = backend.queues().await?;
                let queue =
                    queues.iter().find(|queue| queue.spec.name == *name).ok_or_else(|| {
                        let names: Vec<_> =
                            queues.iter().map(|queue| queue.spec.name.clone()).collect();
                        not_found("queue", name, &names)
                    })?;
                args.output.print(queue, |queue| Ok(queue_text(queue)))
            }
            ResourceKind::User => {
                let client = args.connect.client()?;
                let me: User = client.get("/auth/me").json().await?;
                let all = if me.username == *name || me.id.to_string() == *name {
                    vec![me]
                } else {
                    client.get("/users").json::<Vec<User>>().await?
                };
                let matches = |user: &&User| user.username == *name || user.id.to_string() == *name;
                let user = all.iter().find(matches).ok_or_else(|| {
                    let names: Vec<_> = all.iter().map(|user| user.username.clone()).collect();
                    not_found("user", name, &names)
                })?;
                args.output.print(user, |user| Ok(user_text(user)))
            }
        }
    })
}

fn job_text(details: &JobDetails, owner: Option<&User>) -> String {
    let job = &details.job;
    let mut text = status::details(job);
    for (name, value) in spec_lines(job, owner) {
        text.push_str(&output::wrapped(&one_line(&value), &format!("{name:<11} "), "            "));
    }
    let unfinished = !job.status.is_final();
    let explained = unfinished || job.error_message.is_some();
    if let Some(explanation) = details.explanation.as_ref().filter(|_| explained) {
        text.push('\n');
        text.push_str(&explain::render(explanation));
    }
    if !details.events.is_empty() {
        let from = details.events.len().saturating_sub(SHOWN_EVENTS);
        text.push('\n');
        text.push_str(&output::table(&JOB_EVENTS, &details.events[from..], Some(output::width())));
    }
    text
}

const JOB_EVENTS: [Column<Event>; 3] = [
    left("TIME", 0, |event| event.at.to_string()),
    left("EVENT", 0, |event| event.kind.to_string()),
    left("MESSAGE", 0, |event| one_line(&event.message)),
];

/// Fields of the spec, with effective defaults.
fn spec_lines(job: &Job, owner: Option<&User>) -> Vec<(&'static str, String)> {
    // Names every field, so that a new field does not compile before it is shown or listed here.
    let JobSpec {
        docker_image,
        docker_tag,
        command,
        working_dir,
        volumes,
        env,
        queue,
        priority,
        preemptible,
        timeout_seconds,
        estimated_duration_seconds,
        max_retries,
        // Shown by `status::details`.
        job_name: _,
        // Shown by `requests`.
        gpu_count: _,
        gpu_type: _,
        gpu_fraction: _,
        gpu_memory_required: _,
        mig_profile: _,
        cpu_cores_required: _,
        memory_required: _,
        replicas: _,
        // Shown by `-o json` only.
        job_type: _,
        docker_registry: _,
        docker_username: _,
        job_config: _,
        input_data: _,
        storage_required: _,
        endpoint_id: _,
        exclusive: _,
        runtime: _,
        on_node_lost: _,
        stop_grace_seconds: _,
        shm_size: _,
        read_only: _,
    } = &job.spec;
    let mut lines = Vec::new();
    let mut add = |name, value: Option<String>| {
        lines.extend(value.filter(|value| !value.is_empty()).map(|value| (name, value)));
    };
    let time = |seconds: u64| format::short_time(seconds as f64);
    add("Requests", Some(requests(job).join(", ")));
    add(
        "Image",
        docker_image.as_ref().map(|image| match docker_tag {
            Some(tag) => format!("{image}:{tag}"),
            None => image.clone(),
        }),
    );
    add("Command", command.as_ref().map(|words| shell_words(words)));
    add("Directory", working_dir.clone());
    let volumes = volumes.iter().map(|volume| {
        let only = if volume.read_only { ":ro" } else { "" };
        format!("{}:{}{only}", volume.source, volume.target)
    });
    add("Volumes", Some(volumes.collect::<Vec<_>>().join(", ")));
    // Names only: a value may be secret.
    add("Variables", Some(env.keys().cloned().collect::<Vec<_>>().join(", ")));
    add("Secrets", Some(job.secret_env_names.join(", ")));
    let default = owner.map(|user| user.default_queue.clone()).filter(|queue| !queue.is_empty());
    add("Queue", queue.clone().or(default).or_else(|| Some(listing::job_queue(job))));
    add("User", listing::job_user(job));
    add("Priority", Some(priority.unwrap_or(listing::DEFAULT_PRIORITY).to_string()));
    add("Preemptible", preemptible.then(|| "yes".to_owned()));
    add("Timeout", timeout_seconds.map(time));
    add("Estimate", estimated_duration_seconds.map(time));
    let retries = max_retries.filter(|most| *most > 0);
    add("Retries", retries.map(|most| format!("{} of {most} used", job.retries_used)));
    lines
}

/// Quotes a command for a shell.
fn shell_words(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let word = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn user_text(user: &User) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<10} {}", one_line(&value));
        }
    };
    add("User", format!("{} {}", user.id, user.username));
    add("Email", user.email.clone().unwrap_or_default());
    add("Role", format!("{:?}", user.role).to_lowercase());
    add("Grants", user.grants.join(", "));
    add("Active", if user.active { "yes" } else { "no" }.to_owned());
    add("Queue", user.default_queue.clone());
    let prepaid = if user.prepaid { ", prepaid: jobs stay pending at $0" } else { "" };
    add("Balance", format!("{}{prepaid}", format::money(user.balance)));
    let limit = user.spending_limit.map(|most| format!(" of {}", format::money(most)));
    let limit = limit.unwrap_or_default();
    add("Spent", format!("{}{limit} this month", format::money(user.spent_this_month)));
    add("Created", format::ago(user.created_at));
    text
}

/// Requested resources.
fn requests(job: &Job) -> Vec<String> {
    let spec = &job.spec;
    let mut requests = Vec::new();
    if let Some(count) = spec.gpu_count {
        requests.push(match (&spec.mig_profile, &spec.gpu_type) {
            (Some(profile), _) => counted(count, &format!("{profile} slice")),
            (None, Some(model)) => counted(count, &format!("{model} GPU")),
            (None, None) => counted(count, "GPU"),
        });
    }
    requests.extend(spec.gpu_fraction.map(|share| format!("{share} of a GPU")));
    let gpu_memory = spec.gpu_memory_required.filter(|memory| *memory > 0);
    requests.extend(gpu_memory.map(|memory| format!("{} per GPU", format::memory(memory))));
    requests.extend(spec.cpu_cores_required.map(|cores| counted(cores, "CPU core")));
    requests
        .extend(spec.memory_required.map(|memory| format!("{} of memory", format::memory(memory))));
    requests.extend(
        spec.replicas.filter(|count| *count > 1).map(|count| format!("gang of {count} tasks")),
    );
    requests
}

fn node_text(node: &Node, jobs: &[Job]) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<10} {}", one_line(&value));
        }
    };
    let spec = &node.spec;
    add("Node", spec.node_name.clone());
    add("Status", labels::node_status(node));
    let free = listing::free_gpus(node);
    let free = if node.spec.gpu_count == 0 { String::new() } else { format!(", {free} free") };
    add("GPUs", labels::node_gpus(node) + &free);
    add("Driver", spec.gpu_driver_version.clone().unwrap_or_default());
    add("CUDA", spec.gpu_cuda_version.clone().unwrap_or_default());
    add("CPU", format!("{} cores, {} free", spec.cpu_cores, node.cpu_cores_available));
    let free = format::memory(node.memory_available);
    add("Memory", format!("{}, {free} free", format::memory(spec.memory_total)));
    add("Jobs", node.current_jobs.to_string());
    let source = if node.price_source == PriceSource::Unknown {
        String::new()
    } else {
        format!(" ({})", node.price_source)
    };
    add("Price", format!("{} per GPU hour{source}", spec.price_per_gpu_hour));
    add("Runtimes", spec.runtimes.join(", "));
    add("Last seen", node.last_seen.map_or_else(String::new, format::ago));
    let labels: Vec<_> = spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if !labels.is_empty() {
        let labels = one_line(&labels.join(" "));
        text.push_str(&output::wrapped(&labels, "Labels     ", "           "));
    }
    if !spec.gpu_instances.is_empty() {
        text.push('\n');
        let cordoned = cordoned_gpus(node);
        let gpus = spec.gpu_instances.iter().enumerate().map(|(position, gpu)| GpuRow {
            gpu: gpu.clone(),
            cordoned: cordoned.contains(&gpu_number(position, gpu)),
        });
        let gpus: Vec<GpuRow> = gpus.collect();
        text.push_str(&output::table(&GPU_COLUMNS, &gpus, Some(output::width())));
    }
    if !jobs.is_empty() {
        text.push('\n');
        text.push_str(&output::table(JOBS.columns, jobs, Some(output::width())));
    }
    text
}

struct GpuRow {
    gpu: GpuInstance,
    cordoned: bool,
}

fn gpu_status(row: &GpuRow) -> String {
    if !row.cordoned {
        return row.gpu.status.map_or("", GpuStatus::as_str).to_owned();
    }
    let status = row.gpu.status.filter(|status| *status != GpuStatus::Maintenance);
    format!("{}, cordoned", status.unwrap_or(GpuStatus::Available).as_str())
}

const GPU_COLUMNS: [Column<GpuRow>; 8] = [
    right("GPU", 0, |row| row.gpu.gpu_index.map_or_else(String::new, |index| index.to_string())),
    left("MODEL", 1, |row| {
        row.gpu.gpu_name.clone().or_else(|| row.gpu.gpu_type.clone()).unwrap_or_default()
    }),
    left("STATUS", 0, gpu_status),
    right("USE", 0, |row| {
        row.gpu.utilization.map_or_else(String::new, |use_| format!("{use_:.0} %"))
    }),
    right("MEMORY", 2, |row| row.gpu.gpu_memory.map_or_else(String::new, format::memory)),
    right("FREE", 1, |row| row.gpu.gpu_memory_available.map_or_else(String::new, format::memory)),
    right("TEMPERATURE", 3, |row| {
        row.gpu.temperature.map_or_else(String::new, |celsius| format!("{celsius:.0} °C"))
    }),
    right("POWER", 4, |row| {
        row.gpu.power_usage.map_or_else(String::new, |watts| format!("{watts:.0} W"))
    }),
];

fn queue_text(queue: &Queue) -> String {
    let spec = &queue.spec;
    let mut text = String::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<12} {}", one_line(&value));
        }
    };
    add("Queue", spec.name.clone());
    add("Parent", super::get::parent(queue));
    add("Weight", spec.weight.unwrap_or(100).to_string());
    add("Guaranteed", quota(&spec.guaranteed));
    add("Limit", quota(&spec.limit));
    add("Borrows", if spec.borrow.unwrap_or(true) { "yes" } else { "no" }.to_owned());
    add("Priority", spec.max_priority.map_or_else(String::new, |most| format!("at most {most}")));
    add("Users", spec.users.join(", "));
    let memory = format::memory(queue.memory_used);
    let gpus = counted(queue.gpus_used, "GPU");
    let cores = counted(queue.cpu_used, "CPU core");
    add("In use", format!("{gpus}, {cores}, {memory} of memory"));
    add("Jobs", format!("{} running, {} pending", queue.running, queue.pending));
    text
}

fn quota(quota: &QuotaSpec) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(quota.gpus.map(|gpus| counted(gpus, "GPU")));
    parts.extend(quota.gpu_types.iter().map(|(model, gpus)| format!("{gpus} {model}")));
    parts.extend(quota.cpu_cores.map(|cores| counted(cores, "CPU core")));
    parts.extend(quota.memory.map(|memory| format!("{} of memory", format::memory(memory))));
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

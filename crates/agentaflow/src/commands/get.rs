//! `agentaflow get`: lists of jobs, nodes, queues and users.

use agentaflow_api::account::User;
use agentaflow_api::client::user::JobQuery;
use agentaflow_api::job::JobStatus;
use agentaflow_api::queue::Queue;
use agentaflow_console::format::{self, dollars, money};
use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};

use crate::amount;
use crate::backend::Backend;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::list::{ListArgs, Listing};
use crate::listing::{CLUSTER_NODES, JOBS, NODES, ROOT, left, right};
use crate::nearest::must_exist;
use crate::output::Column;
use clap_complete::engine::ArgValueCandidates;

/// List nodes, workloads, queues or users
#[derive(Debug, clap::Args)]
#[command(after_help = "Aliases: workload, jobs, job, gw; node, gn; queue, gq; user.")]
pub(crate) struct Args {
    #[command(subcommand)]
    resource: Resource,
}

// Hidden aliases: shells complete one name per command, and would choose the first in alphabetical order.
#[derive(Debug, clap::Subcommand)]
enum Resource {
    #[command(aliases = ["workload", "jobs", "job", "gw"])]
    Workloads(JobsArgs),
    #[command(aliases = ["node", "gn"])]
    Nodes(NodesArgs),
    #[command(aliases = ["queue", "gq"])]
    Queues(QueuesArgs),
    #[command(alias = "user")]
    Users(UsersArgs),
}

/// Jobs read for a selector or an order.
const MAX_JOBS: u64 = 100_000;

/// List your jobs; admins see all jobs
#[derive(Debug, clap::Args)]
pub(crate) struct JobsArgs {
    /// Job numbers or names
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    names: Vec<String>,
    /// Filter by status
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', value_parser = statuses())]
    status: Vec<JobStatus>,
    /// Maximum number of jobs: the newest, or the first after --selector and --sort-by
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = amount::positive::<u64>)]
    limit: u64,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

/// List nodes and their GPUs
#[derive(Debug, clap::Args)]
pub(crate) struct NodesArgs {
    /// Node names
    #[arg(value_name = "NODE", add = ArgValueCandidates::new(candidates::nodes))]
    names: Vec<String>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

/// List queues and their usage
#[derive(Debug, clap::Args)]
pub(crate) struct QueuesArgs {
    /// Queue names
    #[arg(value_name = "QUEUE", add = ArgValueCandidates::new(candidates::queues))]
    names: Vec<String>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

/// List the users of a server (admins only)
#[derive(Debug, clap::Args)]
pub(crate) struct UsersArgs {
    /// User names
    #[arg(value_name = "USER", add = ArgValueCandidates::new(candidates::users))]
    names: Vec<String>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.resource {
        Resource::Workloads(args) => jobs(args),
        Resource::Nodes(args) => nodes(args),
        Resource::Queues(args) => queues(args),
        Resource::Users(args) => users(args),
    }
}

pub(crate) fn jobs(args: &JobsArgs) -> Result<()> {
    // One more than shown, to detect that there are more.
    let limit = if args.list.needs_all_rows() { MAX_JOBS } else { args.limit.saturating_add(1) };
    let query = JobQuery { status: args.status.clone(), limit: Some(limit), skip: None };
    let most = if args.names.is_empty() { args.limit as usize } else { usize::MAX };
    block_on(async {
        let backend = args.connect.backend().await?;
        let fetch = async || {
            let mut jobs = Vec::new();
            if args.names.is_empty() {
                jobs = backend.jobs(&query).await?;
            }
            for name in &args.names {
                jobs.push(backend.job(name).await?);
            }
            if args.list.uses_column("queue") {
                backend.fill_queues(&mut jobs).await;
            }
            Ok(jobs)
        };
        args.list.show_limited(&JOBS, most, fetch).await
    })
}

pub(crate) fn nodes(args: &NodesArgs) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let fetch =
            async || filter_by_name("node", &args.names, backend.nodes().await?, NODES.name);
        let listing = match &backend {
            Backend::Server(_) => &NODES,
            Backend::Cluster(_) => &CLUSTER_NODES,
        };
        args.list.show(listing, fetch).await
    })
}

pub(crate) fn queues(args: &QueuesArgs) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let fetch =
            async || filter_by_name("queue", &args.names, backend.queues().await?, QUEUES.name);
        args.list.show(&QUEUES, fetch).await
    })
}

pub(crate) fn users(args: &UsersArgs) -> Result<()> {
    let client = args.connect.client()?;
    block_on(async {
        let fetch = async || {
            filter_by_name("user", &args.names, client.get("/users").json().await?, USERS.name)
        };
        args.list.show(&USERS, fetch).await
    })
}

/// The rows with these names, which must exist; all rows without names.
fn filter_by_name<T>(
    kind: &str,
    names: &[String],
    mut all: Vec<T>,
    name: fn(&T) -> String,
) -> Result<Vec<T>> {
    must_exist(kind, names, &all.iter().map(name).collect::<Vec<_>>())?;
    all.retain(|one| names.is_empty() || names.contains(&name(one)));
    Ok(all)
}

fn statuses() -> impl clap::builder::TypedValueParser<Value = JobStatus> {
    PossibleValuesParser::new(JobStatus::ALL.map(JobStatus::as_str)).map(|word| {
        let known = JobStatus::ALL.into_iter().find(|status| status.as_str() == word);
        known.unwrap_or_default()
    })
}

const QUEUES: Listing<Queue> = Listing {
    columns: &QUEUE_COLUMNS,
    name: |queue| queue.spec.name.clone(),
    empty: "No queues found. Run `agentaflow queue set NAME` to create one.",
};

const QUEUE_COLUMNS: [Column<Queue>; 9] = [
    left("NAME", 0, |queue| queue.spec.name.clone()),
    left("PARENT", 4, parent),
    right("WEIGHT", 5, |queue| queue.spec.weight.unwrap_or(100).to_string()),
    right("GPUS USED", 0, |queue| queue.gpus_used.to_string()),
    right("GUARANTEED", 1, |queue: &Queue| or_dash(queue.spec.guaranteed.gpus))
        .plain(|queue| or_empty(queue.spec.guaranteed.gpus)),
    right("LIMIT", 1, |queue: &Queue| or_dash(queue.spec.limit.gpus))
        .plain(|queue| or_empty(queue.spec.limit.gpus)),
    right("RUNNING", 2, |queue| queue.running.to_string()),
    right("PENDING", 2, |queue| queue.pending.to_string()),
    right("MEMORY USED", 6, |queue: &Queue| format::memory(queue.memory_used))
        .plain(|queue| queue.memory_used.to_string()),
];

const USERS: Listing<User> = Listing {
    columns: &USER_COLUMNS,
    name: |user| user.username.clone(),
    empty: "No users found.",
};

const USER_COLUMNS: [Column<User>; 7] = [
    right("ID", 1, |user| user.id.to_string()),
    left("NAME", 0, |user| user.username.clone()),
    left("ROLE", 0, |user| format!("{:?}", user.role).to_lowercase()),
    left("ACTIVE", 2, |user| if user.active { "yes" } else { "no" }.to_owned()),
    left("QUEUE", 3, |user| user.default_queue.clone()),
    right("SPENT THIS MONTH", 1, |user: &User| money(user.spent_this_month))
        .plain(|user| dollars(user.spent_this_month)),
    right("LIMIT", 2, |user: &User| or_dash(user.spending_limit))
        .plain(|user| user.spending_limit.map_or_else(String::new, dollars)),
];

/// Parent of a queue; empty for the root.
pub(crate) fn parent(queue: &Queue) -> String {
    let named = queue.spec.parent.clone().filter(|parent| !parent.is_empty());
    let root = || if queue.spec.name == ROOT { String::new() } else { ROOT.to_owned() };
    named.unwrap_or_else(root)
}

fn or_empty(amount: Option<impl ToString>) -> String {
    amount.map_or_else(String::new, |amount| amount.to_string())
}

fn or_dash(amount: Option<impl ToString>) -> String {
    amount.map_or_else(|| "-".to_owned(), |amount| amount.to_string())
}

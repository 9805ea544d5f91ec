//! `agentaflow queue`: manages queues.

use std::collections::BTreeMap;

use agentaflow_api::GpuAmount;
use agentaflow_api::queue::{QueueSpec, QuotaSpec};
use anyhow::{Context as _, Result};
use clap_complete::engine::ArgValueCandidates;

use super::get;
use crate::amount;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::nearest::must_exist;
use crate::output;

/// Manage queues
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, clap::Subcommand)]
enum QueueCommand {
    List(get::QueuesArgs),
    Set(Box<SetArgs>),
    Delete(DeleteArgs),
}

/// Create or update a queue; unset options keep their values
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// Queue name
    #[arg(add = ArgValueCandidates::new(candidates::queues))]
    name: String,
    /// Parent queue [default: root]
    #[arg(long, value_name = "QUEUE")]
    parent: Option<String>,
    /// Fair-share weight among its siblings [default: 100]
    #[arg(long, value_name = "NUMBER", value_parser = amount::positive::<u32>)]
    weight: Option<u32>,
    /// Guaranteed GPUs, reclaimed from borrowers when needed
    #[arg(long, value_name = "GPUS", value_parser = amount::quota)]
    guaranteed: Option<GpuAmount>,
    /// Maximum number of GPUs
    #[arg(long, value_name = "GPUS", value_parser = amount::quota)]
    limit: Option<GpuAmount>,
    /// Maximum number of GPUs of a model; repeatable
    #[arg(long, value_name = "MODEL=GPUS", value_parser = amount::pair)]
    limit_model: Vec<(String, String)>,
    /// Allow borrowing unused quota of other queues
    #[arg(long, value_name = "true|false")]
    borrow: Option<bool>,
    /// Maximum priority of its jobs
    #[arg(long, value_name = "NUMBER", value_parser = amount::priority::<u32>)]
    max_priority: Option<u32>,
    /// Restrict to these users, or namespaces in Kubernetes; repeatable
    #[arg(long = "user", visible_alias = "for-namespace", value_name = "NAME")]
    users: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Delete an unused queue
#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// Queue name
    #[arg(add = ArgValueCandidates::new(candidates::queues))]
    name: String,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        QueueCommand::List(args) => get::queues(args),
        QueueCommand::Set(args) => set(args),
        QueueCommand::Delete(args) => block_on(async {
            let backend = args.connect.backend().await?;
            let names: Vec<_> =
                backend.queues().await?.into_iter().map(|queue| queue.spec.name).collect();
            must_exist("queue", std::slice::from_ref(&args.name), &names)?;
            let deleted = backend.delete_queue(&args.name).await;
            deleted.with_context(|| format!("cannot delete queue {}", args.name))?;
            output::print(&format!("queue {} deleted\n", args.name))
        }),
    }
}

fn set(args: &SetArgs) -> Result<()> {
    if args.name.is_empty() {
        return Err(crate::failure::usage("the queue name is empty"));
    }
    let mut models = BTreeMap::new();
    for (model, gpus) in &args.limit_model {
        models.insert(model.clone(), amount::quota(gpus).map_err(crate::failure::usage)?);
    }
    block_on(async {
        let backend = args.connect.backend().await?;
        let known = backend.queues().await?.into_iter().find(|queue| queue.spec.name == args.name);
        let is_new = known.is_none();
        let old = known.map(|queue| queue.spec).unwrap_or_default();
        let queue = QueueSpec {
            name: args.name.clone(),
            parent: args.parent.clone().or(old.parent),
            weight: args.weight.or(old.weight),
            guaranteed: QuotaSpec {
                gpus: args.guaranteed.or(old.guaranteed.gpus),
                ..old.guaranteed
            },
            limit: QuotaSpec {
                gpus: args.limit.or(old.limit.gpus),
                gpu_types: if models.is_empty() { old.limit.gpu_types.clone() } else { models },
                ..old.limit
            },
            borrow: args.borrow.or(old.borrow),
            max_priority: args.max_priority.or(old.max_priority),
            users: if args.users.is_empty() { old.users } else { args.users.clone() },
        };
        let queue = backend.set_queue(&queue).await;
        let queue = queue.with_context(|| format!("cannot set queue {}", args.name))?;
        let verb = if is_new { "created" } else { "updated" };
        output::print(&format!("queue {} {verb}\n", queue.spec.name))
    })
}

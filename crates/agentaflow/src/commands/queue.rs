//! `agentaflow queue`: shares of the cluster for some people.

use std::collections::BTreeMap;

use agentaflow_api::Cores;
use agentaflow_api::queue::{QueueSpec, QuotaSpec};
use anyhow::{Context as _, Result};
use clap_complete::engine::ArgValueCandidates;

use super::get;
use crate::amount;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::nearest::must_exist;
use crate::output;

/// List, make, change or remove queues
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    List(get::QueuesArgs),
    Set(Box<SetArgs>),
    Delete(DeleteArgs),
}

/// Make a queue, or change what is named of one
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// Its name
    #[arg(add = ArgValueCandidates::new(candidates::queues))]
    name: String,
    /// The queue that it is part of [default: root]
    #[arg(long, value_name = "QUEUE")]
    parent: Option<String>,
    /// Its weight among its siblings when GPUs are short [default: 100]
    #[arg(long, value_name = "NUMBER", value_parser = amount::some::<u32>)]
    weight: Option<u32>,
    /// GPUs that it gets back from borrowers whenever it needs them
    #[arg(long, value_name = "GPUS", value_parser = amount::quota)]
    guaranteed: Option<Cores>,
    /// GPUs that it never exceeds
    #[arg(long, value_name = "GPUS", value_parser = amount::quota)]
    limit: Option<Cores>,
    /// GPUs of one model that it never exceeds; may be given several times
    #[arg(long, value_name = "MODEL=GPUS", value_parser = amount::pair)]
    limit_model: Vec<(String, String)>,
    /// May use more than guaranteed while others do not need it
    #[arg(long, value_name = "true|false")]
    borrow: Option<bool>,
    /// The highest priority of its jobs
    #[arg(long, value_name = "NUMBER", value_parser = amount::priority)]
    max_priority: Option<u32>,
    /// Only these users, or namespaces in Kubernetes, may use it
    #[arg(long = "user", visible_alias = "for-namespace", value_name = "NAME")]
    users: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Remove a queue that nobody uses
#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// Its name
    #[arg(add = ArgValueCandidates::new(candidates::queues))]
    name: String,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::List(args) => get::queues(args),
        What::Set(args) => set(args),
        What::Delete(args) => block_on(async {
            let backend = args.connect.backend().await?;
            let names: Vec<_> =
                backend.queues().await?.into_iter().map(|queue| queue.spec.name).collect();
            must_exist("queue", std::slice::from_ref(&args.name), &names)?;
            let removed = backend.delete_queue(&args.name).await;
            removed.with_context(|| format!("cannot remove queue {}", args.name))?;
            output::print(&format!("queue {} removed\n", args.name))
        }),
    }
}

fn set(args: &SetArgs) -> Result<()> {
    if args.name.is_empty() {
        return Err(crate::failure::usage("the name of the queue is empty"));
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
        let word = if is_new { "made" } else { "changed" };
        output::print(&format!("queue {} {word}\n", queue.spec.name))
    })
}

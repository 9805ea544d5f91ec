//! `agentaflow exclusive`: lets agentaflow alone place GPU pods.

use std::fmt::Write as _;

use agentaflow_console::format::counted;
use agentaflow_kube_client::{Exclusive, ForeignPod, Scope};
use agentaflow_kube_core::names;
use anyhow::Result;

use crate::connect::{Connect, block_on};
use crate::output;

/// Foreign pods listed by name.
const MAX_LISTED: usize = 10;

const EXAMPLES: &str = "\
Examples:
  agentaflow exclusive on
      All GPU pods of the cluster, except kube-system and daemon sets
  agentaflow exclusive on --namespaces team=research
      GPU pods of namespaces with this label
  agentaflow exclusive status

Two schedulers that place pods on the same GPUs overcommit them for a moment, and the kubelet rejects the later pods. `on`
lets the webhook assign GPU pods to agentaflow, and an admission policy refuse GPU pods of other schedulers. Existing
pods keep their scheduler.";

/// Let agentaflow alone place the GPU pods of a Kubernetes cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ExclusiveCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ExclusiveCommand {
    On(OnArgs),
    Off(OffArgs),
    Status(StatusArgs),
}

/// Assign all GPU pods to agentaflow, and refuse GPU pods of other schedulers
#[derive(Debug, clap::Args)]
struct OnArgs {
    /// Only in namespaces with this label [default: all except kube-system]
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    namespaces: Option<(String, String)>,
    /// schedulerName of agentaflow
    #[arg(long, value_name = "NAME", default_value = names::SCHEDULER_NAME)]
    scheduler_name: String,
    #[command(flatten)]
    connect: Connect,
}

/// Admit GPU pods of other schedulers again
#[derive(Debug, clap::Args)]
struct OffArgs {
    #[command(flatten)]
    connect: Connect,
}

/// Show the state, and GPU pods of other schedulers
#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// schedulerName of agentaflow
    #[arg(long, value_name = "NAME", default_value = names::SCHEDULER_NAME)]
    scheduler_name: String,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        match &args.command {
            ExclusiveCommand::On(args) => {
                let cluster = args.connect.only_cluster().await?;
                let scope = Scope { label: args.namespaces.clone() };
                cluster.enable_exclusive(&scope, &args.scheduler_name).await?;
                output::print(&text(&cluster.exclusive(&args.scheduler_name).await?))
            }
            ExclusiveCommand::Off(args) => {
                args.connect.only_cluster().await?.disable_exclusive().await?;
                output::print("exclusive use is off\n")
            }
            ExclusiveCommand::Status(args) => {
                let cluster = args.connect.only_cluster().await?;
                output::print(&text(&cluster.exclusive(&args.scheduler_name).await?))
            }
        }
    })
}

fn text(state: &Exclusive) -> String {
    let Exclusive { enforced, assigned, foreign } = state;
    let word = if *enforced { "on" } else { "off" };
    let mut text = format!("exclusive use is {word}\n");
    if *enforced && *assigned != Some(true) {
        text.push_str(
            "The webhook does not assign GPU pods: pods that name another scheduler are refused. \
             Run `kubectl apply -f deploy/kubernetes`, then `agentaflow exclusive on`.\n",
        );
    }
    let (pending, running): (Vec<_>, Vec<_>) = foreign.iter().partition(|pod| pod.node.is_none());
    let of_others = |count| format!("{} of other schedulers", counted(count, "GPU pod"));
    for (pods, state) in [(pending, "pending"), (running, "on nodes")] {
        if !pods.is_empty() {
            let _ = writeln!(text, "{} {state}:", of_others(pods.len()));
            pods.iter().take(MAX_LISTED).for_each(|pod| list(&mut text, pod));
        }
        if pods.len() > MAX_LISTED {
            let _ = writeln!(text, "  and {} more", pods.len() - MAX_LISTED);
        }
    }
    if *enforced && foreign.iter().any(|pod| pod.node.is_none()) {
        text.push_str("Delete the pending pods: their owners create them again for agentaflow.\n");
    }
    text
}

fn list(text: &mut String, pod: &ForeignPod) {
    let node = pod.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let _ = writeln!(text, "  {} ({}){node}", pod.name, pod.scheduler);
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("use KEY=VALUE, such as team=research".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_names_missing_parts_and_foreign_pods() {
        let foreign = |name: &str, node: Option<&str>| ForeignPod {
            name: name.to_owned(),
            scheduler: "default-scheduler".to_owned(),
            node: node.map(str::to_owned),
        };
        let off = Exclusive { enforced: false, assigned: None, foreign: Vec::new() };
        assert_eq!(text(&off), "exclusive use is off\n");
        let on = Exclusive {
            enforced: true,
            assigned: Some(true),
            foreign: vec![foreign("a/p", None), foreign("a/q", Some("gpu-7"))],
        };
        let expected = "exclusive use is on\n\
            1 GPU pod of other schedulers pending:\n  a/p (default-scheduler)\n\
            1 GPU pod of other schedulers on nodes:\n  a/q (default-scheduler) on gpu-7\n\
            Delete the pending pods: their owners create them again for agentaflow.\n";
        assert_eq!(text(&on), expected);
        let bare = Exclusive { enforced: true, assigned: None, foreign: Vec::new() };
        assert!(text(&bare).contains("The webhook does not assign GPU pods"));
    }
}

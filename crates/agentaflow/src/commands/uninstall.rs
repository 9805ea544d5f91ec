//! `agentaflow uninstall`: removes agentaflow from a Kubernetes cluster.

use agentaflow_console::format::counted;
use agentaflow_kube_client::{Uninstall, UninstallStep};
use anyhow::Result;

use crate::connect::{Connect, block_on};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  agentaflow uninstall --dry-run
      List the changes
  agentaflow uninstall
      Remove programs, webhooks, policies, roles, priority classes, and the labels and annotations of nodes and pods
  agentaflow uninstall --delete-workloads
      Also delete the custom resource definitions with all GPUWorkloads, their pods and all queues, and the namespace

Running pods continue. Pending pods with `schedulerName: agentaflow` wait until a scheduler of that name runs. Jobs that wait
suspended stay suspended; the output has the command that resumes each. Labels and annotations that administrators set
(price, maintenance) stay.";

/// Remove agentaflow from a Kubernetes cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// List the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Also delete all GPUWorkloads with their pods, all GPUQueues, the CRDs and the namespace
    #[arg(long)]
    delete_workloads: bool,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let how = Uninstall { dry_run: args.dry_run, delete_workloads: args.delete_workloads };
    block_on(async {
        let cluster = args.connect.only_cluster().await?;
        let mut count = 0;
        let mut printed = Ok(());
        let mut report = |step: UninstallStep| {
            let line = match step {
                UninstallStep::Change(line) => {
                    count += 1;
                    line
                }
                UninstallStep::Advice(line) => line,
            };
            let result = output::print(&format!("{line}\n"));
            printed = std::mem::replace(&mut printed, Ok(())).and(result);
        };
        let done = cluster.uninstall(how, &mut report).await;
        printed?;
        done?;
        let changes = counted(count, "change");
        output::print(&match (count, args.dry_run) {
            (0, _) => "nothing to remove\n".to_owned(),
            (_, true) => format!("{changes}; not made because of --dry-run\n"),
            (_, false) => format!("{changes}\n"),
        })
    })
}

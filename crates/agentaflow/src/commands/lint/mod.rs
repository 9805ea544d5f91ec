//! `agentaflow lint`: checks and fixes GPU manifests in files, on stdin or in a cluster.

mod cluster;
mod gather;
mod kustomize;
mod print;

use std::path::PathBuf;
use std::process::ExitCode;

use agentaflow_console::format::one_line;
use agentaflow_manifest::catalogue::Catalogue;
use agentaflow_manifest::lint::{
    self, Finding, Input, LintReport, Machines as _, Options, Rule, Unreadable, fix,
};
use agentaflow_manifest::yaml::{Limits, read_text};
use agentaflow_units::{did_you_mean, nearest};
use anyhow::Result;

use super::generate;
use crate::failure::{self, usage};
use crate::list;
use crate::output;
use gather::{Gathered, Skipped};

const EXAMPLES: &str = "\
Examples:
  agentaflow lint train.yaml deploy/
      Check files, and all manifests of a directory
  helm template app ./chart | agentaflow lint -
      Check rendered Helm templates
  agentaflow lint --fix train.yaml
      Fix findings; comments and layout are preserved. --diff prints the changes only
  agentaflow lint --cluster -n research
      Check objects of a cluster: Deployments, Jobs, CronJobs, GPUWorkloads, pods without an owner
  agentaflow lint -o sarif . > lint.sarif
      Write SARIF for code scanning
  agentaflow lint --explain AF102
      Explain a rule

Exits with 1 on an error, on a warning with --strict, and if an operand has no object to check. A comment
`# agentaflow-lint: ignore=AF301` disables a rule on its line or the next, or in the whole document if the comment is
before the first line.";

/// Check and fix GPU manifests
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Args {
    /// Files, directories, or `-` for stdin
    #[arg(value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Fix findings
    #[arg(long)]
    fix: bool,
    /// Print the changes of --fix without writing
    #[arg(long, visible_alias = "dry-run")]
    diff: bool,
    /// Check only this rule, by id or name; repeatable
    #[arg(long = "rule", value_name = "ID", value_parser = rule)]
    rules: Vec<&'static Rule>,
    /// Skip this rule; repeatable
    #[arg(long, value_name = "ID", value_parser = rule)]
    ignore: Vec<&'static Rule>,
    /// Machine type of GPU nodes for manifests without one, such as g4dn.xlarge
    #[arg(long, value_name = "TYPE")]
    machine: Option<String>,
    /// YAML file with machine types; takes precedence over the built-in ones
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// Print skipped files with the reason
    #[arg(short, long)]
    verbose: bool,
    /// Check the objects of a cluster
    #[arg(long)]
    cluster: bool,
    /// Namespace [default: all]
    #[arg(short, long, value_name = "NAME", requires = "cluster")]
    namespace: Option<String>,
    /// Kubeconfig [default: KUBECONFIG, else the cluster of the pod]
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,
    /// Explain a rule
    #[arg(long, value_name = "ID", value_parser = rule, conflicts_with_all = ["files", "cluster", "fix", "diff"])]
    explain: Option<&'static Rule>,
    /// List all rules
    #[arg(long, conflicts_with_all = ["files", "cluster", "fix", "diff", "explain"])]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text
    Text,
    /// JSON
    Json,
    /// SARIF 2.1.0 for code scanning
    Sarif,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(rule) = args.explain {
        output::print(&lint::page(rule))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        output::print(&print::rules())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.files.is_empty() && !args.cluster {
        return Err(usage("missing input: give files, directories, `-` for stdin, or --cluster"));
    }
    if (args.fix || args.diff) && args.files.is_empty() {
        let flag = if args.fix { "--fix" } else { "--diff" };
        return Err(usage(format!("{flag} requires files; objects of a cluster cannot be fixed")));
    }
    let gathered = match gather::gather(&args.files) {
        Ok(gathered) => gathered,
        Err(missing) => return Ok(missing.report()),
    };
    let live = if args.cluster {
        match cluster::objects(args.kubeconfig.as_deref(), args.namespace.as_deref()) {
            Ok(live) => Some(live),
            Err(error) => {
                failure::report(&error);
                return Ok(ExitCode::from(cluster::code(&error)));
            }
        }
    } else {
        None
    };
    lint(args, gathered, live)
}

fn lint(
    args: &Args,
    mut gathered: Gathered,
    live: Option<cluster::ClusterObjects>,
) -> Result<ExitCode> {
    let catalogue = generate::catalogue(args.catalogue.as_deref())?;
    let options = options(args, &catalogue)?;
    let piped = gathered.texts.iter().any(|(name, _)| name == "-");
    let mut fixed_count = None;
    if args.fix || args.diff {
        let fixed = fix(&gathered.texts, &options);
        if args.diff {
            for ((name, old), new) in gathered.texts.iter().zip(&fixed.texts) {
                output::print(&print::coloured(&lint::diff(name, old, new)))?;
            }
        } else {
            fixed_count = Some(fixed.applied.len());
            gather::write(&mut gathered.texts, fixed.texts)?;
        }
    }
    let mut inputs = Vec::new();
    for (name, text) in std::mem::take(&mut gathered.texts) {
        match read_text(&text, &Limits::default()) {
            Ok(documents) => inputs.push(Input::text(name, documents)),
            Err(error) => gather::add_unreadable(&mut gathered, &name, &text, &error),
        }
    }
    for input in &inputs {
        gather::check_objects(&mut gathered, input);
    }
    if let Some(live) = live {
        gathered.notes.extend(live.notes);
        inputs.push(Input::live(live.name, live.objects));
    }
    let findings = lint::check(&inputs, &options);
    let report =
        LintReport { inputs: &inputs, findings: &findings, unreadable: &gathered.unreadable };
    print(args, &report, &gathered.notes, fixed_count, piped && args.fix)?;
    Ok(exit_code(args, &findings, &gathered.unreadable))
}

fn options<'a>(args: &Args, catalogue: &'a Catalogue) -> Result<Options<'a>> {
    if let Some(name) = args.machine.as_ref().filter(|name| catalogue.machine(name).is_none()) {
        return Err(usage(format!(
            "--machine: unknown machine type `{}`; add it with --catalogue",
            one_line(name)
        )));
    }
    let ids = |rules: &[&'static Rule]| rules.iter().map(|rule| rule.id).collect();
    Ok(Options {
        only: ids(&args.rules),
        ignore: ids(&args.ignore),
        machines: catalogue,
        machine: args.machine.clone(),
    })
}

fn print(
    args: &Args,
    report: &LintReport<'_>,
    notes: &[Skipped],
    fixed: Option<usize>,
    to_stderr: bool,
) -> Result<()> {
    if args.verbose {
        for Skipped { name, reason } in notes {
            eprintln!("note: {}", one_line(&format!("{name}: {reason}")));
        }
    } else if let Some(line) = print::skipped(notes) {
        eprintln!("note: {line}");
    }
    let text = match args.output {
        Format::Json => list::json(&lint::json(report))?,
        Format::Sarif => list::json(&lint::sarif(report))?,
        Format::Text => print::findings(report, fixed),
    };
    // Fixed stdin goes to stdout, so findings go to stderr.
    if to_stderr || args.diff {
        eprint!("{text}");
        return Ok(());
    }
    output::print(&text)
}

fn exit_code(args: &Args, findings: &[Finding], unreadable: &[Unreadable]) -> ExitCode {
    let worst = findings.iter().map(|finding| finding.severity).max();
    let limit = if args.strict { lint::Severity::Warning } else { lint::Severity::Error };
    let failed = !unreadable.is_empty() || worst.is_some_and(|worst| worst >= limit);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn rule(name: &str) -> Result<&'static Rule, String> {
    lint::rule(name).ok_or_else(|| {
        let known = lint::RULES.iter().flat_map(|rule| [rule.id, rule.name]);
        let near = did_you_mean(nearest(name, known));
        format!("unknown rule{near}; run `agentaflow lint --list` to list rules")
    })
}

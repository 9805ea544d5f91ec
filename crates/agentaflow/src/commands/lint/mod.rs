//! `agentaflow lint`: checks GPU manifests, in files, from a pipe or in a cluster, and mends them.

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
use anyhow::Result;

use super::generate;
use crate::failure::{self, usage};
use crate::list;
use crate::output;
use gather::{Gathered, Skipped};

const EXAMPLES: &str = "\
Examples:
  agentaflow lint train.yaml deploy/
      Files, and every manifest in a folder
  helm template app ./chart | agentaflow lint -
      What Helm renders
  agentaflow lint --fix train.yaml
      Mend what can be mended; comments and layout stay. --diff only shows it
  agentaflow lint --cluster -n research
      What runs in a cluster: Deployments, Jobs, CronJobs, GPUWorkloads, pods without an owner
  agentaflow lint -o sarif . > lint.sarif
      For code scanning
  agentaflow lint --explain AF102
      What a rule is about

Ends with 1 if there is an error, with --strict also for a warning, and if a file that is named or a pipe holds nothing
to check. A comment `# agentaflow-lint: ignore=AF301` silences
a rule on its line or below it, before the first line in the whole document.";

/// Check GPU manifests, and mend them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Args {
    /// Files, folders, or `-` for what comes through a pipe
    #[arg(value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Mend what can be mended
    #[arg(long)]
    fix: bool,
    /// Show what --fix would change, and change nothing
    #[arg(long, visible_alias = "dry-run")]
    diff: bool,
    /// Only this rule, by id or name; may be repeated
    #[arg(long = "rule", value_name = "ID", value_parser = rule)]
    rules: Vec<&'static Rule>,
    /// Not this rule; may be repeated
    #[arg(long, value_name = "ID", value_parser = rule)]
    ignore: Vec<&'static Rule>,
    /// What GPU nodes are, where manifests do not choose a machine type, such as g4dn.xlarge
    #[arg(long, value_name = "TYPE")]
    machine: Option<String>,
    /// YAML file with machine types that go before the built-in ones, as for `generate`
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,
    /// Warnings count as errors
    #[arg(long)]
    strict: bool,
    /// Say what was not checked, and why
    #[arg(short, long)]
    verbose: bool,
    /// Check what is in a cluster
    #[arg(long)]
    cluster: bool,
    /// Only this namespace of the cluster [default: all]
    #[arg(short, long, value_name = "NAME", requires = "cluster")]
    namespace: Option<String>,
    /// The cluster [default: KUBECONFIG, else the one that this runs in]
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,
    /// Print the page of a rule
    #[arg(long, value_name = "ID", value_parser = rule, conflicts_with_all = ["files", "cluster", "fix", "diff"])]
    explain: Option<&'static Rule>,
    /// List all rules
    #[arg(long, conflicts_with_all = ["files", "cluster", "fix", "diff", "explain"])]
    list: bool,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Lines for people
    Text,
    /// One JSON object
    Json,
    /// SARIF 2.1.0, for code scanning
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
        return Err(usage(
            "name files or folders, `-` for what comes through a pipe, or --cluster",
        ));
    }
    if (args.fix || args.diff) && args.files.is_empty() {
        let flag = if args.fix { "--fix" } else { "--diff" };
        return Err(usage(format!(
            "{flag}: files are mended, not a cluster: name those that it was made from"
        )));
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

fn lint(args: &Args, mut gathered: Gathered, live: Option<cluster::Live>) -> Result<ExitCode> {
    let catalogue = generate::catalogue(args.catalogue.as_deref())?;
    let options = options(args, &catalogue)?;
    let piped = gathered.texts.iter().any(|(name, _)| name == "-");
    let mut mended = None;
    if args.fix || args.diff {
        let fixed = fix(&gathered.texts, &options);
        if args.diff {
            for ((name, old), new) in gathered.texts.iter().zip(&fixed.texts) {
                output::print(&print::coloured(&lint::diff(name, old, new)))?;
            }
        } else {
            mended = Some(fixed.applied.len());
            gather::write(&mut gathered.texts, fixed.texts)?;
        }
    }
    let mut inputs = Vec::new();
    for (name, text) in std::mem::take(&mut gathered.texts) {
        match read_text(&text, &Limits::default()) {
            Ok(documents) => inputs.push(Input::text(name, documents)),
            Err(error) => gather::unread(&mut gathered, &name, &text, &error),
        }
    }
    for input in &inputs {
        gather::without_objects(&mut gathered, input);
    }
    if let Some(live) = live {
        gathered.notes.extend(live.notes);
        inputs.push(Input::live(live.name, live.objects));
    }
    let findings = lint::check(&inputs, &options);
    let report =
        LintReport { inputs: &inputs, findings: &findings, unreadable: &gathered.unreadable };
    say(args, &report, &gathered.notes, mended, piped && args.fix)?;
    Ok(verdict(args, &findings, &gathered.unreadable))
}

fn options<'a>(args: &Args, catalogue: &'a Catalogue) -> Result<Options<'a>> {
    if let Some(name) = args.machine.as_ref().filter(|name| catalogue.machine(name).is_none()) {
        return Err(usage(format!(
            "--machine: nothing is known about the machine type `{}`; --catalogue takes a file with others",
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

fn say(
    args: &Args,
    report: &LintReport<'_>,
    notes: &[Skipped],
    mended: Option<usize>,
    to_stderr: bool,
) -> Result<()> {
    if args.verbose {
        for Skipped { name, why } in notes {
            eprintln!("note: {}", one_line(&format!("{name}: {why}")));
        }
    } else if let Some(line) = print::skipped(notes) {
        eprintln!("note: {line}");
    }
    let text = match args.output {
        Format::Json => list::json(&lint::json(report))?,
        Format::Sarif => list::json(&lint::sarif(report))?,
        Format::Text => print::findings(report, mended),
    };
    // What comes through a pipe and is mended goes on through the pipe; people still see what was found.
    if to_stderr || args.diff {
        eprint!("{text}");
        return Ok(());
    }
    output::print(&text)
}

fn verdict(args: &Args, findings: &[Finding], unreadable: &[Unreadable]) -> ExitCode {
    let worst = findings.iter().map(|finding| finding.severity).max();
    let limit = if args.strict { lint::Severity::Warning } else { lint::Severity::Error };
    let failed = !unreadable.is_empty() || worst.is_some_and(|worst| worst >= limit);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn rule(name: &str) -> Result<&'static Rule, String> {
    lint::rule(name).ok_or_else(|| {
        let known = lint::RULES.iter().flat_map(|rule| [rule.id, rule.name]);
        let near = crate::nearest::nearest(name, known);
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        format!("there is no such rule{near} `agentaflow lint --list` lists them")
    })
}

//! `agentaflow generate`: generates GPU manifests.

mod apply;
mod sized;
mod template;
mod write;

use std::path::{Path, PathBuf};

use agentaflow_manifest::build::{self, BuildError, BuildOutput, Recipe};
use agentaflow_manifest::catalogue::{BUILT_IN, Catalogue};
use agentaflow_manifest::yaml;
use anyhow::{Context as _, Result};

use self::apply::ApplyOptions;
use super::kubernetes;
use crate::connect::block_on;
use crate::failure::usage;
use crate::output;

pub(crate) use template::{Args as TemplateArgs, run as run_template};

const EXAMPLES: &str = "\
Examples:
  agentaflow generate job --task-id ml_task_123 --image train:v1 --gpu a100 -- python train.py
      A Job with limits, shared memory, a deadline, and tolerations of GPU nodes
  agentaflow generate job --name train --image train:v1 --cloud eks --gpu a100 --gpus 8 --spot --apply
      The same on the cheapest instance with 8 GPUs, applied to the cluster
  agentaflow generate model-server --name llm --image vllm/vllm-openai:v0.11.0 --gpu l4 --output-file llm.yaml
      Model servers with a volume claim, written to a file
  agentaflow generate job --name tune --image tune:v1 --detect \"fine-tune Llama-3 8B in bf16\"
      GPUs, memory and CPU from detected requirements
  agentaflow generate mig-config --gpu h100 --slices 3g.40gb=2
      GPUs split in half

Fields of a --from file have the names of the options: `gpus: 8`, `env: {EPOCHS: 10}`.";

/// Generate GPU manifests: jobs, servers, claims, sharing, scaling
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: GenerateCommand,
    #[command(flatten)]
    out: OutputArgs,
}

#[derive(Debug, clap::Subcommand)]
enum GenerateCommand {
    #[command(flatten)]
    Recipe(Box<Recipe>),
    /// Print the built-in instance types and prices as a file for --catalogue
    Catalogue,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Input and output")]
struct OutputArgs {
    /// YAML file with defaults for the options; `-` for stdin
    #[arg(long, value_name = "FILE", global = true)]
    from: Option<PathBuf>,
    /// Detect GPUs, memory and CPU from a text, file or directory; options take precedence
    #[arg(long, value_name = "TEXT|FILE|DIR", global = true)]
    detect: Option<String>,
    /// YAML file with instance types and prices; takes precedence over the built-in ones
    #[arg(long, value_name = "FILE", global = true)]
    catalogue: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "yaml", global = true)]
    output: Format,
    /// File to write instead of stdout; must not exist
    #[arg(long, value_name = "FILE", global = true)]
    output_file: Option<PathBuf>,
    /// Overwrite the file; with --apply, take over fields of other field managers
    #[arg(long, global = true)]
    force: bool,
    /// Apply the objects to the cluster instead of printing them
    #[arg(long, global = true)]
    apply: bool,
    /// With --apply, validate without changing the cluster
    #[arg(long, global = true)]
    dry_run: bool,
    /// Kubeconfig [default: KUBECONFIG, else the cluster of the pod]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// YAML documents
    Yaml,
    /// JSON object, or a list of several
    Json,
    /// Kind and name, one per line
    Name,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { command, out } = args;
    let GenerateCommand::Recipe(recipe) = command else {
        return write::write(&built_in(out.output)?, out.target(), out.force);
    };
    if out.dry_run && !out.apply {
        return Err(usage("--dry-run requires --apply"));
    }
    if out.apply && out.output_file.is_some() {
        return Err(usage("--apply cannot be combined with --output-file"));
    }
    if out.from.as_deref() == Some(Path::new("-")) && out.detect.as_deref() == Some("-") {
        return Err(usage("--from and --detect cannot both read stdin"));
    }
    let made = make(*recipe, &out)?;
    for note in &made.notes {
        eprintln!("note: {note}");
    }
    if out.apply {
        return send(&made, &out);
    }
    let text = match out.output {
        Format::Yaml => build::yaml(&made.objects)?,
        Format::Json => build::json(&made.objects)?,
        Format::Name => made.objects.iter().map(|object| apply::name(object) + "\n").collect(),
    };
    write::write(&text, out.target(), out.force)
}

/// The built-in catalogue; the YAML format keeps its comments.
fn built_in(format: Format) -> Result<String> {
    Ok(match format {
        Format::Yaml => BUILT_IN.to_owned(),
        Format::Json => {
            let document = yaml::read_one(BUILT_IN.as_bytes(), &yaml::Limits::default())?;
            serde_json::to_string_pretty(&document.value)? + "\n"
        }
        Format::Name => {
            let catalogue = Catalogue::built_in()?;
            catalogue.instances().iter().map(|instance| instance.name.clone() + "\n").collect()
        }
    })
}

/// Objects of the options and the file; options take precedence.
fn make(recipe: Recipe, out: &OutputArgs) -> Result<BuildOutput> {
    let recipe = match &out.from {
        None => recipe,
        Some(file) => {
            let text = write::read(file)?;
            recipe.over(&text).map_err(|error| file_error(file, &error))?
        }
    };
    let catalogue = catalogue(out.catalogue.as_deref())?;
    let recipe = match &out.detect {
        None => recipe,
        Some(target) => sized::sized(recipe, target, &catalogue)?,
    };
    match recipe.make(&catalogue) {
        Err(refused @ BuildError::Refused { .. }) => Err(usage(refused.to_string())),
        made => Ok(made?),
    }
}

pub(crate) fn catalogue(file: Option<&Path>) -> Result<Catalogue> {
    let built_in = Catalogue::built_in().context("cannot read the built-in catalogue")?;
    let Some(file) = file else { return Ok(built_in) };
    let own = Catalogue::parse(&write::read(file)?).map_err(|error| file_error(file, &error))?;
    Ok(own.over(built_in))
}

/// The error of a file as a usage error.
fn file_error(file: &Path, error: &dyn std::error::Error) -> anyhow::Error {
    usage(format!("{}: {error}", write::name(file)))
}

fn send(made: &BuildOutput, out: &OutputArgs) -> Result<()> {
    let options = ApplyOptions { dry_run: out.dry_run, force: out.force };
    let applied = block_on(async {
        let client = kubernetes::client(out.kubeconfig.as_deref()).await?;
        apply::apply(&client, &made.objects, options).await
    })?;
    let end = if out.dry_run { "applied (dry run)" } else { "applied" };
    let lines: Vec<_> = applied.iter().map(|name| format!("{name} {end}\n")).collect();
    output::print(&lines.concat())
}

impl OutputArgs {
    fn target(&self) -> Option<&Path> {
        self.output_file.as_deref()
    }
}

//! `agentaflow generate`: GPU manifests for people who do not want to remember twenty fields.

mod apply;
mod sized;
mod template;
mod write;

use std::path::{Path, PathBuf};

use agentaflow_manifest::build::{self, BuildError, BuildOutput, Recipe};
use agentaflow_manifest::catalogue::{BUILT_IN, Catalogue};
use agentaflow_manifest::yaml;
use anyhow::{Context as _, Result};

use self::apply::How;
use super::kubernetes;
use crate::connect::block_on;
use crate::failure::usage;
use crate::output;

pub(crate) use template::{Args as TemplateArgs, run as run_template};

const EXAMPLES: &str = "\
Examples:
  agentaflow generate job --task-id ml_task_123 --image train:v1 --gpu a100 -- python train.py
      A job with limits, shared memory, a deadline and all that a GPU node wants
  agentaflow generate job --name train --image train:v1 --cloud eks --gpu a100 --gpus 8 --spot --apply
      The same on the cheapest machine that has 8 of them, sent to the cluster
  agentaflow generate model-server --name llm --image vllm/vllm-openai:v0.11.0 --gpu l4 --output-file llm.yaml
      Servers with a claim for models, into a file
  agentaflow generate job --name tune --image tune:v1 --detect \"fine-tune Llama-3 8B in bf16\"
      GPUs, memory and cores by what the work needs
  agentaflow generate mig-config --gpu h100 --slices 3g.40gb=2
      GPUs cut in half

A file for --from has the names of the flags as its fields: `gpus: 8`, `env: {EPOCHS: 10}`.";

/// Write GPU manifests: jobs, servers, claims, sharing, scaling
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    out: Out,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    #[command(flatten)]
    Recipe(Box<Recipe>),
    /// Print the instance types and prices that are built in, as a file for --catalogue
    Catalogue,
}

/// Where recipes come from and objects go.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Input and output")]
struct Out {
    /// YAML file with what the flags do not say; `-` is stdin
    #[arg(long, value_name = "FILE", global = true)]
    from: Option<PathBuf>,
    /// Text, file or folder about the work: GPUs, memory and cores are those that it needs; flags go before
    #[arg(long, value_name = "TEXT|FILE|DIR", global = true)]
    detect: Option<String>,
    /// YAML file with instance types and prices that go before the built-in ones
    #[arg(long, value_name = "FILE", global = true)]
    catalogue: Option<PathBuf>,
    /// How to print the objects
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "yaml", global = true)]
    output: Format,
    /// File to write instead of stdout; it must not be there
    #[arg(long, value_name = "FILE", global = true)]
    output_file: Option<PathBuf>,
    /// Overwrite the file; with --apply, take over fields that others manage
    #[arg(long, global = true)]
    force: bool,
    /// Send the objects to the cluster instead of printing them
    #[arg(long, global = true)]
    apply: bool,
    /// With --apply: only ask the API server whether it would take them
    #[arg(long, global = true)]
    dry_run: bool,
    /// The cluster [default: KUBECONFIG, else the one that this runs in]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
}

/// How objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Documents of YAML
    Yaml,
    /// One object, or one list of several
    Json,
    /// Kind and name of each
    Name,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { what, out } = args;
    let What::Recipe(recipe) = what else {
        return write::write(&built_in(out.output)?, out.target(), out.force);
    };
    if out.dry_run && !out.apply {
        return Err(usage("--dry-run goes with --apply: without it nothing is sent anyway"));
    }
    if out.apply && out.output_file.is_some() {
        return Err(usage("--apply and --output-file: choose one"));
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

/// The catalogue that comes with the program; as YAML with its comments.
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

/// The objects of the flags, over what the file says.
fn make(recipe: Recipe, out: &Out) -> Result<BuildOutput> {
    let recipe = match &out.from {
        None => recipe,
        Some(file) => {
            let text = write::read(file)?;
            recipe.over(&text).map_err(|error| about(file, &error))?
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
    let built_in = Catalogue::built_in().context("the built-in catalogue cannot be read")?;
    let Some(file) = file else { return Ok(built_in) };
    let own = Catalogue::parse(&write::read(file)?).map_err(|error| about(file, &error))?;
    Ok(own.over(built_in))
}

/// What is wrong with a file: it was written as little as a flag was meant.
fn about(file: &Path, error: &dyn std::error::Error) -> anyhow::Error {
    let said = error.to_string();
    let separator = if said.starts_with("line ") { "," } else { ":" };
    usage(format!("{}{separator} {said}", write::name(file)))
}

fn send(made: &BuildOutput, out: &Out) -> Result<()> {
    let how = How { dry_run: out.dry_run, force: out.force };
    let applied = block_on(async {
        let client = kubernetes::client(out.kubeconfig.as_deref()).await?;
        apply::apply(&client, &made.objects, how).await
    })?;
    let end = if out.dry_run { "would be applied" } else { "applied" };
    let lines: Vec<_> = applied.iter().map(|name| format!("{name} {end}\n")).collect();
    output::print(&lines.concat())
}

impl Out {
    fn target(&self) -> Option<&Path> {
        self.output_file.as_deref()
    }
}

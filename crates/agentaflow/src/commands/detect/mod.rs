//! `agentaflow detect`: is this ML work, how sure is that, why, and what does it need?

mod collect;
mod show;

use agentaflow_console::format::one_line;
use agentaflow_manifest::build::SizingFields;
use agentaflow_manifest::detect::{Detection, Sizing};
use anyhow::{Context as _, Result};
use serde::Serialize;

use self::collect::{Collected, Target};
use crate::failure::usage;
use crate::{list, output};

/// Say whether work is ML work, how sure that is, why, and what it needs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agentaflow detect \"Fine-tune Llama-3 8B in bf16 with LoRA, batch size 4\"
  agentaflow detect requirements.txt
  agentaflow detect . -o json
  agentaflow detect . -o recipe | agentaflow generate job --from - --name train --image train:v1
  kubectl get configmap task -o jsonpath='{.data.text}' | agentaflow detect -")]
pub(crate) struct Args {
    /// A text, a file, a folder, or `-` for standard input
    #[arg(value_name = "TEXT|FILE|DIR|-", required = true, allow_hyphen_values = false, value_hint = clap::ValueHint::AnyPath)]
    target: Vec<String>,
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,
    /// Show every place where something was found
    #[arg(long)]
    all: bool,
}

/// How a detection is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
    /// One YAML document
    Yaml,
    /// What it needs, as a file for `generate --from`
    Recipe,
}

/// The detection, and what was left out of it.
#[derive(Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    report: agentaflow_manifest::detect::Report,
    /// Files that were not read, or not whole, and why.
    skipped: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (detection, skipped) = look(&args.target)?;
    if args.output == Format::Text {
        return output::print(&show::words(&detection, &skipped, args.all));
    }
    if args.output == Format::Recipe {
        let recipe = SizingFields::of(size(&detection)?);
        return output::print(&serde_saphyr::to_string(&recipe).context("cannot write YAML")?);
    }
    let answer = Answer { report: detection.report(), skipped };
    output::print(&match args.output {
        Format::Yaml => serde_saphyr::to_string(&answer).context("cannot write YAML")?,
        _ => list::json(&answer)?,
    })
}

/// Looks at a text, files or folders; and says what was left out.
pub(crate) fn look(target: &[String]) -> Result<(Detection, Vec<String>)> {
    Ok(match collect::target(target)? {
        Target::Text(text) => (Detection::of_text(&text), Vec::new()),
        Target::Files(Collected { files, notes }) => (Detection::of_files(&files), notes),
    })
}

/// What the work needs; refused where it is no work for a GPU.
pub(crate) fn size(detection: &Detection) -> Result<&Sizing> {
    detection.sizing.as_ref().ok_or_else(|| {
        let why = detection.reasoning.first().map(|why| format!(": {}", one_line(why)));
        usage(format!("there is no ML work that needs a GPU{}", why.unwrap_or_default()))
    })
}

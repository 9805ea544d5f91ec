//! `agentaflow detect`: detects ML workloads and their requirements.

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

/// Detect an ML workload and its requirements
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agentaflow detect \"Fine-tune Llama-3 8B in bf16 with LoRA, batch size 4\"
  agentaflow detect requirements.txt
  agentaflow detect . -o json
  agentaflow detect . -o recipe | agentaflow generate job --from - --name train --image train:v1
  kubectl get configmap task -o jsonpath='{.data.text}' | agentaflow detect -")]
pub(crate) struct Args {
    /// Text, files, directories, or `-` for stdin
    #[arg(value_name = "TEXT|FILE|DIR|-", required = true, allow_hyphen_values = false, value_hint = clap::ValueHint::AnyPath)]
    target: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,
    /// Show all evidence
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// Requirements as a file for `generate --from`
    Recipe,
}

#[derive(Debug, Serialize)]
struct DetectionOutput {
    #[serde(flatten)]
    report: agentaflow_manifest::detect::Report,
    /// Files that were not read completely, with the reason.
    skipped: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (detection, skipped) = detect(&args.target)?;
    if args.output == Format::Text {
        return output::print(&show::text(&detection, &skipped, args.all));
    }
    if args.output == Format::Recipe {
        let recipe = SizingFields::of(sizing(&detection)?);
        return output::print(&serde_saphyr::to_string(&recipe).context("cannot write YAML")?);
    }
    let output = DetectionOutput { report: detection.report(), skipped };
    output::print(&match args.output {
        Format::Yaml => serde_saphyr::to_string(&output).context("cannot write YAML")?,
        _ => list::json(&output)?,
    })
}

/// Detects in text, files or directories; also returns notes about skipped files.
pub(crate) fn detect(target: &[String]) -> Result<(Detection, Vec<String>)> {
    Ok(match collect::target(target)? {
        Target::Text(text) => (Detection::of_text(&text), Vec::new()),
        Target::Files(Collected { files, notes }) => (Detection::of_files(&files), notes),
    })
}

/// Requirements; an error if there is no GPU workload.
pub(crate) fn sizing(detection: &Detection) -> Result<&Sizing> {
    detection.sizing.as_ref().ok_or_else(|| {
        let reason = detection.reasoning.first().map(|line| format!(": {}", one_line(line)));
        usage(format!("no ML workload that needs a GPU{}", reason.unwrap_or_default()))
    })
}

//! Fills a recipe with detected requirements.

use agentaflow_console::format::one_line;
use agentaflow_manifest::build::{Recipe, SizedRecipe};
use agentaflow_manifest::catalogue::Catalogue;
use agentaflow_manifest::detect::{Detection, Sizing};
use anyhow::Result;

use crate::commands::detect;
use crate::failure::usage;

/// Fills in detected requirements where options and file have no value. Prints the decision to stderr.
pub(super) fn sized(recipe: Recipe, target: &str, catalogue: &Catalogue) -> Result<Recipe> {
    let (detection, skipped) = detect::detect(&[target.to_owned()])?;
    let found = detect::sizing(&detection).map_err(|none| usage(format!("--detect: {none}")))?;
    let sized = recipe.sized(found, catalogue).map_err(|refused| usage(refused.to_string()))?;
    let SizedRecipe { recipe, sizing, kept } = sized;
    let reasons = reasons(&detection, found, &sizing);
    let lines =
        [decided(&detection, &sizing)].into_iter().chain(reasons).chain(kept).chain(skipped);
    for line in lines {
        eprintln!("note: {}", one_line(&line));
    }
    Ok(recipe)
}

fn decided(detection: &Detection, sizing: &Sizing) -> String {
    format!(
        "ML workload ({}), {:.0} % confidence: {} × {}, {} of memory, {} CPU, {} of shared memory",
        detection.workload_type,
        detection.confidence * 100.0,
        sizing.gpu_count,
        sizing.gpu_type.name(),
        sizing.memory(),
        sizing.cpu(),
        sizing.shm()
    )
}

/// Reasons, with the sentence about the chosen GPUs in place of the detected ones.
fn reasons(detection: &Detection, found: &Sizing, chosen: &Sizing) -> Vec<String> {
    let sentence = |line: &String| match (found.reasons.first(), chosen.reasons.first()) {
        (Some(before), Some(after)) if line == before => after.clone(),
        _ => line.clone(),
    };
    detection.reasoning.iter().map(sentence).collect()
}

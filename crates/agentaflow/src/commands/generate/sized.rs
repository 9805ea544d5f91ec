//! A recipe by what the work needs.

use agentaflow_console::format::one_line;
use agentaflow_manifest::build::{Recipe, SizedRecipe};
use agentaflow_manifest::catalogue::Catalogue;
use agentaflow_manifest::detect::{Detection, Sizing};
use anyhow::Result;

use crate::commands::detect;
use crate::failure::usage;

/// The recipe with what was detected, where flags and file say nothing. What was decided, and why, goes to stderr.
pub(super) fn sized(recipe: Recipe, target: &str, catalogue: &Catalogue) -> Result<Recipe> {
    let (detection, skipped) = detect::look(&[target.to_owned()])?;
    let found = detect::size(&detection).map_err(|none| usage(format!("--detect: {none}")))?;
    let sized = recipe.sized(found, catalogue).map_err(|refused| usage(refused.to_string()))?;
    let SizedRecipe { recipe, sizing, kept } = sized;
    let why = reasons(&detection, found, &sizing);
    let lines = [decided(&detection, &sizing)].into_iter().chain(why).chain(kept).chain(skipped);
    for line in lines {
        eprintln!("note: {}", one_line(&line));
    }
    Ok(recipe)
}

fn decided(detection: &Detection, sizing: &Sizing) -> String {
    format!(
        "ML work ({}), {:.0} % sure: {} × {}, {} of memory, {} of CPU, {} of shared memory",
        detection.workload_type,
        detection.confidence * 100.0,
        sizing.gpu_count,
        sizing.gpu_type.name(),
        sizing.memory(),
        sizing.cpu(),
        sizing.shm()
    )
}

/// Why, with the sentence about the GPUs that were chosen in place of that about those that were found.
fn reasons(detection: &Detection, found: &Sizing, chosen: &Sizing) -> Vec<String> {
    let sentence = |line: &String| match (found.reasons.first(), chosen.reasons.first()) {
        (Some(before), Some(after)) if line == before => after.clone(),
        _ => line.clone(),
    };
    detection.reasoning.iter().map(sentence).collect()
}

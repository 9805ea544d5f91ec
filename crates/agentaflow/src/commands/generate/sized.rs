//! A recipe by what the work needs.

use agentaflow_manifest::build::Recipe;
use agentaflow_manifest::detect::{Detection, Sizing};
use anyhow::Result;

use crate::commands::detect;
use crate::failure::usage;
use crate::listing::one_line;

/// The recipe with what was detected, where flags and file say nothing. What was decided, and why, goes to stderr.
pub(super) fn sized(recipe: Recipe, target: &str) -> Result<Recipe> {
    let (detection, skipped) = detect::look(&[target.to_owned()])?;
    let sizing = detect::size(&detection)?;
    let sized = recipe.sized(sizing).map_err(|refused| usage(refused.to_string()))?;
    let (recipe, kept) = sized;
    for line in decided(&detection, sizing).into_iter().chain(kept).chain(skipped) {
        eprintln!("note: {}", one_line(&line));
    }
    Ok(recipe)
}

fn decided(detection: &Detection, sizing: &Sizing) -> Vec<String> {
    let mut lines = vec![format!(
        "ML work ({}), {:.0} % sure: {} × {}, {} of memory, {} of CPU, {} of shared memory",
        detection.workload_type,
        detection.confidence * 100.0,
        sizing.gpu_count,
        sizing.gpu_type.name(),
        sizing.memory(),
        sizing.cpu(),
        sizing.shm()
    )];
    lines.extend(detection.reasoning.iter().cloned());
    lines
}

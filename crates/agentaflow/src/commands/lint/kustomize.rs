//! Kustomize patches, which are not complete objects.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use agentaflow_manifest::yaml::{self, Limits};
use serde_json::Value;

pub(super) const PATCH: &str =
    "Kustomize patch; check the result instead: kustomize build DIR | agentaflow lint -";

/// Patch files of the kustomizations among the files.
pub(super) fn patches(files: &[PathBuf]) -> HashSet<PathBuf> {
    let named = |file: &&PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        matches!(name, "kustomization.yaml" | "kustomization.yml") && file.is_file()
    };
    files.iter().filter(named).flat_map(|file| patches_of(file)).collect()
}

pub(super) fn is_patch(file: &Path, patches: &HashSet<PathBuf>) -> bool {
    !patches.is_empty() && fs::canonicalize(file).is_ok_and(|file| patches.contains(&file))
}

fn patches_of(kustomization: &Path) -> Vec<PathBuf> {
    let folder = kustomization.parent().unwrap_or(Path::new("."));
    let text = fs::read_to_string(kustomization).unwrap_or_default();
    let documents = yaml::read_text(&text, &Limits::default()).unwrap_or_default();
    let mut paths = Vec::new();
    for document in &documents {
        let list = |key: &str| document.value[key].as_array().cloned().unwrap_or_default();
        for patch in ["patches", "patchesJson6902"].iter().flat_map(|key| list(key)) {
            paths.extend(patch["path"].as_str().map(str::to_owned));
        }
        // An item may also be an inline patch.
        let named = list("patchesStrategicMerge").into_iter().filter_map(|item| match item {
            Value::String(name) if !name.contains('\n') => Some(name),
            _ => None,
        });
        paths.extend(named);
    }
    paths.iter().filter_map(|path| fs::canonicalize(folder.join(path)).ok()).collect()
}

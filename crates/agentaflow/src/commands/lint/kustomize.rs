//! Patches of Kustomize: parts of objects, which are whole only where they are applied.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use agentaflow_manifest::yaml::{self, Limits};
use serde_json::Value;

/// Why a patch is not checked.
pub(super) const PATCH: &str = "it is a patch, and no whole object; check what it makes: kustomize build DIR | agentaflow lint -";

/// The files among others that kustomizations among them name as patches.
pub(super) fn patches(files: &[PathBuf]) -> HashSet<PathBuf> {
    let named = |file: &&PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        matches!(name, "kustomization.yaml" | "kustomization.yml") && file.is_file()
    };
    files.iter().filter(named).flat_map(|file| patches_of(file)).collect()
}

/// Whether a file is one of them.
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
        // These may also be written out.
        let named = list("patchesStrategicMerge").into_iter().filter_map(|item| match item {
            Value::String(name) if !name.contains('\n') => Some(name),
            _ => None,
        });
        paths.extend(named);
    }
    paths.iter().filter_map(|path| fs::canonicalize(folder.join(path)).ok()).collect()
}

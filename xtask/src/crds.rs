//! `cargo xtask crds`: the custom resource definitions, generated from the code.

use anyhow::{Context, Result};

use crate::generate::{Files, Generator, stdout_of};

pub(crate) const HELP: &str = "\
Generate deploy/crds, the custom resource definitions, from the code.

Usage: cargo xtask crds [--check]

Options:
  --check     Write nothing; exit with 1 if a file does not match the code
  -h, --help  Show this text";

pub(crate) const FOLDER: &str = "deploy/crds";

pub(crate) const GENERATOR: Generator = Generator { name: "crds", source: "the code", generate };

fn generate() -> Result<Files> {
    let example = ["run", "--quiet", "--package", "agentaflow-kube-core", "--example", "crds"];
    split(&stdout_of(&example, "examples/crds", None)?)
}

/// One file per definition, named after the plural of its kind.
fn split(documents: &str) -> Result<Files> {
    let documents = documents.split("---\n").filter(|document| !document.is_empty());
    documents
        .map(|document| {
            let name = document.lines().find_map(|line| line.strip_prefix("  name: "));
            let plural = name.and_then(|name| name.split('.').next());
            let plural = plural.context("a definition without a name")?;
            Ok((format!("{FOLDER}/{plural}.yaml"), document.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_has_a_file_named_after_its_kind() {
        let files = split("---\nmetadata:\n  name: gpunodes.agentaflow.io\n").unwrap();
        let paths: Vec<&String> = files.keys().collect();
        assert_eq!(paths, ["deploy/crds/gpunodes.yaml"]);
        assert!(split("---\nkind: Odd\n").is_err());
    }
}

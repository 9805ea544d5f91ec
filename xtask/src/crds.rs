//! `cargo xtask crds`: the definitions of the Kubernetes kinds, made from the code and committed beside it.

use anyhow::{Context, Result};

use crate::generated::{Chore, Files, printed_by};

pub(crate) const HELP: &str = "\
Write the definitions of the Kubernetes kinds, deploy/crds, from the code.

Usage: cargo xtask crds [--check]

Options:
  --check     Change nothing; end with 1 when a file is not what the code says
  -h, --help  Show this text";

pub(crate) const FOLDER: &str = "deploy/crds";

pub(crate) const CHORE: Chore = Chore { name: "crds", source: "the code", make };

/// What the types say.
fn make() -> Result<Files> {
    let example = ["run", "--quiet", "--package", "agentaflow-kube", "--example", "crds"];
    split(&printed_by(&example, "examples/crds", None)?)
}

/// One file for each document, named after its kind.
fn split(documents: &str) -> Result<Files> {
    let documents = documents.split("---\n").filter(|document| !document.is_empty());
    documents
        .map(|document| {
            let name = document.lines().find_map(|line| line.strip_prefix("  name: "));
            let plural = name.and_then(|name| name.split('.').next());
            let plural = plural.context("a definition has no name")?;
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

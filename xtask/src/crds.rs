//! `cargo xtask crds`: the definitions of the Kubernetes kinds, made from the code and committed beside it.

use std::collections::BTreeMap;
use std::fs;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::report::Report;
use crate::{Failure, repo};

pub(crate) const HELP: &str = "\
Write the definitions of the Kubernetes kinds, deploy/crds, from the code.

Usage: cargo xtask crds [--check]

Options:
  --check     Change nothing; end with 1 when a file is not what the code says
  -h, --help  Show this text";

const FOLDER: &str = "deploy/crds";

const REPAIR: &str = "`cargo xtask crds` writes it anew";

/// Files by their name.
type Files = BTreeMap<String, String>;

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    match arguments {
        [] => write()?,
        [option] if option == "--check" => {
            if let Some(problem) = problem()? {
                eprintln!("error: {problem}");
                return Ok(ExitCode::FAILURE);
            }
        }
        [unknown, ..] => {
            return Err(Failure::Usage(format!(
                "unknown argument `{unknown}`; see `cargo xtask crds --help`"
            )));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The `crds` phase.
pub(crate) fn check() -> Result<Report> {
    Ok(match problem()? {
        None => Report::passed(),
        Some(problem) => Report::failed("crds", problem),
    })
}

fn write() -> Result<()> {
    let folder = repo::root().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make `{FOLDER}`"))?;
    for (name, text) in generate()? {
        fs::write(folder.join(&name), text)
            .with_context(|| format!("cannot write `{FOLDER}/{name}`"))?;
        println!("wrote {FOLDER}/{name}");
    }
    Ok(())
}

fn problem() -> Result<Option<String>> {
    let generated = generate()?;
    let mut committed = Files::new();
    for name in generated.keys() {
        match fs::read_to_string(repo::root().join(FOLDER).join(name)) {
            Ok(text) => {
                committed.insert(name.clone(), text);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read `{FOLDER}/{name}`"));
            }
        }
    }
    Ok(compare(&committed, &generated))
}

fn compare(committed: &Files, generated: &Files) -> Option<String> {
    generated.iter().find_map(|(name, text)| match committed.get(name) {
        None => Some(format!("`{FOLDER}/{name}` is missing; {REPAIR}")),
        Some(committed) if committed != text => {
            Some(format!("`{FOLDER}/{name}` is not what the code says; {REPAIR}"))
        }
        Some(_) => None,
    })
}

/// What the types say.
fn generate() -> Result<Files> {
    let mut command =
        repo::cargo(&["run", "--quiet", "--package", "agentaflow-kube", "--example", "crds"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start `cargo`")?;
    if !output.status.success() {
        bail!("the example `crds` of agentaflow-kube failed; see the output above");
    }
    split(&String::from_utf8(output.stdout).context("the definitions are not text")?)
}

/// One file for each document, named after its kind.
fn split(documents: &str) -> Result<Files> {
    let documents = documents.split("---\n").filter(|document| !document.is_empty());
    documents
        .map(|document| {
            let name = document.lines().find_map(|line| line.strip_prefix("  name: "));
            let plural = name.and_then(|name| name.split('.').next());
            let plural = plural.context("a definition has no name")?;
            Ok((format!("{plural}.yaml"), document.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_that_is_missing_or_differs_is_named_with_the_repair() {
        let generated = split("---\nmetadata:\n  name: gpunodes.agentaflow.io\n").unwrap();
        assert_eq!(compare(&generated, &generated), None);
        let other = Files::from([("gpunodes.yaml".to_owned(), String::new())]);
        for committed in [Files::new(), other] {
            let problem = compare(&committed, &generated).unwrap();
            assert!(problem.contains("deploy/crds/gpunodes.yaml"), "{problem}");
            assert!(problem.ends_with("`cargo xtask crds` writes it anew"), "{problem}");
        }
    }
}

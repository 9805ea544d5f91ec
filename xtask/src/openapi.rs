//! `cargo xtask openapi`: the description of the API, made from the code and committed beside it.

use std::fs;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::report::Report;
use crate::{Failure, repo};

pub(crate) const HELP: &str = "\
Write the description of the API, docs/openapi.json, from the code.

Usage: cargo xtask openapi [--check]

Options:
  --check     Change nothing; end with 1 when the file is not what the code says
  -h, --help  Show this text";

const FILE: &str = "docs/openapi.json";

const REPAIR: &str = "`cargo xtask openapi` writes it anew";

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
                "unknown argument `{unknown}`; see `cargo xtask openapi --help`"
            )));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The `openapi` phase.
pub(crate) fn check() -> Result<Report> {
    Ok(match problem()? {
        None => Report::passed(),
        Some(problem) => Report::failed("openapi", problem),
    })
}

fn write() -> Result<()> {
    let path = repo::root().join(FILE);
    fs::write(&path, generate()?).with_context(|| format!("cannot write `{FILE}`"))?;
    println!("wrote {FILE}");
    Ok(())
}

fn problem() -> Result<Option<String>> {
    let path = repo::root().join(FILE);
    let committed = match fs::read(&path) {
        Ok(committed) => Some(committed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read `{FILE}`")),
    };
    Ok(compare(committed.as_deref(), &generate()?))
}

fn compare(committed: Option<&[u8]>, generated: &[u8]) -> Option<String> {
    match committed {
        None => Some(format!("`{FILE}` is missing; {REPAIR}")),
        Some(committed) if committed != generated => {
            Some(format!("`{FILE}` is not what the code says; {REPAIR}"))
        }
        Some(_) => None,
    }
}

/// What the program says of its own API.
fn generate() -> Result<Vec<u8>> {
    let mut command = repo::cargo(&["run", "--quiet", "--package", "agentaflow", "--", "openapi"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start `cargo`")?;
    if !output.status.success() {
        bail!("`agentaflow openapi` failed; see the output above");
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn a_file_that_is_missing_or_differs_is_named_with_the_repair() {
        assert_eq!(compare(Some(b"{}"), b"{}"), None);
        for committed in [None, Some(&b"{ }"[..])] {
            let problem = compare(committed, b"{}").unwrap();
            assert!(problem.contains("docs/openapi.json"), "{problem}");
            assert!(problem.ends_with("`cargo xtask openapi` writes it anew"), "{problem}");
        }
    }
}

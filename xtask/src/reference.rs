//! `cargo xtask reference`: the reference of all commands, generated from the code.

use anyhow::Result;

use crate::generate::{Files, Generator, stdout_of};

pub(crate) const HELP: &str = "\
Generate docs/commands.md, the reference of all commands, from the code.

Usage: cargo xtask reference [--check]

Options:
  --check     Write nothing; exit with 1 if the file does not match the code
  -h, --help  Show this text";

pub(crate) const GENERATOR: Generator =
    Generator { name: "reference", source: "the code", generate };

fn generate() -> Result<Files> {
    let cargo = ["run", "--quiet", "--package", "agentaflow"];
    let text = stdout_of(&cargo, "agentaflow", Some("reference"))?;
    Ok(Files::from([("docs/commands.md".to_owned(), text)]))
}

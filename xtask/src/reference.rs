//! `cargo xtask reference`: the reference of all commands, made from the code and committed beside it.

use anyhow::Result;

use crate::generated::{Chore, Files, printed_by};

pub(crate) const HELP: &str = "\
Write the reference of all commands, docs/commands.md, from the code.

Usage: cargo xtask reference [--check]

Options:
  --check     Change nothing; end with 1 when the file is not what the code says
  -h, --help  Show this text";

pub(crate) const CHORE: Chore = Chore { name: "reference", source: "the code", make };

/// What the program says of its own commands.
fn make() -> Result<Files> {
    let cargo = ["run", "--quiet", "--package", "agentaflow"];
    let text = printed_by(&cargo, "agentaflow", Some("reference"))?;
    Ok(Files::from([("docs/commands.md".to_owned(), text)]))
}

//! `cargo xtask openapi`: the description of the API, made from the code and committed beside it.

use anyhow::Result;

use crate::generated::{Chore, Files, printed_by};

pub(crate) const HELP: &str = "\
Write the description of the API, docs/openapi.json, from the code.

Usage: cargo xtask openapi [--check]

Options:
  --check     Change nothing; end with 1 when the file is not what the code says
  -h, --help  Show this text";

pub(crate) const CHORE: Chore = Chore { name: "openapi", source: "the code", make };

/// What the program says of its own API.
fn make() -> Result<Files> {
    let cargo = ["run", "--quiet", "--package", "agentaflow"];
    let text = printed_by(&cargo, "agentaflow", Some("openapi"))?;
    Ok(Files::from([("docs/openapi.json".to_owned(), text)]))
}

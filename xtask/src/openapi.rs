//! `cargo xtask openapi`: the OpenAPI document, generated from the code.

use anyhow::Result;

use crate::generate::{Files, Generator, stdout_of};

pub(crate) const HELP: &str = "\
Generate docs/openapi.json, the OpenAPI document of the REST API, from the code.

Usage: cargo xtask openapi [--check]

Options:
  --check     Write nothing; exit with 1 if the file does not match the code
  -h, --help  Show this text";

pub(crate) const GENERATOR: Generator = Generator { name: "openapi", source: "the code", generate };

fn generate() -> Result<Files> {
    let cargo = ["run", "--quiet", "--package", "agentaflow"];
    let text = stdout_of(&cargo, "agentaflow", Some("openapi"))?;
    Ok(Files::from([("docs/openapi.json".to_owned(), text)]))
}

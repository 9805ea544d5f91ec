//! Tests of manifests built from the flags of `agentaflow generate`, or from a file with the same names.

mod blocks;
mod check;
mod clouds;
mod files;
mod jobs;
mod machines;
mod pools;
mod property;
mod round;
mod sharing;
mod sized;
mod words;

use agentaflow_manifest::build::{BuildError, BuildOutput, Recipe};
use agentaflow_manifest::catalogue::Catalogue;
use clap::Parser;

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    recipe: Recipe,
}

/// Recipe of a command line; single quotes group words.
fn recipe(line: &str) -> Recipe {
    let mut words = vec!["generate".to_owned()];
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    Line::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).recipe
}

fn try_make(line: &str) -> Result<BuildOutput, BuildError> {
    recipe(line).make(&Catalogue::built_in().unwrap())
}

/// Valid objects of a command line.
fn make(line: &str) -> BuildOutput {
    let made = try_make(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    for object in &made.objects {
        let problems = check::problems(object);
        assert!(problems.is_empty(), "{line}: {problems:?}");
    }
    made
}

/// Error of an invalid command line.
fn refusal(line: &str) -> String {
    match try_make(line) {
        Err(error) => error.to_string(),
        Ok(made) => panic!("{line}: {:#?}", made.objects),
    }
}

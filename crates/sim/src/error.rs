//! Errors in the input of a simulation, with their position.

use std::path::{Path, PathBuf};

use agentaflow_engine::{InvalidInput, Rejected, Violation};

#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("cannot read `{}`: check the path and the permissions", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("`{}` has an unknown format: {found}; {help}", path.display())]
    UnknownFormat {
        path: PathBuf,
        /// Beginning of the file.
        found: String,
        /// Accepted formats.
        help: &'static str,
    },
    #[error("`{}`, line {line}: column `{column}` is missing; a {format} file starts with the line `{header}`", path.display())]
    MissingColumn {
        path: PathBuf,
        /// Line of the header.
        line: u64,
        column: &'static str,
        format: &'static str,
        header: &'static str,
    },
    #[error("`{}`, line {line}, column `{column}`: `{value}` {help}", path.display())]
    Value {
        path: PathBuf,
        /// Numbered from 1.
        line: u64,
        column: &'static str,
        /// Shortened.
        value: String,
        /// Cause and remedy.
        help: String,
    },
    #[error("`{}` contains no {what}; check the path", path.display())]
    Empty {
        path: PathBuf,
        /// Expected kind of record.
        what: &'static str,
    },
    /// A name that only one of two related files contains.
    #[error("{what} `{name}` is not in the {list}; check that the two files belong together")]
    UnknownName {
        what: &'static str,
        name: String,
        /// The list without the name.
        list: &'static str,
    },
    #[error("{origin} is not a scenario: {message}")]
    Scenario {
        /// The file, or `the scenario`.
        origin: String,
        /// Line, column and cause.
        message: String,
    },
    #[error("{origin}: {part}: {help}")]
    ScenarioPart {
        /// The file, or `the scenario`.
        origin: String,
        /// The node, queue or job.
        part: String,
        /// Cause and remedy.
        help: String,
    },
    #[error("{name} is {value}: {help}")]
    Parameter { name: &'static str, value: String, help: &'static str },
    #[error("the scheduler rejected node `{node}`")]
    Node {
        node: String,
        #[source]
        source: Rejected,
    },
    #[error("the scheduler rejected queue `{queue}`")]
    Queue {
        queue: String,
        #[source]
        source: Rejected,
    },
    #[error("the scheduler rejected workload `{workload}`")]
    Workload {
        workload: String,
        #[source]
        source: Rejected,
    },
    #[error("the scheduler rejected an event of the simulator")]
    Engine(#[source] Rejected),
    #[error(transparent)]
    Bad(#[from] InvalidInput),
    /// A broken invariant; checked on request only.
    #[error(
        "at {at_seconds} s the plan of `{strategy}` breaks an invariant: {violation}; please report this with the input"
    )]
    Invariant {
        /// Virtual time.
        at_seconds: f64,
        strategy: String,
        violation: Violation,
    },
}

impl SimError {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }
}

//! What can be wrong with what a user gives the simulator, and where.

use std::path::{Path, PathBuf};

use agentaflow_engine::{InvalidInput, Rejected, Violation};

/// Why a simulation could not be set up or carried out.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A file could not be read.
    #[error("cannot read `{}`: check that the path is right and the file readable", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file that is none of the known formats.
    #[error("`{}` is no format that is known here: {found}; {help}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// What its beginning looks like.
        found: String,
        /// What would be understood.
        help: &'static str,
    },
    /// A column that the format needs.
    #[error("`{}`, line {line}: column `{column}` is missing; a {format} file starts with the line `{header}`", path.display())]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The line of the header.
        line: u64,
        /// The column.
        column: &'static str,
        /// The format.
        format: &'static str,
        /// Its header.
        header: &'static str,
    },
    /// A value that cannot be right.
    #[error("`{}`, line {line}, column `{column}`: `{value}` {help}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What stands there, shortened.
        value: String,
        /// What is wrong with it and what should stand there.
        help: String,
    },
    /// A file without a single record.
    #[error("`{}` holds no {what}: is it the right file?", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// A name that an accompanying file refers to.
    #[error("{what} `{name}` is not in the {list}: do the two files belong together?")]
    UnknownName {
        /// The kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
        /// Where it was looked for.
        list: &'static str,
    },
    /// A scenario that cannot be read.
    #[error("{origin} is not a scenario: {message}")]
    Scenario {
        /// The file, or `the scenario`.
        origin: String,
        /// Line, column and what is wrong there.
        message: String,
    },
    /// A part of a scenario that makes no sense.
    #[error("{origin}: {part}: {help}")]
    ScenarioPart {
        /// The file, or `the scenario`.
        origin: String,
        /// Which node, queue or job.
        part: String,
        /// What is wrong and what to do.
        help: String,
    },
    /// A parameter outside of what makes sense.
    #[error("{name} is {value}: {help}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// What was given.
        value: String,
        /// What to give instead.
        help: &'static str,
    },
    /// The engine refuses a node.
    #[error("the scheduler refuses node `{node}`")]
    Node {
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: Rejected,
    },
    /// The engine refuses a queue.
    #[error("the scheduler refuses queue `{queue}`")]
    Queue {
        /// The queue.
        queue: String,
        /// Why.
        #[source]
        source: Rejected,
    },
    /// The engine refuses a workload.
    #[error("the scheduler refuses workload `{workload}`")]
    Workload {
        /// The workload.
        workload: String,
        /// Why.
        #[source]
        source: Rejected,
    },
    /// The engine refuses something else.
    #[error("the scheduler refuses what the simulator tells it")]
    Engine(#[source] Rejected),
    /// An unknown strategy or a value out of range.
    #[error(transparent)]
    Bad(#[from] InvalidInput),
    /// A plan that breaks an invariant; only looked for on request.
    #[error(
        "at {at_seconds} s the plan of `{strategy}` breaks an invariant: {violation}; please report this with the input"
    )]
    Invariant {
        /// Virtual time.
        at_seconds: f64,
        /// The strategy.
        strategy: String,
        /// What is broken.
        violation: Violation,
    },
}

impl SimError {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }
}

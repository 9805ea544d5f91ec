//! The commands, one module each.

mod agent;
mod cancel;
mod context;
mod events;
mod explain;
mod guardian;
mod jobs;
mod kubernetes;
mod logs;
mod monitor;
mod nodes;
mod openapi;
mod run;
mod scheduler;
mod server;
mod simulate;
mod standalone;
mod status;
mod submit;
mod top;
mod up;

use std::process::ExitCode;

use anyhow::Result;

use crate::failure;

/// What `run` ends with when it is not the job that failed, as `docker run` does.
const OWN_FAILURE: u8 = 125;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Up(Box<up::Args>),
    Run(Box<run::Args>),
    Submit(Box<submit::Args>),
    Logs(logs::Args),
    Status(status::Args),
    Jobs(jobs::Args),
    Nodes(nodes::Args),
    Top(top::Args),
    Events(events::Args),
    Cancel(cancel::Args),
    Explain(explain::Args),
    #[command(name = "what-if")]
    WhatIf(Box<explain::WhatIfArgs>),
    Context(context::Args),
    Server(Box<server::Args>),
    Agent(Box<agent::Args>),
    Scheduler(Box<scheduler::Args>),
    Monitor(Box<monitor::Args>),
    Simulate(Box<simulate::Args>),
    #[command(hide = true)]
    Guardian(guardian::Args),
    #[command(hide = true)]
    Openapi(openapi::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let done = match self {
            Self::Run(args) => {
                return Ok(run::run(&args).unwrap_or_else(|error| own_failure(&error)));
            }
            Self::Top(args) => return top::run(&args),
            Self::Up(args) => up::run(&args),
            Self::Submit(args) => submit::run(&args),
            Self::Logs(args) => logs::run(&args),
            Self::Status(args) => status::run(&args),
            Self::Jobs(args) => jobs::run(&args),
            Self::Nodes(args) => nodes::run(&args),
            Self::Events(args) => events::run(&args),
            Self::Cancel(args) => cancel::run(&args),
            Self::Explain(args) => explain::run(&args),
            Self::WhatIf(args) => explain::what_if(&args),
            Self::Context(args) => context::run(&args),
            Self::Server(args) => server::run(&args),
            Self::Agent(args) => agent::run(&args),
            Self::Scheduler(args) => scheduler::run(&args),
            Self::Monitor(args) => monitor::run(&args),
            Self::Simulate(args) => simulate::run(&args),
            Self::Guardian(args) => guardian::run(&args),
            Self::Openapi(args) => openapi::run(&args),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

/// A script must be able to tell a job that failed from a job that never ran.
fn own_failure(error: &anyhow::Error) -> ExitCode {
    let code = failure::report(error);
    if error.is::<failure::Usage>() { code } else { ExitCode::from(OWN_FAILURE) }
}

//! The commands, one module each.

mod agent;
mod alert_args;
mod alerts;
mod cancel;
mod completion;
mod context;
mod cost;
mod describe;
mod detect;
mod doctor;
mod events;
mod exclusive;
mod explain;
mod fleet;
mod generate;
mod get;
mod guardian;
mod health;
mod kubernetes;
mod lint;
mod login;
mod logs;
mod metrics_access;
mod monitor;
mod node;
mod openapi;
mod otlp_args;
mod queue;
mod run;
mod scheduler;
mod server;
mod simulate;
mod standalone;
mod status;
mod strategy;
mod submit;
mod token;
mod top;
mod uninstall;
mod up;
mod user;
mod version;
mod waste;
mod watch;

use std::process::ExitCode;

use anyhow::Result;

use crate::failure;

pub(crate) use completion::VARIABLE as COMPLETE_VARIABLE;

/// Exit code of `run` for a failure of agentaflow itself, as of `docker run`.
const RUN_FAILURE: u8 = 125;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    // Jobs.
    Run(Box<run::Args>),
    Submit(Box<submit::Args>),
    #[command(name = "what-if")]
    WhatIf(Box<explain::WhatIfArgs>),
    Status(status::Args),
    Watch(watch::Args),
    Top(top::Args),
    Get(get::Args),
    Describe(describe::Args),
    Explain(explain::Args),
    Logs(logs::Args),
    Events(events::Args),
    Cancel(cancel::Args),
    Complete(cancel::CompleteArgs),
    #[command(visible_alias = "workloads")]
    Jobs(get::JobsArgs),
    Nodes(get::NodesArgs),
    Cost(cost::Args),
    Waste(waste::Args),
    // Nodes, queues and users.
    Health(health::HealthArgs),
    Metrics(health::MetricsArgs),
    Alerts(alerts::Args),
    Strategy(strategy::Args),
    Queue(queue::Args),
    Cordon(fleet::CordonArgs),
    Uncordon(fleet::UncordonArgs),
    Drain(fleet::DrainArgs),
    Node(node::Args),
    Exclusive(exclusive::Args),
    Uninstall(uninstall::Args),
    User(user::Args),
    Token(token::Args),
    // Contexts.
    Login(login::Args),
    Whoami(user::WhoAmIArgs),
    // Manifests.
    Detect(detect::Args),
    Generate(Box<generate::Args>),
    #[command(name = "generate-template")]
    GenerateTemplate(generate::TemplateArgs),
    Lint(Box<lint::Args>),
    Context(context::Args),
    Doctor(doctor::Args),
    // Daemons.
    Up(Box<up::Args>),
    Server(Box<server::Args>),
    Agent(Box<agent::Args>),
    Scheduler(Box<scheduler::Args>),
    Monitor(Box<monitor::Args>),
    Simulate(Box<simulate::Args>),
    // This program.
    Completion(completion::CompletionArgs),
    Man(completion::ManArgs),
    Version(version::Args),
    #[command(hide = true)]
    Reference(completion::ReferenceArgs),
    #[command(hide = true)]
    Guardian(guardian::Args),
    #[command(hide = true)]
    Openapi(openapi::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let result = match self {
            Self::Run(args) => {
                return Ok(run::run(&args).unwrap_or_else(|error| report_run_failure(&error)));
            }
            Self::Health(args) => return health::health(&args),
            Self::Doctor(args) => return doctor::run(&args),
            Self::Lint(args) => return lint::run(&args),
            Self::Top(args) => return top::run(&args),
            Self::Up(args) => up::run(&args),
            Self::Submit(args) => submit::run(&args),
            Self::WhatIf(args) => explain::what_if(&args),
            Self::Status(args) => status::run(&args),
            Self::Watch(args) => watch::run(&args),
            Self::Get(args) => get::run(&args),
            Self::Describe(args) => describe::run(&args),
            Self::Explain(args) => explain::run(&args),
            Self::Logs(args) => logs::run(&args),
            Self::Events(args) => events::run(&args),
            Self::Cancel(args) => cancel::run(&args),
            Self::Complete(args) => cancel::complete(&args),
            Self::Jobs(args) => get::jobs(&args),
            Self::Nodes(args) => get::nodes(&args),
            Self::Cost(args) => cost::run(&args),
            Self::Waste(args) => waste::run(&args),
            Self::Metrics(args) => health::metrics(&args),
            Self::Alerts(args) => alerts::run(&args),
            Self::Strategy(args) => strategy::run(&args),
            Self::Queue(args) => queue::run(&args),
            Self::Cordon(args) => fleet::cordon(&args),
            Self::Uncordon(args) => fleet::uncordon(&args),
            Self::Drain(args) => fleet::drain(&args),
            Self::Node(args) => node::run(&args),
            Self::Exclusive(args) => exclusive::run(&args),
            Self::Uninstall(args) => uninstall::run(&args),
            Self::User(args) => user::run(&args),
            Self::Token(args) => token::run(&args),
            Self::Login(args) => login::run(&args),
            Self::Whoami(args) => user::who_am_i(&args),
            Self::Detect(args) => detect::run(&args),
            Self::Context(args) => context::run(&args),
            Self::Server(args) => server::run(&args),
            Self::Agent(args) => agent::run(&args),
            Self::Scheduler(args) => scheduler::run(&args),
            Self::Monitor(args) => monitor::run(&args),
            Self::Simulate(args) => simulate::run(&args),
            Self::Completion(args) => completion::completion(&args),
            Self::Man(args) => completion::man(&args),
            Self::Version(args) => version::run(&args),
            Self::Reference(args) => completion::reference(&args),
            Self::Generate(args) => generate::run(*args),
            Self::GenerateTemplate(args) => generate::run_template(&args),
            Self::Guardian(args) => guardian::run(&args),
            Self::Openapi(args) => openapi::run(&args),
        };
        result.map(|()| ExitCode::SUCCESS)
    }
}

/// A script must be able to distinguish a failed job from a job that never ran.
fn report_run_failure(error: &anyhow::Error) -> ExitCode {
    let code = failure::report(error);
    if error.is::<failure::UsageError>() { code } else { ExitCode::from(RUN_FAILURE) }
}

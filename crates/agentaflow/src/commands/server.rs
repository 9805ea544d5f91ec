//! `agentaflow server`: the API, the store and the scheduler, for agents on other machines.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agentaflow_api::Dollars;
use agentaflow_engine::{MicroDollars, Span, Strategy};
use agentaflow_server::serve;
use agentaflow_server::settings::Settings;
use anyhow::{Result, anyhow};

use super::standalone::{self, asked_to_stop};
use crate::amount;
use crate::context::variable;
use crate::failure::usage;
use crate::logging::LogArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow server --listen 127.0.0.1:8000 --data-dir /var/lib/agentaflow
      A server on one machine, with its database in a file
  AGENTAFLOW_DATABASE=postgres://agentaflow:secret@db/agentaflow agentaflow server
      The same on PostgreSQL, without the password on the command line

The folder holds `admin-token`, which lets an admin in, and `registration-token`, which agents need.";

/// Why a server ends by itself.
pub(crate) const TAKEN_OVER: &str = "another server took over the database, so this one must not go on; only one may run on a database";

/// Run the API server; agents join it with `agentaflow agent`
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", value_parser = amount::address, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Folder for the database, tokens and logs [default: ~/.local/share/agentaflow]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// `postgres://…`, or `none` for a file in the data folder [default: AGENTAFLOW_DATABASE, else none]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// How GPUs are chosen for jobs that do not say
    #[arg(long, value_name = "NAME", value_parser = standalone::strategies())]
    strategy: Option<Strategy>,
    /// Let anybody sign up; otherwise an admin invites
    #[arg(long)]
    open_signup: bool,
    /// Name under which browsers reach the server; may be given several times
    #[arg(long, value_name = "NAME")]
    public_host: Vec<String>,
    /// Address that agents may name as their push endpoint besides their own; may be given several times
    #[arg(long, value_name = "HOST")]
    push_allow: Vec<String>,
    /// Requests a second that each account may make
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    rate: u32,
    #[command(flatten)]
    money: MoneyArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// What things cost when nobody says.
#[derive(Debug, clap::Args)]
struct MoneyArgs {
    /// Dollars an hour for a GPU on nodes that name no price and whose model is not known
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Money")]
    default_price_gpu_hour: Option<Dollars>,
    /// Dollars an hour for a CPU core on such nodes
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Money")]
    default_price_cpu_hour: Option<Dollars>,
    /// Dollars an hour for a GiB of memory on such nodes
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Money")]
    default_price_memory_gb_hour: Option<Dollars>,
    /// How long a job goes on after the warning that its owner's money is used up
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = amount::duration, help_heading = "Money")]
    budget_grace: Duration,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.log.start()?;
    let settings = settings(args)?;
    standalone::runtime(2)?.block_on(async {
        let data = settings.data_dir.display().to_string();
        let running = serve::start(settings).await?;
        for warning in &running.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!("ready on {}; tokens are in {data}", running.url());
        let ended = tokio::select! {
            asked = asked_to_stop() => asked,
            () = running.fatal() => Err(anyhow!(TAKEN_OVER)),
        };
        tracing::info!("stopping; agents keep their jobs running");
        running.stop().await;
        ended
    })
}

fn settings(args: &Args) -> Result<Settings> {
    let mut settings = Settings::new(args.listen, standalone::data_dir(args.data_dir.as_ref())?);
    settings.database = database(args.database.as_deref())?;
    settings.open_signup = args.open_signup;
    settings.push_allow.clone_from(&args.push_allow);
    settings.public_hosts.clone_from(&args.public_host);
    settings.rate = (args.rate, args.rate.saturating_mul(4));
    settings.budget_grace = Span(args.money.budget_grace.as_millis() as u64);
    settings.policy.strategy = args.strategy.unwrap_or(settings.policy.strategy);
    let price = &mut settings.default_price;
    let set = |asked: Option<Dollars>, price: &mut MicroDollars| {
        if let Some(asked) = asked {
            *price = MicroDollars(asked.0.unsigned_abs());
        }
    };
    set(args.money.default_price_gpu_hour, &mut price.gpu_hour);
    set(args.money.default_price_cpu_hour, &mut price.cpu_hour);
    set(args.money.default_price_memory_gb_hour, &mut price.gib_hour);
    Ok(settings)
}

/// The database that was named, on the command line or in the environment.
pub(crate) fn database(named: Option<&str>) -> Result<Option<String>> {
    let named = named.map(String::from).or_else(|| variable("AGENTAFLOW_DATABASE"));
    match named.as_deref() {
        None | Some("none") => Ok(None),
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
            Ok(named)
        }
        // What was given may hold a password, so it is not repeated.
        Some(_) => Err(usage(
            "--database is not a `postgres://…` URL; `none` keeps a file in the data folder",
        )),
    }
}

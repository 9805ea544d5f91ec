//! `agentaflow server`: REST API, store and scheduler.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::Dollars;
use agentaflow_dashboard::Dashboard;
use agentaflow_engine::{MicroDollars, Span, Strategy};
use agentaflow_server::retention::Retention;
use agentaflow_server::serve;
use agentaflow_server::settings::Settings;
use agentaflow_server::tls::Tls;
use anyhow::{Result, anyhow};
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use super::alert_args::AlertArgs;
use super::metrics_access::MetricsListener;
use super::otlp_args::OtlpArgs;
use super::standalone::{self, LeaseArgs, termination_signal};
use crate::amount::{self, Limit};
use crate::context::variable;
use crate::failure::usage;
use crate::logging::LogArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow server --listen 127.0.0.1:8000 --data-dir /var/lib/agentaflow
      With an SQLite database
  agentaflow server --listen 0.0.0.0:8000 --tls-self-signed
      For other machines, with a certificate of its own
  AGENTAFLOW_DATABASE=postgres://agentaflow:secret@db/agentaflow agentaflow server
      With PostgreSQL, and no password on the command line

The data directory has `admin-token` for an admin, and `registration-token` for agents.";

pub(crate) const TAKEN_OVER: &str =
    "another server took over the database; only one server may use a database";

/// Run the API server; agents join with `agentaflow agent`
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Listen address
    #[arg(long, value_name = "ADDR:PORT", value_parser = amount::address, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Directory of the database, tokens and logs [default: ~/.local/share/agentaflow]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// `postgres://…`, or `none` for SQLite in the data directory [default: AGENTAFLOW_DATABASE, else none]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Default strategy
    #[arg(long, value_name = "NAME", value_parser = standalone::strategies())]
    strategy: Option<Strategy>,
    /// Allow sign-up without an invitation
    #[arg(long)]
    open_signup: bool,
    /// Public host name of the server; repeatable
    #[arg(long, value_name = "NAME")]
    public_host: Vec<String>,
    /// Host that agents may use as push endpoint besides their own address; a loopback or link-local address always
    /// needs it; repeatable
    #[arg(long, value_name = "HOST")]
    push_allow: Vec<String>,
    /// Proxy whose X-Forwarded-For and Forwarded headers name the client, as an address or network; repeatable
    #[arg(long, value_name = "CIDR", value_parser = amount::network)]
    trusted_proxy: Vec<IpNet>,
    /// Rate limit per account in requests per second
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    rate: u32,
    #[command(flatten)]
    alerts: AlertArgs,
    #[command(flatten)]
    metrics: MetricsListener,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    retention: RetentionArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    billing: BillingArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    otlp: OtlpArgs,
}

#[derive(Debug, clap::Args)]
struct RetentionArgs {
    /// Delete ended jobs, their events and logs after this time; `none` keeps them. The ledger is always kept
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = amount::age_limit, help_heading = "Retention")]
    keep_jobs: Limit<Duration>,
    /// Delete logs of ended jobs after this time
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = amount::age_limit, help_heading = "Retention")]
    keep_logs: Limit<Duration>,
    /// Maximum size of all logs; the account with the most logs loses its oldest ones first
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = amount::size_limit, help_heading = "Retention")]
    log_storage: Limit<u64>,
    /// Maximum size of the jobs, events and logs of one account; near it, old logs and jobs are deleted; at it, new jobs are rejected and output is dropped
    #[arg(long, value_name = "SIZE", default_value = "20GiB", value_parser = amount::size_limit, help_heading = "Retention")]
    account_storage: Limit<u64>,
    /// Maximum size of the history of readings; more GPUs and jobs keep less than 30 days. `none` keeps no history
    #[arg(long, value_name = "SIZE", default_value = "400MiB", value_parser = amount::size_limit, help_heading = "Retention")]
    history_storage: Limit<u64>,
}

#[derive(Debug, clap::Args)]
struct TlsArgs {
    /// PEM file of the certificate and its chain; replaced files take effect without a restart
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the private key
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,
    /// Create a certificate in the data directory, and renew it; clients pin its fingerprint
    #[arg(long, conflicts_with = "tls_cert", help_heading = "TLS")]
    tls_self_signed: bool,
    /// Allow plain HTTP on an address that other machines can reach
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_self_signed"], help_heading = "TLS")]
    insecure: bool,
}

impl TlsArgs {
    fn origin(&self) -> Option<Tls> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                Some(Tls::Files { certificate: certificate.clone(), key: key.clone() })
            }
            _ => self.tls_self_signed.then_some(Tls::SelfSigned),
        }
    }
}

#[derive(Debug, clap::Args)]
struct BillingArgs {
    /// Default price of a GPU hour in dollars, for nodes without a price and with an unknown GPU model
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Billing")]
    default_price_gpu_hour: Option<Dollars>,
    /// Default price of a CPU core hour in dollars
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Billing")]
    default_price_cpu_hour: Option<Dollars>,
    /// Default price of a GiB hour of memory in dollars
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Billing")]
    default_price_memory_gb_hour: Option<Dollars>,
    /// Grace period of running jobs after the budget of their owner is exhausted
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = amount::duration, help_heading = "Billing")]
    budget_grace: Duration,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.log.start()?;
    let settings = settings(args)?;
    standalone::runtime(2)?.block_on(async {
        let data = settings.data_dir.display().to_string();
        let running = serve::start(settings).await?;
        let stop_metrics = CancellationToken::new();
        let core = Arc::new(running.core.clone());
        let alerts = Arc::new(running.alerts.clone());
        let metrics = args.metrics.serve(vec![core, alerts], stop_metrics.clone()).await?;
        tokio::spawn(agentaflow_agent::release_start_pages());
        for warning in &running.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!("listening on {}; tokens are in {data}", running.url());
        if let Some(address) = metrics {
            tracing::info!("metrics at http://{address}/metrics");
        }
        if let Some(fingerprint) = running.fingerprint {
            tracing::info!("fingerprint for clients: {fingerprint}");
        }
        let ended = tokio::select! {
            received = termination_signal() => received,
            () = running.fatal() => Err(anyhow!(TAKEN_OVER)),
        };
        tracing::info!("stopping; agents keep their jobs running");
        stop_metrics.cancel();
        running.stop().await;
        ended
    })
}

fn settings(args: &Args) -> Result<Settings> {
    let mut settings = Settings::new(args.listen, standalone::data_dir(args.data_dir.as_ref())?);
    settings.alerts = args.alerts.config()?;
    settings.database = database(args.database.as_deref())?;
    settings.tls = args.tls.origin();
    settings.insecure = args.tls.insecure;
    settings.dashboard = Dashboard::embedded();
    settings.open_signup = args.open_signup;
    settings.push_allow.clone_from(&args.push_allow);
    settings.public_hosts.clone_from(&args.public_host);
    settings.trusted_proxies.clone_from(&args.trusted_proxy);
    settings.rate = (args.rate, args.rate.saturating_mul(4));
    settings.traces = args.otlp.collector()?;
    settings.lease = args.lease.lease;
    settings.retention = Retention {
        jobs: args.retention.keep_jobs.0,
        logs: args.retention.keep_logs.0,
        log_bytes: args.retention.log_storage.0,
        account_bytes: args.retention.account_storage.0,
    };
    settings.history_bytes = args.retention.history_storage.0.unwrap_or(0);
    settings.budget_grace = Span(args.billing.budget_grace.as_millis() as u64);
    settings.policy.strategy = args.strategy.unwrap_or(settings.policy.strategy);
    let price = &mut settings.default_price;
    let set = |option: Option<Dollars>, price: &mut MicroDollars| {
        if let Some(option) = option {
            *price = MicroDollars(option.0.unsigned_abs());
        }
    };
    set(args.billing.default_price_gpu_hour, &mut price.gpu_hour);
    set(args.billing.default_price_cpu_hour, &mut price.cpu_hour);
    set(args.billing.default_price_memory_gb_hour, &mut price.gib_hour);
    Ok(settings)
}

/// Database URL of the option or the environment.
pub(crate) fn database(option: Option<&str>) -> Result<Option<String>> {
    let url = option.map(String::from).or_else(|| variable("AGENTAFLOW_DATABASE"));
    match url.as_deref() {
        None | Some("none") => Ok(None),
        Some(text) if text.starts_with("postgres://") || text.starts_with("postgresql://") => {
            Ok(url)
        }
        // The value may contain a password, so the error does not repeat it.
        Some(_) => Err(usage(
            "--database must be a `postgres://…` URL, or `none` for SQLite in the data directory",
        )),
    }
}

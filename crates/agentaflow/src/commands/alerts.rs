//! `agentaflow alerts`: alerts, test messages and silences.

use std::time::Duration;

use agentaflow_api::alert::{
    Alert, AlertKind, AlertReport, AlertSink, AlertState, AlertSubject, AlertTestResult, Silence,
    SilenceCreate, SilenceMatch,
};
use agentaflow_api::units::Stamp;
use agentaflow_console::format::ago;
use agentaflow_units::format_duration_rounded;
use anyhow::{Context as _, Result, anyhow};

use crate::amount;
use crate::connect::{Connect, block_on};
use crate::failure::usage;
use crate::list::{ListArgs, Listing};
use crate::listing::{left, right};
use crate::output::{self, Column};

/// Show alerts, test their sinks, and silence them
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: AlertsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AlertsCommand {
    List(ListAlerts),
    Test(TestArgs),
    Silence(Box<SilenceArgs>),
    Unsilence(UnsilenceArgs),
}

/// List firing and pending alerts
#[derive(Debug, clap::Args)]
struct ListAlerts {
    /// Include alerts that were resolved in the last 24 hours
    #[arg(short, long)]
    all: bool,
    /// List silences instead
    #[arg(long, conflicts_with_all = ["all", "sinks"])]
    silences: bool,
    /// List sinks with the result of their last delivery instead
    #[arg(long, conflicts_with = "all")]
    sinks: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

/// Send a test message to one sink or to all
#[derive(Debug, clap::Args)]
struct TestArgs {
    /// Sink name from `agentaflow alerts list --sinks` [default: all sinks]
    sink: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Silence matching alerts for a time: they stay in lists, but send no messages
#[derive(Debug, clap::Args)]
struct SilenceArgs {
    /// Alert id from `agentaflow alerts list`
    #[arg(value_name = "ALERT")]
    alert: Option<String>,
    /// Kind of alerts, such as `gpu_hot`
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kind: Option<AlertKind>,
    /// Node name
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// GPU of the node
    #[arg(long, value_name = "GPU", requires = "node")]
    gpu: Option<String>,
    /// Job number, or NAMESPACE/NAME in Kubernetes
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Queue name
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// User name
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Length of the silence, such as 2h or 7d
    #[arg(long = "for", value_name = "TIME", value_parser = amount::positive_duration)]
    length: Duration,
    /// Reason, for other operators
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

/// End a silence
#[derive(Debug, clap::Args)]
struct UnsilenceArgs {
    /// Silence id from `agentaflow alerts list --silences`
    id: String,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        AlertsCommand::List(args) => block_on(list(args)),
        AlertsCommand::Test(args) => block_on(test(args)),
        AlertsCommand::Silence(args) => block_on(silence(args)),
        AlertsCommand::Unsilence(args) => block_on(async {
            let ended = args.connect.backend().await?.unsilence(&args.id).await;
            ended.with_context(|| format!("cannot end silence {}", args.id))?;
            output::print(&format!("silence {} ended\n", args.id))
        }),
    }
}

async fn list(args: &ListAlerts) -> Result<()> {
    let backend = args.connect.backend().await?;
    let report = async || -> Result<AlertReport> {
        let report = backend.alerts().await?;
        report.problems.iter().for_each(|problem| eprintln!("warning: {problem}"));
        Ok(report)
    };
    if args.silences {
        return args.list.show(&SILENCES, async || Ok(report().await?.silences)).await;
    }
    if args.sinks {
        return args.list.show(&SINKS, async || Ok(report().await?.sinks)).await;
    }
    let alerts = async || {
        let mut alerts = report().await?.alerts;
        alerts.retain(|alert| args.all || alert.state != AlertState::Resolved);
        Ok(alerts)
    };
    args.list.show(&ALERTS, alerts).await
}

async fn test(args: &TestArgs) -> Result<()> {
    let results = args.connect.backend().await?.test_alerts(args.sink.clone()).await?;
    if results.is_empty() {
        return Err(usage(
            "no sink is configured; see `agentaflow server --help`, heading Alerts, or the Secret `alert-webhook` in \
             Kubernetes",
        ));
    }
    for result in &results {
        output::print(&test_line(result))?;
    }
    let failed = results.iter().filter(|result| !result.delivered).count();
    if failed > 0 {
        return Err(anyhow!("{failed} of {} sinks did not accept the message", results.len()));
    }
    Ok(())
}

fn test_line(result: &AlertTestResult) -> String {
    match &result.error {
        None => format!("sink {}: delivered\n", result.sink),
        Some(error) => format!("sink {}: {error}\n", result.sink),
    }
}

async fn silence(args: &SilenceArgs) -> Result<()> {
    let matcher = SilenceMatch {
        alert: args.alert.clone(),
        kind: args.kind,
        subject: AlertSubject {
            node: args.node.clone(),
            gpu: args.gpu.clone(),
            job: args.job.clone(),
            queue: args.queue.clone(),
            user: args.user.clone(),
            name: None,
        },
    };
    if matcher.is_empty() {
        return Err(usage("name an alert, or use --kind, --node, --job, --queue or --user"));
    }
    let seconds = args.length.as_secs().max(1);
    let comment = args.comment.clone().unwrap_or_default();
    let wanted = SilenceCreate { matcher, seconds, comment };
    let silence = args.connect.backend().await?.silence(&wanted).await?;
    output::print(&format!("silence {} lasts until {}\n", silence.id, silence.until))
}

fn kind(text: &str) -> Result<AlertKind, String> {
    let known = AlertKind::ALL.iter().find(|kind| kind.as_str() == text);
    let known = known.filter(|kind| !matches!(kind, AlertKind::Unknown | AlertKind::Test));
    known.copied().ok_or_else(|| {
        let kinds = AlertKind::ALL.iter().map(|kind| kind.as_str());
        let kinds: Vec<_> = kinds.filter(|kind| !matches!(*kind, "unknown" | "test")).collect();
        format!("use one of {}", kinds.join(", "))
    })
}

/// State of an alert, with the silence.
fn state(alert: &Alert) -> String {
    match &alert.silenced_by {
        Some(_) if alert.state == AlertState::Firing => "silenced".to_owned(),
        _ => alert.state.to_string(),
    }
}

fn matched(matcher: &SilenceMatch) -> String {
    let SilenceMatch { alert, kind, subject } = matcher;
    let kind = kind.map(|kind| kind.to_string());
    let AlertSubject { node, gpu, job, queue, user, name } = subject;
    let all = [
        ("alert", alert),
        ("kind", &kind),
        ("node", node),
        ("gpu", gpu),
        ("job", job),
        ("queue", queue),
        ("user", user),
        ("name", name),
    ];
    let given = all.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    given.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

fn left_until(until: Stamp) -> String {
    let left = u64::try_from(until.0.saturating_sub(Stamp::now().0)).unwrap_or(0);
    format_duration_rounded(Duration::from_millis(left))
}

fn result(sink: &AlertSink) -> String {
    match (&sink.last_error, sink.last_success) {
        (Some(error), _) => format!("failed {} times: {error}", sink.failures),
        (None, Some(at)) => format!("delivered {}", ago(at)),
        (None, None) => "no message yet".to_owned(),
    }
}

const ALERTS: Listing<Alert> =
    Listing { columns: &ALERT_COLUMNS, name: |alert| alert.id.clone(), empty: "No alerts." };

const ALERT_COLUMNS: [Column<Alert>; 7] = [
    left("ID", 0, |alert| alert.id.clone()),
    left("STATE", 0, state),
    left("SEVERITY", 1, |alert| alert.severity.to_string()),
    left("KIND", 2, |alert| alert.kind.to_string()),
    right("SINCE", 1, |alert| ago(alert.since)),
    left("SUMMARY", 0, |alert| alert.summary.clone()),
    left("ACTION", output::WIDE, |alert| alert.action.clone()),
];

const SILENCES: Listing<Silence> = Listing {
    columns: &SILENCE_COLUMNS,
    name: |silence| silence.id.clone(),
    empty: "No silences.",
};

const SILENCE_COLUMNS: [Column<Silence>; 5] = [
    left("ID", 0, |silence| silence.id.clone()),
    left("MATCH", 0, |silence| matched(&silence.matcher)),
    right("ENDS IN", 0, |silence| left_until(silence.until)),
    left("BY", 2, |silence| silence.author.clone()),
    left("COMMENT", 1, |silence| silence.comment.clone()),
];

const SINKS: Listing<AlertSink> = Listing {
    columns: &SINK_COLUMNS,
    name: |sink| sink.name.clone(),
    empty: "No sinks. `agentaflow server --alerts FILE` configures them.",
};

const SINK_COLUMNS: [Column<AlertSink>; 4] = [
    left("NAME", 0, |sink| sink.name.clone()),
    left("TYPE", 0, |sink| sink.kind.clone()),
    left("FROM", 1, |sink| sink.min_severity.to_string()),
    left("STATUS", 0, result),
];

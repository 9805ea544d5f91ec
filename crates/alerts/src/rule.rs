//! The built-in rules: facts to conditions. A rule has thresholds by severity, a time for which its condition must hold
//! before it fires, and a time for which it must be gone before it resolves.

use std::collections::BTreeMap;
use std::time::Duration;

use agentaflow_api::alert::{AlertKind, AlertSubject, Severity};
use agentaflow_api::units::Stamp;
use agentaflow_units::format_duration_rounded;
use serde::Deserialize;

use crate::config::Time;
use crate::facts::{Facts, GpuFacts};

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Unit of the thresholds of a rule, and their range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Celsius,
    Percent,
    Count,
    /// Seconds; the document has a duration.
    Time,
    /// The condition has no threshold.
    None,
}

/// A rule with its settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) enabled: bool,
    /// Least urgent first; the last one that a value passes counts.
    levels: Vec<(Severity, f64)>,
    unit: Unit,
    /// The condition is a value below the threshold.
    below: bool,
    /// Time for which the condition must hold.
    pub(crate) hold: Duration,
    /// Time for which the condition must be gone.
    pub(crate) keep: Duration,
    /// The document sets the thresholds.
    customized: bool,
}

/// Settings of a rule in the document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleText {
    enabled: Option<bool>,
    info: Option<Threshold>,
    warning: Option<Threshold>,
    critical: Option<Threshold>,
    #[serde(rename = "for")]
    hold: Option<Time>,
    keep: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Threshold {
    Number(f64),
    Text(String),
}

/// A condition that holds, or whose state is unknown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) kind: AlertKind,
    pub(crate) subject: AlertSubject,
    /// None if the facts do not tell: the alert stays as it is.
    pub(crate) condition: Option<Condition>,
}

impl Observation {
    fn unknown(kind: AlertKind, subject: AlertSubject) -> Self {
        Self { kind, subject, condition: None }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) severity: Severity,
    pub(crate) value: Option<f64>,
    pub(crate) threshold: Option<f64>,
    pub(crate) summary: String,
    pub(crate) action: &'static str,
}

impl Rule {
    /// All rules with their default settings.
    pub(crate) fn defaults() -> BTreeMap<AlertKind, Self> {
        use AlertKind as Kind;
        use Severity::{Critical, Info, Warning};
        let seconds = |time: Duration| time.as_secs_f64();
        let rule = |unit, levels: &[(Severity, f64)], hold, keep| Self {
            enabled: true,
            levels: levels.to_vec(),
            unit,
            below: false,
            hold,
            keep,
            customized: false,
        };
        let below = |rule: Self| Self { below: true, ..rule };
        let now = Duration::ZERO;
        [
            (
                Kind::GpuHot,
                rule(Unit::Celsius, &[(Warning, 85.0), (Critical, 95.0)], MINUTE, MINUTE),
            ),
            (Kind::GpuEcc, rule(Unit::Count, &[(Critical, 1.0)], now, now)),
            (Kind::GpuXid, rule(Unit::None, &[(Critical, 0.0)], now, now)),
            (Kind::GpuLost, rule(Unit::None, &[(Critical, 0.0)], MINUTE, now)),
            (Kind::GpuIdle, below(rule(Unit::Percent, &[(Warning, 5.0)], HOUR, MINUTE))),
            (Kind::GpuPower, rule(Unit::Percent, &[(Info, 98.0)], MINUTE * 30, MINUTE)),
            (Kind::GpuMemory, rule(Unit::Percent, &[(Info, 98.0)], MINUTE * 10, MINUTE)),
            (Kind::NodeSilent, rule(Unit::None, &[(Critical, 0.0)], MINUTE, now)),
            (Kind::QueueWait, rule(Unit::Time, &[(Warning, seconds(HOUR))], now, now)),
            (Kind::Utilization, below(rule(Unit::Percent, &[(Info, 80.0)], HOUR, MINUTE))),
            (Kind::Budget, rule(Unit::Percent, &[(Warning, 80.0), (Critical, 100.0)], now, now)),
            (
                Kind::Certificate,
                below(rule(
                    Unit::Time,
                    &[(Warning, seconds(DAY * 14)), (Critical, seconds(DAY * 3))],
                    now,
                    now,
                )),
            ),
            (Kind::Disk, rule(Unit::Percent, &[(Warning, 90.0), (Critical, 95.0)], MINUTE, MINUTE)),
            (Kind::Scheduler, rule(Unit::Time, &[(Critical, seconds(MINUTE))], now, now)),
        ]
        .into()
    }

    /// Overrides the settings that the document has.
    pub(crate) fn apply(&mut self, text: &RuleText) -> Result<(), String> {
        let given = [
            (Severity::Info, &text.info),
            (Severity::Warning, &text.warning),
            (Severity::Critical, &text.critical),
        ];
        self.enabled = text.enabled.unwrap_or(self.enabled);
        self.hold = text.hold.map_or(self.hold, |time| time.0);
        self.keep = text.keep.map_or(self.keep, |time| time.0);
        if self.hold > 30 * DAY || self.keep > 30 * DAY {
            return Err("for and keep are at most 30d".to_owned());
        }
        let mut levels = Vec::new();
        for (severity, threshold) in given {
            let Some(threshold) = threshold else { continue };
            levels.push((severity, self.unit.read(threshold)?));
        }
        if levels.is_empty() {
            return Ok(());
        }
        let ordered = levels
            .windows(2)
            .all(|pair| if self.below { pair[0].1 > pair[1].1 } else { pair[0].1 < pair[1].1 });
        if !ordered {
            let word = if self.below { "lower" } else { "higher" };
            return Err(format!("a more urgent threshold must be {word}"));
        }
        (self.levels, self.customized) = (levels, true);
        Ok(())
    }

    pub(crate) fn set_default_goal(&mut self, percent: f64) {
        if !self.customized {
            self.levels = vec![(Severity::Info, percent)];
        }
    }

    /// Most urgent level that a value passes.
    fn level(&self, value: f64) -> Option<(Severity, f64)> {
        let passes =
            |threshold: f64| if self.below { value < threshold } else { value >= threshold };
        self.levels.iter().rfind(|(_, threshold)| passes(*threshold)).copied()
    }
}

impl Unit {
    fn read(self, threshold: &Threshold) -> Result<f64, String> {
        let number = match (self, threshold) {
            (Self::None, _) => return Err("this rule has no thresholds".to_owned()),
            (Self::Time, Threshold::Text(text)) => agentaflow_units::parse_duration(text)
                .map_err(|error| error.to_string())?
                .as_secs_f64(),
            (Self::Time, Threshold::Number(_)) => {
                return Err("use a time such as \"30m\" as the threshold".to_owned());
            }
            (_, Threshold::Number(number)) => *number,
            (_, Threshold::Text(_)) => return Err("use a number as the threshold".to_owned()),
        };
        let (least, most) = match self {
            Self::Celsius => (1.0, 150.0),
            // A budget may be exceeded.
            Self::Percent => (0.0, 1000.0),
            Self::Count => (1.0, 1e9),
            Self::Time | Self::None => (1.0, 365.0 * 86_400.0),
        };
        if !(least..=most).contains(&number) {
            return Err(format!("a threshold must be from {least} to {most}"));
        }
        Ok(number)
    }
}

/// Evaluates the enabled rules. An absent condition does not hold.
pub(crate) fn evaluate(
    rules: &BTreeMap<AlertKind, Rule>,
    now: Stamp,
    facts: &Facts,
) -> Vec<Observation> {
    let mut found = Observations { rules, list: Vec::new() };
    for gpu in &facts.gpus {
        found.gpu(gpu);
    }
    found.nodes(now, facts);
    found.queues(now, facts);
    found.cluster(facts);
    found.budgets(facts);
    found.machine(now, facts);
    found.list
}

struct Observations<'a> {
    rules: &'a BTreeMap<AlertKind, Rule>,
    list: Vec<Observation>,
}

impl Observations<'_> {
    /// Adds a condition if its rule is enabled and the value passes a threshold.
    fn add(
        &mut self,
        kind: AlertKind,
        subject: AlertSubject,
        value: Option<f64>,
        action: &'static str,
        summary: impl FnOnce(f64) -> String,
    ) {
        let Some(rule) = self.rules.get(&kind).filter(|rule| rule.enabled) else { return };
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        let Some((severity, threshold)) = rule.level(value) else { return };
        let has_threshold = rule.unit != Unit::None;
        let condition = Condition {
            severity,
            value: Some(value).filter(|_| has_threshold || kind == AlertKind::GpuXid),
            threshold: Some(threshold).filter(|_| has_threshold),
            summary: summary(value),
            action,
        };
        self.list.push(Observation { kind, subject, condition: Some(condition) });
    }

    fn gpu(&mut self, gpu: &GpuFacts) {
        let subject = AlertSubject {
            node: Some(gpu.node.clone()),
            gpu: Some(gpu.gpu.clone()),
            ..AlertSubject::default()
        };
        let holder = gpu.job.as_ref().map(|job| AlertSubject {
            job: Some(job.job.clone()),
            user: job.user.clone(),
            ..subject.clone()
        });
        if gpu.stale {
            let kinds = GPU_KINDS.map(|kind| Observation::unknown(kind, subject.clone()));
            self.list.extend(kinds);
            let idle = holder.map(|holder| Observation::unknown(AlertKind::GpuIdle, holder));
            self.list.extend(idle);
            return;
        }
        self.gpu_faults(gpu, &subject);
        self.gpu_load(gpu, &subject, holder);
    }

    fn gpu_faults(&mut self, gpu: &GpuFacts, subject: &AlertSubject) {
        let place = format!("GPU {} on {}", gpu.gpu, gpu.node);
        let problem = gpu.problem.as_deref().map(|problem| format!(": {problem}"));
        let problem = problem.unwrap_or_default();
        self.add(AlertKind::GpuHot, subject.clone(), gpu.temperature, HOT, |value| {
            format!("{place} is at {} °C", short(value))
        });
        let ecc = gpu.ecc_errors.map(|errors| errors as f64);
        self.add(AlertKind::GpuEcc, subject.clone(), ecc, ECC, |value| {
            format!("{place} has {} uncorrected memory errors", short(value))
        });
        let xid = gpu.xid.map(|xid| xid as f64);
        self.add(AlertKind::GpuXid, subject.clone(), xid, XID, |value| {
            format!("{place} reported driver error XID {}{problem}", short(value))
        });
        let lost = gpu.lost.then_some(1.0);
        self.add(AlertKind::GpuLost, subject.clone(), lost, LOST, |_| {
            format!("{place} is lost{problem}")
        });
    }

    fn gpu_load(&mut self, gpu: &GpuFacts, subject: &AlertSubject, holder: Option<AlertSubject>) {
        let place = format!("GPU {} on {}", gpu.gpu, gpu.node);
        let share = |part: Option<f64>, all: Option<f64>| {
            Some(100.0 * part? / all.filter(|all| *all > 0.0)?)
        };
        let power = share(gpu.power, gpu.power_limit);
        self.add(AlertKind::GpuPower, subject.clone(), power, POWER, |value| {
            format!("{place} draws {} % of its power limit", short(value))
        });
        let mib = |amount: Option<u64>| amount.map(|mib| mib as f64);
        let memory = share(mib(gpu.memory_used), mib(gpu.memory_total));
        self.add(AlertKind::GpuMemory, subject.clone(), memory, MEMORY, |value| {
            format!("The memory of {place} is {} % full", short(value))
        });
        let Some(holder) = holder else { return };
        let job = holder.job.clone().unwrap_or_default();
        self.add(AlertKind::GpuIdle, holder, gpu.utilization, IDLE, |value| {
            format!("Job {job} holds {place} and uses {} % of it", short(value))
        });
    }

    fn nodes(&mut self, now: Stamp, facts: &Facts) {
        for node in &facts.nodes {
            let subject = AlertSubject { node: Some(node.name.clone()), ..AlertSubject::default() };
            if node.unknown {
                self.list.push(Observation::unknown(AlertKind::NodeSilent, subject));
                continue;
            }
            if !node.silent {
                continue;
            }
            let last = node.last_report.map(|last| seconds_between(last, now));
            let since = last.map(|last| format!(" for {}", rounded(last))).unwrap_or_default();
            self.add(AlertKind::NodeSilent, subject, Some(1.0), SILENT, |_| {
                format!("Node {} has not reported{since}", node.name)
            });
        }
    }

    fn queues(&mut self, now: Stamp, facts: &Facts) {
        for queue in &facts.queues {
            let subject =
                AlertSubject { queue: Some(queue.name.clone()), ..AlertSubject::default() };
            let wait = queue.oldest_pending.map(|since| seconds_between(since, now));
            self.add(AlertKind::QueueWait, subject, wait, WAIT, |value| {
                format!("A job in queue {} has been pending for {}", queue.name, rounded(value))
            });
        }
    }

    fn cluster(&mut self, facts: &Facts) {
        let Some(cluster) = facts.cluster.filter(|cluster| cluster.pending > 0) else { return };
        let subject = AlertSubject::default();
        self.add(AlertKind::Utilization, subject, cluster.utilization, GOAL, |value| {
            format!(
                "Mean GPU utilization is {} % while {} workloads are pending",
                short(value),
                cluster.pending
            )
        });
    }

    fn budgets(&mut self, facts: &Facts) {
        for budget in facts.budgets.iter().filter(|budget| budget.limit > 0) {
            let subject =
                AlertSubject { user: Some(budget.user.clone()), ..AlertSubject::default() };
            let share = 100.0 * budget.spent as f64 / budget.limit as f64;
            self.add(AlertKind::Budget, subject, Some(share), BUDGET, |value| {
                format!("{} has spent {} % of the budget", budget.user, short(value))
            });
        }
    }

    fn machine(&mut self, now: Stamp, facts: &Facts) {
        for certificate in &facts.certificates {
            let subject =
                AlertSubject { name: Some(certificate.name.clone()), ..AlertSubject::default() };
            let left = (certificate.expires.0 - now.0) as f64 / 1000.0;
            self.add(AlertKind::Certificate, subject, Some(left), CERTIFICATE, |value| {
                let name = &certificate.name;
                if value <= 0.0 {
                    format!("Certificate {name} has expired")
                } else {
                    format!("Certificate {name} expires in {}", rounded(value))
                }
            });
        }
        for disk in facts.disks.iter().filter(|disk| disk.total > 0) {
            let subject = AlertSubject { name: Some(disk.path.clone()), ..AlertSubject::default() };
            let used = 100.0 * (1.0 - disk.free as f64 / disk.total as f64);
            self.add(AlertKind::Disk, subject, Some(used), DISK, |value| {
                format!("The disk of {} is {} % full", disk.path, short(value))
            });
        }
        if let Some(scheduler) = facts.scheduler {
            let idle = seconds_between(scheduler.last_turn, now);
            let subject = AlertSubject::default();
            self.add(AlertKind::Scheduler, subject, Some(idle), STALLED, |value| {
                format!("The scheduler has made no progress for {}", rounded(value))
            });
        }
    }
}

/// Kinds whose condition is unknown while a node does not report; the one about an idle GPU names a job.
const GPU_KINDS: [AlertKind; 6] = [
    AlertKind::GpuHot,
    AlertKind::GpuEcc,
    AlertKind::GpuXid,
    AlertKind::GpuLost,
    AlertKind::GpuPower,
    AlertKind::GpuMemory,
];

const HOT: &str =
    "Check the fans and the air flow of the node. From 95 °C on the GPU takes no new work.";
const ECC: &str =
    "Drain the GPU, reset it with `nvidia-smi --gpu-reset`, and replace it if errors return.";
const XID: &str = "Drain the GPU and follow the catalogue of XID errors of NVIDIA.";
const LOST: &str =
    "Check `nvidia-smi` and the kernel log on the node; a reset or a reboot may be needed.";
const POWER: &str =
    "The GPU lowers its clock to stay below the limit. Raise the limit, or expect slower jobs.";
const MEMORY: &str =
    "The next allocation of the job may fail. Request a GPU with more memory, or a smaller batch.";
const IDLE: &str = "Cancel the job if it hangs, or request fewer GPUs.";
const SILENT: &str = "Check the machine, its network, and the agent or monitor on it.";
const WAIT: &str = "`agentaflow get jobs --status pending` has the reasons.";
const GOAL: &str = "Allocated GPUs are not busy. Look for idle jobs, and consider shared GPUs.";
const BUDGET: &str =
    "New jobs stay pending once the budget is spent. An admin can raise the limit.";
const CERTIFICATE: &str = "Replace its files; the server reads new ones without a restart.";
const DISK: &str = "Delete files, shorten the retention of logs, or enlarge the disk. Near its end, output of jobs is dropped.";
const STALLED: &str =
    "Check the log of the scheduler and its database, and restart it if it does not recover.";

fn seconds_between(earlier: Stamp, later: Stamp) -> f64 {
    later.0.saturating_sub(earlier.0).max(0) as f64 / 1000.0
}

fn rounded(seconds: f64) -> String {
    format_duration_rounded(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// A number with at most one decimal.
fn short(value: f64) -> String {
    agentaflow_units::trim_zeros(&format!("{value:.1}")).to_owned()
}

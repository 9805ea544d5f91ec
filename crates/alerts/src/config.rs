//! Configuration of rules and sinks: a TOML document, a file for the server and a key of the `ConfigMap` in Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentaflow_api::alert::{AlertKind, Severity};
use serde::{Deserialize, Deserializer};
use thiserror::Error;
use url::Url;

use crate::quiet::QuietHours;
use crate::rule::{Rule, RuleText};
use crate::secret::SecretRef;

const MOST_SINKS: usize = 50;
const DAY: Duration = Duration::from_hours(24);

/// Name of the sink of a bare URL.
const DEFAULT_SINK: &str = "webhook";

/// A document that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    #[error("{0}")]
    Syntax(String),
    #[error("{place}: {problem}")]
    Value { place: String, problem: String },
}

impl ConfigError {
    pub(crate) fn value(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value { place: place.into(), problem: problem.into() }
    }
}

/// Validated configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the cluster in messages.
    pub cluster: Option<String>,
    /// Address of the dashboard, for links.
    pub dashboard: Option<Url>,
    /// Interval of evaluations.
    pub interval: Duration,
    /// Delay of the first message of a group, so that alerts with one cause become one message.
    pub group_wait: Duration,
    /// Shortest time between two messages of a group.
    pub group_interval: Duration,
    /// Interval at which messages about unresolved alerts are repeated.
    pub repeat: Duration,
    pub quiet: Option<QuietHours>,
    pub sinks: Vec<SinkConfig>,
    pub(crate) rules: BTreeMap<AlertKind, Rule>,
}

/// A destination of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkConfig {
    /// Unique.
    pub name: String,
    pub kind: SinkKind,
    pub min_severity: Severity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// Slack, Teams or the generic format, by the host of the URL.
    Auto(HttpConfig),
    Slack(HttpConfig),
    Teams(HttpConfig),
    Webhook(HttpConfig),
    Alertmanager(HttpConfig),
    Email(EmailConfig),
}

/// A sink with a URL, which is a secret: the URL of a chat permits anyone to write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    pub url: SecretRef,
    /// Bearer token.
    pub token: Option<SecretRef>,
    /// PEM file of authorities to trust besides the system's.
    pub ca_file: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmailConfig {
    pub host: String,
    pub port: u16,
    pub tls: EmailTls,
    pub from: String,
    pub to: Vec<String>,
    pub user: Option<String>,
    pub password: Option<SecretRef>,
    /// PEM file of authorities to trust besides the system's.
    pub ca_file: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EmailTls {
    /// Plain connection that becomes encrypted with STARTTLS, usually on port 587.
    Starttls,
    /// TLS from the first byte, usually on port 465.
    Implicit,
    /// No encryption: only without a password, or to this machine.
    None,
}

impl SinkConfig {
    /// Word of the type.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            SinkKind::Auto(_) => "auto",
            SinkKind::Slack(_) => "slack",
            SinkKind::Teams(_) => "teams",
            SinkKind::Webhook(_) => "webhook",
            SinkKind::Alertmanager(_) => "alertmanager",
            SinkKind::Email(_) => "email",
        }
    }

    /// Alertmanager groups, repeats and mutes messages itself, and needs each alert again before it expires.
    pub(crate) fn manages_messages(&self) -> bool {
        matches!(self.kind, SinkKind::Alertmanager(_))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: None,
            dashboard: None,
            interval: Duration::from_secs(5),
            group_wait: Duration::from_secs(10),
            group_interval: Duration::from_mins(5),
            repeat: Duration::from_hours(12),
            quiet: None,
            sinks: Vec::new(),
            rules: Rule::defaults(),
        }
    }
}

impl Config {
    /// Reads a document. Absent keys have their defaults; unknown ones are refused.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let document: Document = toml::from_str(text).map_err(|error| {
            // The message without the excerpt, which could show a secret that was put here by mistake.
            let line = error.span().map(|span| text[..span.start.min(text.len())].lines().count());
            let line = line.map(|line| format!("line {}: ", line.max(1))).unwrap_or_default();
            ConfigError::Syntax(format!("{line}{}", error.message()))
        })?;
        document.check()
    }

    /// Adds a sink for a bare URL, unless the document has sinks.
    #[must_use]
    pub fn or_webhook(mut self, url: SecretRef) -> Self {
        if self.sinks.is_empty() {
            self.sinks.push(SinkConfig {
                name: DEFAULT_SINK.to_owned(),
                kind: SinkKind::Auto(HttpConfig { url, token: None, ca_file: None }),
                min_severity: Severity::Info,
            });
        }
        self
    }

    /// Sets the goal of the mean utilization, unless the document sets it.
    pub fn set_utilization_goal(&mut self, percent: f64) {
        if let Some(rule) = self.rules.get_mut(&AlertKind::Utilization) {
            rule.set_default_goal(percent);
        }
    }

    pub(crate) fn sink(&self, name: &str) -> Option<&SinkConfig> {
        self.sinks.iter().find(|sink| sink.name == name)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    cluster: Option<String>,
    dashboard: Option<String>,
    interval: Option<Time>,
    group_wait: Option<Time>,
    group_interval: Option<Time>,
    repeat: Option<Time>,
    quiet: Option<QuietText>,
    rules: BTreeMap<String, RuleText>,
    #[serde(rename = "sink")]
    sinks: Vec<SinkText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuietText {
    from: String,
    to: String,
    zone: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SinkText {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    min_severity: Option<String>,
    url_file: Option<String>,
    url_env: Option<String>,
    url_key: Option<String>,
    token_file: Option<String>,
    token_env: Option<String>,
    token_key: Option<String>,
    ca_file: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    tls: Option<EmailTls>,
    from: Option<String>,
    #[serde(default)]
    to: Vec<String>,
    user: Option<String>,
    password_file: Option<String>,
    password_env: Option<String>,
    password_key: Option<String>,
}

/// A duration such as `90s` or `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        agentaflow_units::parse_duration(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl Document {
    fn check(self) -> Result<Config, ConfigError> {
        let usual = Config::default();
        let mut rules = usual.rules;
        for (name, text) in &self.rules {
            let kind = AlertKind::from_word(name);
            let rule = rules.get_mut(&kind).filter(|_| kind.as_str() == name);
            let rule = rule.ok_or_else(|| {
                let names: Vec<&str> =
                    Rule::defaults().into_keys().map(AlertKind::as_str).collect();
                ConfigError::value(
                    "rules",
                    format!("no rule `{name}`; rules: {}", names.join(", ")),
                )
            })?;
            rule.apply(text)
                .map_err(|problem| ConfigError::value(format!("rules.{name}"), problem))?;
        }
        let within = |name: &str, time: Option<Time>, usual: Duration, least: Duration| {
            let time = time.map_or(usual, |time| time.0);
            let most = 30 * DAY;
            if time < least || time > most {
                let least = agentaflow_units::format_duration(least);
                return Err(ConfigError::value(name, format!("use a time from {least} to 30d")));
            }
            Ok(time)
        };
        let tenth = Duration::from_millis(100);
        Ok(Config {
            interval: within("interval", self.interval, usual.interval, tenth)?,
            group_wait: within("group_wait", self.group_wait, usual.group_wait, Duration::ZERO)?,
            group_interval: within(
                "group_interval",
                self.group_interval,
                usual.group_interval,
                Duration::ZERO,
            )?,
            repeat: within("repeat", self.repeat, usual.repeat, tenth)?,
            quiet: self.quiet.map(QuietText::check).transpose()?,
            dashboard: self.dashboard.as_deref().map(dashboard).transpose()?,
            cluster: self.cluster,
            sinks: sinks(self.sinks)?,
            rules,
        })
    }
}

impl QuietText {
    fn check(self) -> Result<QuietHours, ConfigError> {
        QuietHours::new(&self.from, &self.to, self.zone.as_deref().unwrap_or("UTC"))
            .map_err(|problem| ConfigError::value("quiet", problem))
    }
}

fn dashboard(text: &str) -> Result<Url, ConfigError> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| ConfigError::value("dashboard", "use an http:// or https:// address"))
}

fn sinks(texts: Vec<SinkText>) -> Result<Vec<SinkConfig>, ConfigError> {
    let mut names = BTreeSet::new();
    if texts.len() > MOST_SINKS {
        return Err(ConfigError::value("sink", format!("use at most {MOST_SINKS} sinks")));
    }
    let check = |text: SinkText| {
        let place = format!("sink `{}`", text.name);
        if text.name.is_empty() || text.name.len() > 64 {
            return Err(ConfigError::value(place, "use a name of 1 to 64 characters"));
        }
        if !names.insert(text.name.clone()) {
            return Err(ConfigError::value(place, "another sink has this name"));
        }
        text.check().map_err(|problem| ConfigError::value(place, problem))
    };
    texts.into_iter().map(check).collect()
}

impl SinkText {
    fn check(self) -> Result<SinkConfig, String> {
        let name = self.name.clone();
        let min_severity = match self.min_severity.as_deref() {
            None => Severity::Info,
            Some(word) => {
                let known = Severity::ALL.iter().find(|severity| severity.as_str() == word);
                *known.ok_or("min_severity: use info, warning or critical")?
            }
        };
        let kind = match self.kind.as_str() {
            "slack" => SinkKind::Slack(self.http()?),
            "teams" => SinkKind::Teams(self.http()?),
            "webhook" => SinkKind::Webhook(self.http()?),
            "alertmanager" => SinkKind::Alertmanager(self.http()?),
            "email" => SinkKind::Email(self.email()?),
            _ => return Err("type: use slack, teams, webhook, alertmanager or email".to_owned()),
        };
        Ok(SinkConfig { name, kind, min_severity })
    }

    fn http(self) -> Result<HttpConfig, String> {
        let others = self.host.is_some()
            || self.port.is_some()
            || self.tls.is_some()
            || self.from.is_some()
            || !self.to.is_empty()
            || self.user.is_some()
            || self.password_file.is_some()
            || self.password_env.is_some()
            || self.password_key.is_some();
        if others {
            return Err(
                "only a sink of type email has host, port, tls, from, to, user and password"
                    .to_owned(),
            );
        }
        let url = SecretRef::one("url", self.url_file, self.url_env, self.url_key)?
            .ok_or("needs url_file, url_env or url_key, the place of its URL")?;
        let token = SecretRef::one("token", self.token_file, self.token_env, self.token_key)?;
        Ok(HttpConfig { url, token, ca_file: self.ca_file })
    }

    fn email(self) -> Result<EmailConfig, String> {
        if self.url_file.is_some() || self.url_env.is_some() || self.url_key.is_some() {
            return Err("a sink of type email has a host and no URL".to_owned());
        }
        let tls = self.tls.unwrap_or(EmailTls::Starttls);
        let usual = match tls {
            EmailTls::Starttls => 587,
            EmailTls::Implicit => 465,
            EmailTls::None => 25,
        };
        let host = self.host.filter(|host| is_host(host)).ok_or("needs a host")?;
        let from = self.from.filter(|from| is_address(from)).ok_or("needs an address in from")?;
        if self.to.is_empty() || self.to.len() > 50 || !self.to.iter().all(|to| is_address(to)) {
            return Err("needs 1 to 50 addresses in to".to_owned());
        }
        let password =
            SecretRef::one("password", self.password_file, self.password_env, self.password_key)?;
        if self.user.is_some() != password.is_some() {
            return Err("needs both user and password, or none of them".to_owned());
        }
        if password.is_some() && tls == EmailTls::None && !is_loopback(&host) {
            return Err("tls = \"none\" would show the password to the network".to_owned());
        }
        Ok(EmailConfig {
            host,
            port: self.port.unwrap_or(usual),
            tls,
            from,
            to: self.to,
            user: self.user,
            password,
            ca_file: self.ca_file,
        })
    }
}

fn is_host(text: &str) -> bool {
    rustls::pki_types::ServerName::try_from(text).is_ok()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A bare address, safe in a command and in a header.
fn is_address(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_graphic() && !"<>()[],;:\\\" ".contains(c);
    text.split_once('@').is_some_and(|(name, host)| {
        !name.is_empty() && !host.is_empty() && !host.contains('@') && text.chars().all(plain)
    }) && text.len() <= 254
}

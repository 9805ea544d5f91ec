//! Rendering of messages: one file for each format. Names of jobs and users are hostile input, so each format escapes them.

pub mod alertmanager;
pub mod email;
pub mod slack;
pub mod teams;
pub mod webhook;

use agentaflow_api::alert::{Alert, AlertSubject};

use crate::config::Config;

/// Alerts of a message that chats and mails list.
const LISTED: usize = 20;

/// Facts about the cluster for messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin<'a> {
    pub cluster: Option<&'a str>,
    pub dashboard: Option<&'a str>,
}

impl<'a> Origin<'a> {
    pub fn of(config: &'a Config) -> Self {
        Self {
            cluster: config.cluster.as_deref(),
            dashboard: config.dashboard.as_ref().map(url::Url::as_str),
        }
    }

    /// Title with the name of the cluster.
    fn titled(&self, title: &str) -> String {
        self.cluster.map_or_else(|| title.to_owned(), |cluster| format!("{title} ({cluster})"))
    }

    /// Address of the page with the alerts.
    fn link(&self) -> Option<String> {
        self.dashboard.map(|base| format!("{}/ui/alerts", base.trim_end_matches('/')))
    }
}

/// Names and values of the subject that an alert has.
fn labels(subject: &AlertSubject) -> impl Iterator<Item = (&'static str, &str)> {
    let AlertSubject { node, gpu, job, queue, user, name } = subject;
    let all = [
        ("node", node),
        ("gpu", gpu),
        ("job", job),
        ("queue", queue),
        ("user", user),
        ("name", name),
    ];
    all.into_iter().filter_map(|(label, value)| Some((label, value.as_deref()?)))
}

/// The first alerts, and the number of further alerts.
fn listed(alerts: &[Alert]) -> (&[Alert], usize) {
    let shown = alerts.len().min(LISTED);
    (&alerts[..shown], alerts.len() - shown)
}

/// Text on one line without control characters.
fn one_line(text: &str) -> String {
    let blank = |c: char| if c.is_control() || is_invisible(c) { ' ' } else { c };
    text.chars().map(blank).take(500).collect()
}

/// Characters that change the direction or the place of other characters.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

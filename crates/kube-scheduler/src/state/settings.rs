//! Settings of the scheduler.

use agentaflow_engine::labels::{Expr, NodeTerm, Op};
use agentaflow_engine::{Ageing, Percent, Policy, Strategy};
use agentaflow_kube_core::names;
use agentaflow_kube_core::settings::{self, InvalidSetting};
use agentaflow_kube_core::slim::{Node, Pod, Workload};
use agentaflow_kube_core::translate;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::names_of;

pub use agentaflow_kube_core::crd::MONITOR_TIMEOUT;

/// Settings of the scheduler.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This scheduler places pods with this `schedulerName`.
    pub scheduler_name: String,
    /// Manage only matching nodes; all nodes if absent.
    pub node_selector: Option<NodeTerm>,
    /// Kueue is installed: its queue label is ignored.
    pub kueue: bool,
    /// The admission webhook runs. It converts the priority annotation of a new pod to a priority class.
    pub admission: bool,
    /// Time without a report after which the monitor of a node is lost.
    pub monitor_timeout: Duration,
    pub policy: Policy,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error(
        "invalid node selector `{0}`: use `key=value`, `key!=value`, `key` or `!key`, separated by commas"
    )]
    Selector(String),
    #[error("unknown strategy `{0}`: use one of {list}", list = strategies())]
    Strategy(String),
    #[error("`{0}` is not a percentage from 0 to 100")]
    Percent(String),
}

impl Settings {
    /// The default policy, in the strict order of kube-scheduler.
    pub fn new(scheduler_name: impl Into<String>) -> Self {
        Self {
            scheduler_name: scheduler_name.into(),
            node_selector: None,
            kueue: false,
            admission: false,
            monitor_timeout: MONITOR_TIMEOUT,
            policy: Policy { ageing: Ageing::OFF, ..Policy::default() },
        }
    }

    /// These settings with the keys of a `ConfigMap`. A refused key keeps its value in `current`, and is returned.
    pub fn with_config(
        mut self,
        data: &BTreeMap<String, String>,
        current: &Policy,
    ) -> (Self, Vec<InvalidSetting>) {
        let (policy, refused) = settings::apply(data, &self.policy, current);
        self.policy = policy;
        (self, refused)
    }
}

impl Settings {
    /// Returns true if a pod names this scheduler.
    pub(super) fn schedules(&self, pod: &Pod) -> bool {
        pod.spec.scheduler_name.as_deref() == Some(self.scheduler_name.as_str())
    }

    /// Returns true if the template of a workload names this scheduler, or names none and this is the default scheduler.
    pub(super) fn manages(&self, workload: &Workload) -> bool {
        let template = workload.spec.0.as_ref().map(|spec| spec.pod_template.value());
        let named = template.ok().and_then(|template| {
            Some(template.pointer("/spec/schedulerName")?.as_str()?.to_owned())
        });
        named.as_deref().unwrap_or(names::SCHEDULER_NAME) == self.scheduler_name
    }

    /// Returns true if the node selector matches a node.
    pub(super) fn selects(&self, node: &Node) -> bool {
        let Some(selector) = &self.node_selector else { return true };
        let labels = translate::labels(node.metadata.labels.as_ref());
        selector.matches(names_of(&node.metadata).1, &labels)
    }
}

pub fn strategy(name: &str) -> Result<Strategy, SettingsError> {
    Strategy::from_str(name).map_err(|_| SettingsError::Strategy(name.to_owned()))
}

/// A percentage such as `85` or `85%`.
pub fn percent(text: &str) -> Result<Percent, SettingsError> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    let percent = number.and_then(|number| Percent::new(number).ok());
    percent.ok_or_else(|| SettingsError::Percent(text.to_owned()))
}

/// A label selector in the syntax of `kubectl`.
pub fn node_selector(text: &str) -> Result<NodeTerm, SettingsError> {
    let bad = || SettingsError::Selector(text.to_owned());
    let mut exprs = Vec::new();
    for part in parts(text).into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        let expr = if let Some(expr) = of_a_set(part) {
            expr
        } else if let Some((key, value)) = part.split_once("!=") {
            Expr::new(key.trim(), Op::NotIn, [value.trim()])
        } else if let Some((key, value)) = part.split_once('=') {
            Expr::new(key.trim(), Op::In, [value.trim_start_matches('=').trim()])
        } else if let Some(key) = part.strip_prefix('!') {
            Expr::new(key.trim(), Op::DoesNotExist, [""; 0])
        } else {
            Expr::new(part, Op::Exists, [""; 0])
        };
        expr.validate().map_err(|_| bad())?;
        let plain = |text: &str, more: &str| {
            text.len() <= 317
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c) || more.contains(c))
        };
        if expr.key.is_empty()
            || !plain(&expr.key, "/")
            || !expr.values.iter().all(|value| plain(value, ""))
        {
            return Err(bad());
        }
        exprs.push(expr);
    }
    if exprs.is_empty() {
        return Err(bad());
    }
    Ok(NodeTerm { exprs, names: Vec::new() })
}

/// The requirements of a selector; commas within parentheses belong to one requirement.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .collect()
}

/// `key in (a, b)` or `key notin (a, b)`.
fn of_a_set(part: &str) -> Option<Expr> {
    let (head, values) = part.strip_suffix(')')?.split_once('(')?;
    let (key, word) = head.trim().rsplit_once(' ')?;
    let op = match word {
        "in" => Op::In,
        "notin" => Op::NotIn,
        _ => return None,
    };
    Some(Expr::new(key.trim(), op, values.split(',').map(str::trim)))
}

fn strategies() -> String {
    let names: Vec<String> = Strategy::names().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_follow_the_syntax_of_kubectl() {
        let read = |text: &str| {
            let term = node_selector(text).ok()?;
            let expr =
                |expr: &Expr| format!("{} {:?} {}", expr.key, expr.op, expr.values.join("|"));
            Some(term.exprs.iter().map(expr).collect::<Vec<_>>().join(", "))
        };
        let table = [
            ("zone=a", "zone In a"),
            ("zone==a,gpu", "zone In a, gpu Exists "),
            ("zone!=a, !spot", "zone NotIn a, spot DoesNotExist "),
            ("zone in (a, b),gpu", "zone In a|b, gpu Exists "),
            ("zone notin (a),example.com/x=1", "zone NotIn a, example.com/x In 1"),
        ];
        for (text, expected) in table {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        for wrong in [
            "",
            ",",
            "zone in a",
            "zone in (a",
            "zone within (a)",
            "a b",
            "=a",
            "!",
            "zone in (a))",
            "x=ü",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

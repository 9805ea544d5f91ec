//! How this scheduler is run.

use agentaflow_engine::labels::{Expr, NodeTerm, Op};
use agentaflow_engine::{Percent, Policy, Strategy};
use std::collections::BTreeMap;
use std::str::FromStr;

/// How this scheduler is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pods that name this scheduler are ours.
    pub scheduler_name: String,
    /// Only nodes that match are looked after; every node when absent.
    pub node_selector: Option<NodeTerm>,
    /// Kueue decides about `kueue.x-k8s.io/queue-name` itself.
    pub kueue: bool,
    /// We answer admission, which makes a priority class of what a new pod's annotations ask for: a pod without a class
    /// gets no more than the middle, whatever is written on it or its owners later.
    pub admission: bool,
    /// The engine's settings.
    pub policy: Policy,
}

/// A setting that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A selector that cannot be read.
    #[error(
        "cannot read the node selector `{0}`: write `key=value`, `key!=value`, `key` or `!key`, with commas between them"
    )]
    Selector(String),
    /// A strategy that does not exist.
    #[error("there is no strategy `{0}`: use one of {list}", list = strategies())]
    Strategy(String),
    /// A percentage that is none.
    #[error("`{0}` is not a percentage from 0 to 100")]
    Percent(String),
}

impl Settings {
    /// Settings with the name of the scheduler and the usual policy.
    pub fn new(scheduler_name: impl Into<String>) -> Self {
        Self {
            scheduler_name: scheduler_name.into(),
            node_selector: None,
            kueue: false,
            admission: false,
            policy: Policy::default(),
        }
    }

    /// Takes over what a `ConfigMap` says; keys that we do not know are left alone.
    pub fn with_config(mut self, data: &BTreeMap<String, String>) -> Result<Self, SettingsError> {
        if let Some(name) = data.get("strategy").filter(|name| !name.trim().is_empty()) {
            self.policy.strategy = strategy(name.trim())?;
        }
        if let Some(goal) = data.get("utilizationGoal").filter(|goal| !goal.trim().is_empty()) {
            self.policy.utilization_goal = Some(percent(goal.trim())?);
        }
        Ok(self)
    }
}

/// The strategy of this name.
pub fn strategy(name: &str) -> Result<Strategy, SettingsError> {
    Strategy::from_str(name).map_err(|_| SettingsError::Strategy(name.to_owned()))
}

/// A percentage as people write it.
pub fn percent(text: &str) -> Result<Percent, SettingsError> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    let percent = number.and_then(|number| Percent::new(number).ok());
    percent.ok_or_else(|| SettingsError::Percent(text.to_owned()))
}

/// A label selector as `kubectl` takes it.
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

/// The conditions of a selector: commas within parentheses are part of one.
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
    let names: Vec<String> = Strategy::ALL.iter().map(|(name, _)| format!("`{name}`")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_read_as_kubectl_reads_it() {
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

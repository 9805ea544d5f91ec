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
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let expr = if let Some((key, value)) = part.split_once("!=") {
            Expr::new(key.trim(), Op::NotIn, [value.trim()])
        } else if let Some((key, value)) = part.split_once('=') {
            Expr::new(key.trim(), Op::In, [value.trim_start_matches('=').trim()])
        } else if let Some(key) = part.strip_prefix('!') {
            Expr::new(key.trim(), Op::DoesNotExist, [""; 0])
        } else {
            Expr::new(part, Op::Exists, [""; 0])
        };
        expr.validate().map_err(|_| bad())?;
        exprs.push(expr);
    }
    if exprs.is_empty() {
        return Err(bad());
    }
    Ok(NodeTerm { exprs, names: Vec::new() })
}

fn strategies() -> String {
    let names: Vec<String> = Strategy::ALL.iter().map(|(name, _)| format!("`{name}`")).collect();
    names.join(", ")
}

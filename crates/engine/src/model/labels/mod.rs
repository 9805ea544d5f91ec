//! Labels, selectors, node terms, taints and tolerations.
//!
//! Semantics and length limits match Kubernetes, so the Kubernetes driver passes its objects on without translation of
//! meaning. The character set is not restricted: labels of other drivers hold free text such as `NVIDIA A100-SXM4-40GB`.

mod error;
mod node;
mod taint;

pub use error::LabelError;
pub use node::{NameExpr, NameOp, NodeTerm, node_matches};
pub use taint::{
    Effect, Taint, Toleration, TolerationOp, first_untolerated, untolerated_preferences,
};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Labels of a node or a task.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// Operator of an [`Expr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is absent.
    NotIn,
    Exists,
    DoesNotExist,
    /// The label is an integer greater than the value.
    Gt,
    /// The label is an integer less than the value.
    Lt,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expr {
    pub key: Arc<str>,
    pub op: Op,
    /// One or more for `in` and `not_in`, one integer for `gt` and `lt`, otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Arc<str>>,
}

/// Selects tasks by their labels. All conditions must hold, so an empty selector selects every task.
///
/// Kubernetes distinguishes an empty selector from an absent one, which selects nothing. A caller that needs
/// the absent one keeps an `Option<Selector>`, or uses [`Selector::nothing`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selector {
    /// Required labels and values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: Labels,
    /// Further conditions, without `gt` and `lt`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exprs: Vec<Expr>,
}

/// `labels` has every key and value of `wanted`, as for a node selector.
pub fn contains_all(labels: &Labels, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Rejects empty keys and overlong keys and values.
pub fn validate_labels(labels: &Labels) -> Result<(), LabelError> {
    labels.iter().try_for_each(|(key, value)| {
        error::check_key(key)?;
        error::check_value(value)
    })
}

impl Expr {
    pub fn new<V: Into<Arc<str>>>(
        key: impl Into<Arc<str>>,
        op: Op,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        Self { key: key.into(), op, values: values.into_iter().map(Into::into).collect() }
    }

    /// The condition holds. `gt` and `lt` never match an expression that [`validate`](Self::validate)
    /// rejects, or a label that is not an integer.
    pub fn matches(&self, labels: &Labels) -> bool {
        let label = labels.get(&self.key);
        match self.op {
            Op::In => label.is_some_and(|value| self.values.contains(value)),
            Op::NotIn => !label.is_some_and(|value| self.values.contains(value)),
            Op::Exists => label.is_some(),
            Op::DoesNotExist => label.is_none(),
            Op::Gt => self.numbers(label).is_some_and(|(label, limit)| label > limit),
            Op::Lt => self.numbers(label).is_some_and(|(label, limit)| label < limit),
        }
    }

    /// Rejects values that do not suit the operator.
    pub fn validate(&self) -> Result<(), LabelError> {
        error::check_key(&self.key)?;
        match (self.op, self.values.as_slice()) {
            (Op::In | Op::NotIn, []) => return Err(LabelError::NoValues(self.key.clone())),
            (Op::In | Op::NotIn, _) | (Op::Exists | Op::DoesNotExist, []) => {}
            (Op::Exists | Op::DoesNotExist, _) => {
                return Err(LabelError::UnusedValue(self.key.clone()));
            }
            (Op::Gt | Op::Lt, [limit]) if integer(limit).is_some() => {}
            (Op::Gt | Op::Lt, _) => return Err(LabelError::NotOneInteger(self.key.clone())),
        }
        self.values.iter().try_for_each(|value| error::check_value(value))
    }

    fn numbers(&self, label: Option<&Arc<str>>) -> Option<(i64, i64)> {
        let [limit] = self.values.as_slice() else {
            return None;
        };
        Some((integer(label?)?, integer(limit)?))
    }
}

impl Selector {
    /// A selector that matches no task, because it requires a label to exist and not to exist.
    pub fn nothing() -> Self {
        let contradiction = [Op::Exists, Op::DoesNotExist];
        let exprs = contradiction.map(|op| Expr::new("nothing", op, [""; 0]));
        Self { exprs: exprs.into(), ..Self::default() }
    }

    /// The selector has no condition and matches every task.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.exprs.is_empty()
    }

    /// Label keys of all conditions, possibly with duplicates.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.match_labels.keys().chain(self.exprs.iter().map(|expr| &expr.key))
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        contains_all(labels, &self.match_labels)
            && self.exprs.iter().all(|expr| expr.matches(labels))
    }

    /// Rejects invalid conditions, and `gt` and `lt`, which only node terms support.
    pub fn validate(&self) -> Result<(), LabelError> {
        validate_labels(&self.match_labels)?;
        self.exprs.iter().try_for_each(|expr| {
            expr.validate()?;
            match expr.op {
                Op::Gt | Op::Lt => Err(LabelError::OnlyForNodes(expr.key.clone())),
                Op::In | Op::NotIn | Op::Exists | Op::DoesNotExist => Ok(()),
            }
        })
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, op, values } = self;
        match op {
            Op::In => write!(f, "{key} in ({})", List(values)),
            Op::NotIn => write!(f, "{key} not in ({})", List(values)),
            Op::Exists => write!(f, "{key}"),
            Op::DoesNotExist => write!(f, "!{key}"),
            Op::Gt => write!(f, "{key} > {}", List(values)),
            Op::Lt => write!(f, "{key} < {}", List(values)),
        }
    }
}

/// Comma-separated conditions; `anything` for an empty selector.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("anything");
        }
        let equal = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let parts: Vec<_> = equal.chain(self.exprs.iter().map(Expr::to_string)).collect();
        write!(f, "{}", List(&parts))
    }
}

/// A comma-separated list.
struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, item)| {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{item}")
        })
    }
}

fn integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_matches_as_in_kubernetes() {
        let node = labels(&[("gpu", "a100"), ("mem", "40"), ("neg", "-3"), ("odd", "4O")]);
        let cases: [(&str, Op, &[&str], bool); 23] = [
            ("gpu", Op::In, &["h100", "a100"], true),
            ("gpu", Op::In, &["h100"], false),
            ("spot", Op::In, &["true"], false),
            ("spot", Op::In, &[], false),
            ("gpu", Op::NotIn, &["h100"], true),
            ("gpu", Op::NotIn, &["a100", "h100"], false),
            ("spot", Op::NotIn, &["true"], true),
            ("gpu", Op::Exists, &[], true),
            ("spot", Op::Exists, &[], false),
            ("spot", Op::DoesNotExist, &[], true),
            ("gpu", Op::DoesNotExist, &[], false),
            ("mem", Op::Gt, &["39"], true),
            ("mem", Op::Gt, &["40"], false),
            ("mem", Op::Lt, &["41"], true),
            ("mem", Op::Lt, &["40"], false),
            ("neg", Op::Lt, &["-2"], true),
            ("spot", Op::Gt, &["0"], false),
            ("spot", Op::Lt, &["0"], false),
            ("odd", Op::Gt, &["0"], false),
            ("odd", Op::Lt, &["9"], false),
            ("mem", Op::Gt, &["many"], false),
            ("mem", Op::Gt, &["1", "2"], false),
            ("mem", Op::Gt, &["99999999999999999999"], false),
        ];
        for (key, op, values, expected) in cases {
            let expr = Expr::new(key, op, values.iter().copied());
            assert_eq!(expr.matches(&node), expected, "{expr}");
        }
    }

    #[test]
    fn a_selector_requires_all_of_its_conditions() {
        let task = labels(&[("app", "web"), ("tier", "a")]);
        let tier = |op| Expr::new("tier", op, ["a", "b"]);
        let cases = [
            (labels(&[]), vec![], true),
            (labels(&[("app", "web")]), vec![tier(Op::In)], true),
            (labels(&[("app", "web")]), vec![tier(Op::NotIn)], false),
            (labels(&[("app", "db")]), vec![tier(Op::In)], false),
            (labels(&[("app", "web"), ("zone", "1")]), vec![], false),
        ];
        for (match_labels, exprs, expected) in cases {
            let selector = Selector { match_labels, exprs };
            assert_eq!(selector.matches(&task), expected, "{selector}");
            assert_eq!(selector.is_empty(), selector == Selector::default());
        }
    }

    #[test]
    fn the_selector_of_nothing_is_valid_and_matches_no_task() {
        let nothing = Selector::nothing();
        assert_eq!(nothing.validate(), Ok(()));
        for task in [labels(&[]), labels(&[("nothing", "")])] {
            assert!(!nothing.matches(&task));
        }
    }

    #[test]
    fn invalid_expressions_are_rejected() {
        let long = "x".repeat(64);
        let prefix = format!("{}/gpu", "p".repeat(253));
        let cases: [(&str, Op, &[&str], &str); 14] = [
            ("gpu", Op::In, &["a100"], ""),
            ("nvidia.com/gpu", Op::Exists, &[], ""),
            (&prefix, Op::Exists, &[], ""),
            ("mem", Op::Gt, &["-40"], ""),
            ("", Op::Exists, &[], "a label key must not be empty"),
            ("nvidia.com/", Op::Exists, &[], "a label key must not be empty"),
            (&long, Op::Exists, &[], "is longer than 63 bytes"),
            (&format!("p{prefix}"), Op::Exists, &[], "is longer than 253 bytes"),
            ("gpu", Op::In, &[&long], "is longer than 63 bytes"),
            ("gpu", Op::In, &[], "`gpu` needs at least one value"),
            ("gpu", Op::NotIn, &[], "`gpu` needs at least one value"),
            ("gpu", Op::Exists, &["a100"], "`gpu` must not have a value with this operator"),
            ("mem", Op::Gt, &["many"], "`mem` needs exactly one integer with `gt` or `lt`"),
            ("mem", Op::Lt, &["1", "2"], "`mem` needs exactly one integer with `gt` or `lt`"),
        ];
        for (key, op, values, expected) in cases {
            let expr = Expr::new(key, op, values.iter().copied());
            let refusal = expr.validate().err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(expected.is_empty(), refusal.is_empty(), "{expr}: {refusal}");
            assert!(refusal.ends_with(expected), "{expr}: {refusal}");
        }
    }

    #[test]
    fn a_task_selector_rejects_numeric_comparison() {
        let exprs = vec![Expr::new("mem", Op::Gt, ["1"])];
        let refusal = Selector { exprs, ..Selector::default() }.validate();
        assert_eq!(refusal, Err(LabelError::OnlyForNodes("mem".into())));
    }

    #[test]
    fn an_error_shows_only_the_beginning_of_a_long_text() {
        let long = "x".repeat(10_000);
        let refusal = validate_labels(&labels(&[("key", &long)])).unwrap_err().to_string();
        assert!(refusal.len() < 150, "{refusal}");
    }

    #[test]
    fn a_selector_is_displayed_as_comma_separated_conditions() {
        let selector = Selector {
            match_labels: labels(&[("app", "web")]),
            exprs: vec![
                Expr::new("gpu", Op::In, ["a100", "h100"]),
                Expr::new("zone", Op::NotIn, ["z1"]),
                Expr::new("spot", Op::DoesNotExist, [""; 0]),
                Expr::new("ssd", Op::Exists, [""; 0]),
                Expr::new("mem", Op::Gt, ["40"]),
            ],
        };
        let text = "app=web, gpu in (a100, h100), zone not in (z1), !spot, ssd, mem > 40";
        assert_eq!(selector.to_string(), text);
        assert_eq!(Selector::default().to_string(), "anything");
    }

    #[test]
    fn a_selector_serializes_without_empty_fields_and_rejects_unknown_fields() {
        let text =
            r#"{"match_labels":{"app":"web"},"exprs":[{"key":"spot","op":"does_not_exist"}]}"#;
        let selector: Selector = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&selector).unwrap(), text);
        assert_eq!(serde_json::to_string(&Selector::default()).unwrap(), "{}");
        for wrong in [r#"{"matchLabels":{}}"#, r#"{"exprs":[{"key":"a","op":"In"}]}"#] {
            assert!(serde_json::from_str::<Selector>(wrong).is_err(), "{wrong}");
        }
    }

    pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect()
    }
}

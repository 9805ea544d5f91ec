//! Node terms: conditions on the labels and the name of a node.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

use super::error::{LabelError, check_node_name};
use super::{Expr, Labels, List};

/// Conditions on a node that must all hold. A required node affinity is a list of terms, one of which must
/// match. A term without conditions matches no node, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTerm {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exprs: Vec<Expr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<NameExpr>,
}

/// One condition on the name of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameExpr {
    pub op: NameOp,
    pub values: Vec<Arc<str>>,
}

/// Operator of a [`NameExpr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameOp {
    In,
    NotIn,
}

/// The node matches one of the terms, or there are no terms.
pub fn node_matches(terms: &[NodeTerm], name: &str, labels: &Labels) -> bool {
    terms.is_empty() || terms.iter().any(|term| term.matches(name, labels))
}

impl NodeTerm {
    /// The term has no conditions and matches no node.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty() && self.names.is_empty()
    }

    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        !self.is_empty()
            && self.names.iter().all(|expr| expr.matches(name))
            && self.exprs.iter().all(|expr| expr.matches(labels))
    }

    /// Rejects invalid conditions. An empty term is valid, as in Kubernetes.
    pub fn validate(&self) -> Result<(), LabelError> {
        self.exprs.iter().try_for_each(Expr::validate)?;
        self.names.iter().try_for_each(NameExpr::validate)
    }
}

impl NameExpr {
    pub fn new<V: Into<Arc<str>>>(op: NameOp, values: impl IntoIterator<Item = V>) -> Self {
        Self { op, values: values.into_iter().map(Into::into).collect() }
    }

    pub fn matches(&self, name: &str) -> bool {
        let named = self.values.iter().any(|value| **value == *name);
        match self.op {
            NameOp::In => named,
            NameOp::NotIn => !named,
        }
    }

    /// Rejects an empty list and overlong names.
    pub fn validate(&self) -> Result<(), LabelError> {
        if self.values.is_empty() {
            return Err(LabelError::NoValues("node".into()));
        }
        self.values.iter().try_for_each(|name| check_node_name(name))
    }
}

/// Comma-separated conditions; `nothing` for an empty term.
impl fmt::Display for NodeTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        let names = self.names.iter().map(NameExpr::to_string);
        let parts: Vec<_> = names.chain(self.exprs.iter().map(Expr::to_string)).collect();
        write!(f, "{}", List(&parts))
    }
}

impl fmt::Display for NameExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            NameOp::In => "in",
            NameOp::NotIn => "not in",
        };
        write!(f, "node {op} ({})", List(&self.values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::labels::Op;
    use crate::model::labels::tests::labels;

    #[test]
    fn a_term_requires_all_of_its_conditions_and_an_empty_term_matches_nothing() {
        let a100 = || Expr::new("gpu", Op::In, ["a100"]);
        let named = |op| NameExpr::new(op, ["n1", "n2"]);
        let cases = [
            (vec![], vec![], false),
            (vec![a100()], vec![], true),
            (vec![], vec![named(NameOp::In)], true),
            (vec![], vec![named(NameOp::NotIn)], false),
            (vec![], vec![NameExpr::new(NameOp::NotIn, ["n3"])], true),
            (vec![a100()], vec![named(NameOp::In)], true),
            (vec![a100()], vec![named(NameOp::In), NameExpr::new(NameOp::NotIn, ["n1"])], false),
            (vec![a100(), Expr::new("gpu", Op::NotIn, ["a100"])], vec![], false),
        ];
        for (exprs, names, expected) in cases {
            let term = NodeTerm { exprs, names };
            assert_eq!(term.matches("n1", &labels(&[("gpu", "a100")])), expected, "{term}");
        }
    }

    #[test]
    fn a_node_needs_one_of_the_terms() {
        let [yes, no] = [Op::Exists, Op::DoesNotExist]
            .map(|op| NodeTerm { exprs: vec![Expr::new("gpu", op, [""; 0])], names: vec![] });
        let cases = [
            (vec![], true),
            (vec![NodeTerm::default()], false),
            (vec![no.clone(), NodeTerm::default()], false),
            (vec![no, yes], true),
        ];
        for (terms, expected) in cases {
            let found = node_matches(&terms, "n1", &labels(&[("gpu", "a100")]));
            assert_eq!(found, expected, "{}", List(&terms));
        }
    }

    #[test]
    fn invalid_node_names_are_rejected() {
        let long = "n".repeat(254);
        let cases: [(&[&str], Option<LabelError>); 4] = [
            (&["n1", "n2"], None),
            (&[&long[1..]], None),
            (&[], Some(LabelError::NoValues("node".into()))),
            (&[&long], Some(LabelError::TooLong { text: "n".repeat(32), limit: 253 })),
        ];
        for (values, expected) in cases {
            let names = vec![NameExpr::new(NameOp::In, values.iter().copied())];
            assert_eq!(NodeTerm { exprs: vec![], names }.validate().err(), expected);
        }
    }

    #[test]
    fn a_term_is_displayed_as_conditions_and_survives_serialization() {
        let term = NodeTerm {
            exprs: vec![Expr::new("mem", Op::Lt, ["80"])],
            names: vec![NameExpr::new(NameOp::NotIn, ["n1", "n2"])],
        };
        assert_eq!(term.to_string(), "node not in (n1, n2), mem < 80");
        assert_eq!(NodeTerm::default().to_string(), "nothing");
        let text = serde_json::to_string(&term).unwrap();
        assert_eq!(
            text,
            r#"{"exprs":[{"key":"mem","op":"lt","values":["80"]}],"names":[{"op":"not_in","values":["n1","n2"]}]}"#
        );
        assert_eq!(serde_json::from_str::<NodeTerm>(&text).unwrap(), term);
    }
}

//! Which nodes a task may run on.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

use super::error::{LabelError, check_node_name};
use super::{Expr, Labels, List};

/// Conditions on a node that must all hold. A required node affinity is a list of these, of which
/// one must match. A term without conditions matches no node, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTerm {
    /// Conditions on the node's labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exprs: Vec<Expr>,
    /// Conditions on the node's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<NameExpr>,
}

/// One condition on the name of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameExpr {
    /// Whether the name must be among the values, or must not.
    pub op: NameOp,
    /// Names of nodes.
    pub values: Vec<Arc<str>>,
}

/// How a node's name relates to the values of a [`NameExpr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameOp {
    /// It is one of them.
    In,
    /// It is none of them.
    NotIn,
}

/// Whether a node satisfies a required node affinity: one of the terms, where there are any.
pub fn node_matches(terms: &[NodeTerm], name: &str, labels: &Labels) -> bool {
    terms.is_empty() || terms.iter().any(|term| term.matches(name, labels))
}

impl NodeTerm {
    /// Whether the term has no conditions and so matches no node.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty() && self.names.is_empty()
    }

    /// Whether a node with this name and these labels is meant.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        !self.is_empty()
            && self.names.iter().all(|expr| expr.matches(name))
            && self.exprs.iter().all(|expr| expr.matches(labels))
    }

    /// Refuses conditions that cannot be meant. An empty term is allowed, as in Kubernetes.
    pub fn validate(&self) -> Result<(), LabelError> {
        self.exprs.iter().try_for_each(Expr::validate)?;
        self.names.iter().try_for_each(NameExpr::validate)
    }
}

impl NameExpr {
    /// A condition from anything that reads as text.
    pub fn new<V: Into<Arc<str>>>(op: NameOp, values: impl IntoIterator<Item = V>) -> Self {
        Self { op, values: values.into_iter().map(Into::into).collect() }
    }

    /// Whether the condition holds for a node of this name.
    pub fn matches(&self, name: &str) -> bool {
        let named = self.values.iter().any(|value| **value == *name);
        match self.op {
            NameOp::In => named,
            NameOp::NotIn => !named,
        }
    }

    /// Refuses a condition without names, or with names that no node can have.
    pub fn validate(&self) -> Result<(), LabelError> {
        if self.values.is_empty() {
            return Err(LabelError::NoValues("node".into()));
        }
        self.values.iter().try_for_each(|name| check_node_name(name))
    }
}

/// Conditions with commas between them; `nothing` when there are none.
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
    fn a_term_wants_all_of_its_parts_and_an_empty_term_matches_nothing() {
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
    fn names_that_cannot_be_meant_are_refused() {
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
    fn a_term_reads_like_a_sentence_and_survives_being_written() {
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

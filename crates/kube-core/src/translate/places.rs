//! Sets of nodes as alternative terms, to combine the pod's affinity with the nodes of its volumes.

use agentaflow_engine::labels::{Expr, Labels, NodeTerm, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most alternatives passed to the engine.
pub(super) const MAX_TERMS: usize = 256;

/// Most pairs of alternatives compared.
const MAX_PAIRS: usize = MAX_TERMS * MAX_TERMS;

/// All nodes, or the nodes that match one of the terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places(Option<Vec<NodeTerm>>);

/// The limit of alternatives is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Places {
    pub(super) const ANYWHERE: Self = Self(None);
    pub(super) const NOWHERE: Self = Self(Some(Vec::new()));

    /// Nodes that match one of these terms; an empty term matches none.
    pub(super) fn any_of(terms: Vec<NodeTerm>) -> Self {
        Self(Some(terms.into_iter().filter_map(tidy).collect()))
    }

    /// Union of node sets.
    pub(super) fn union(all: impl IntoIterator<Item = Self>) -> Self {
        let mut terms = Vec::new();
        for places in all {
            match places.0 {
                None => return Self::ANYWHERE,
                Some(more) => terms.extend(more),
            }
        }
        Self(Some(compact(terms)))
    }

    /// Intersection.
    pub(super) fn and(self, other: Self) -> Result<Self, TooMany> {
        let (one, two) = match (self.0, other.0) {
            (None, places) | (places, None) => return Ok(Self(places)),
            (Some(one), Some(two)) => (one, two),
        };
        if one.len().saturating_mul(two.len()) > MAX_PAIRS {
            return Err(TooMany);
        }
        let mut both = Vec::new();
        for left in &one {
            for right in &two {
                let joined = NodeTerm {
                    exprs: left.exprs.iter().chain(&right.exprs).cloned().collect(),
                    names: left.names.iter().chain(&right.names).cloned().collect(),
                };
                if let Some(term) = tidy(joined).filter(|term| !both.contains(term)) {
                    both.push(term);
                }
                if both.len() > MAX_TERMS {
                    return Err(TooMany);
                }
            }
        }
        Ok(Self(Some(both)))
    }

    /// Converts to required terms of the engine; an empty list matches all nodes.
    pub(super) fn into_terms(self) -> Result<Vec<NodeTerm>, TooMany> {
        match self.0 {
            None => Ok(Vec::new()),
            Some(terms) if terms.is_empty() => Ok(vec![NodeTerm::default()]),
            Some(terms) if terms.len() > MAX_TERMS => Err(TooMany),
            Some(terms) => Ok(terms),
        }
    }

    /// Values of this label among the nodes; `None` if nodes without the label may match.
    pub(super) fn values_of(&self, label: &str) -> Option<Vec<&str>> {
        let mut values = Vec::new();
        for term in self.0.as_ref()? {
            let mut asked = term.exprs.iter().filter(|expr| expr.op == Op::In);
            let asked = asked.find(|expr| &*expr.key == label)?;
            values.extend(asked.values.iter().map(|value| &**value));
        }
        Some(values)
    }

    pub(super) fn contain(&self, name: &str, labels: &Labels) -> bool {
        self.0.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(name, labels)))
    }
}

/// Merges terms that test only one label for a value, such as the host name of local volumes, of which thousands can
/// exist.
fn compact(terms: Vec<NodeTerm>) -> Vec<NodeTerm> {
    let mut values: BTreeMap<Arc<str>, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut others = BTreeSet::new();
    for mut term in terms {
        match term.exprs.as_mut_slice() {
            [only] if only.op == Op::In && term.names.is_empty() => {
                values.entry(only.key.clone()).or_default().extend(only.values.drain(..));
            }
            _ => {
                others.insert(term);
            }
        }
    }
    let one = |(key, values)| NodeTerm {
        exprs: vec![Expr::new::<Arc<str>>(key, Op::In, values)],
        names: vec![],
    };
    values.into_iter().map(one).chain(others).collect()
}

/// Joins conditions on the same label; `None` if the term cannot match any node.
fn tidy(term: NodeTerm) -> Option<NodeTerm> {
    if term.is_empty() {
        return None;
    }
    let mut exprs: Vec<Expr> = Vec::with_capacity(term.exprs.len());
    for expr in term.exprs {
        let same = exprs.iter_mut().find(|known| known.key == expr.key && known.op == expr.op);
        match same {
            Some(known) if expr.op == Op::In => {
                known.values.retain(|value| expr.values.contains(value));
                if known.values.is_empty() {
                    return None;
                }
            }
            Some(known) if *known == expr => {}
            _ => exprs.push(expr),
        }
    }
    let present = |expr: &&Expr| matches!(expr.op, Op::In | Op::Exists | Op::Gt | Op::Lt);
    let absent = |key| exprs.iter().any(|expr| expr.op == Op::DoesNotExist && expr.key == key);
    let contradicts = exprs.iter().filter(present).any(|expr| absent(expr.key.clone()));
    (!contradicts).then_some(NodeTerm { exprs, names: term.names })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(terms: &[&[(&str, Op, &[&str])]]) -> Places {
        let expr =
            |(key, op, values): &(&str, Op, &[&str])| Expr::new(*key, *op, values.iter().copied());
        let term = |exprs: &&[(&str, Op, &[&str])]| NodeTerm {
            exprs: exprs.iter().map(expr).collect(),
            names: Vec::new(),
        };
        Places::any_of(terms.iter().map(term).collect())
    }

    #[test]
    fn alternatives_are_combined_and_impossible_ones_left_out() {
        let a_or_b = places(&[&[("zone", Op::In, &["a", "b"])]]);
        let b_or_c = places(&[&[("zone", Op::In, &["b", "c"])]]);
        let without = places(&[&[("zone", Op::DoesNotExist, &[])]]);
        let both = a_or_b.clone().and(b_or_c.clone()).unwrap();
        assert_eq!(both, places(&[&[("zone", Op::In, &["b"])]]));
        assert_eq!(both.and(places(&[&[("zone", Op::In, &["c"])]])), Ok(Places::NOWHERE));
        assert_eq!(a_or_b.clone().and(without.clone()), Ok(Places::NOWHERE));
        assert_eq!(Places::union([a_or_b.clone(), Places::ANYWHERE]), Places::ANYWHERE);
        assert_eq!(a_or_b.clone().and(Places::ANYWHERE), Ok(a_or_b.clone()));
        let either = Places::union([a_or_b.clone(), without.clone()]);
        let wider = Places::union([either.clone(), b_or_c]);
        assert_eq!(
            wider,
            places(&[&[("zone", Op::In, &["a", "b", "c"])], &[("zone", Op::DoesNotExist, &[])]])
        );
        assert_eq!(either.clone().and(wider), Ok(either));
        assert_eq!(Places::NOWHERE.into_terms(), Ok(vec![NodeTerm::default()]));
        assert_eq!(Places::ANYWHERE.into_terms(), Ok(Vec::new()));
        assert_eq!(places(&[&[]]), Places::NOWHERE, "an empty term matches no node");
    }

    #[test]
    fn too_many_alternatives_are_noticed() {
        let many = |key: &str| {
            let expr = |n: u32| Expr::new(key, Op::In, [n.to_string()]);
            Places::any_of(
                (0..20).map(|n| NodeTerm { exprs: vec![expr(n)], names: vec![] }).collect(),
            )
        };
        assert_eq!(many("a").and(many("b")), Err(TooMany));
        assert!(many("a").and(many("a")).is_ok());
        let lots = || {
            Places::any_of(
                (0..1000)
                    .map(|n| {
                        let exprs = vec![
                            Expr::new("a", Op::In, [n.to_string()]),
                            Expr::new("b", Op::Exists, [""; 0]),
                        ];
                        NodeTerm { exprs, names: vec![] }
                    })
                    .collect(),
            )
        };
        assert_eq!(lots().and(lots()), Err(TooMany), "a million pairs are not worth a look");
        assert_eq!(lots().into_terms(), Err(TooMany));
    }
}

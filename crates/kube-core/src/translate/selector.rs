//! Selectors and node terms.

use agentaflow_engine::labels::{Expr, Labels, NameExpr, NameOp, NodeTerm, Op, Selector};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Only field of nodes that a term may test.
const NAME_FIELD: &str = "metadata.name";

/// Converts a label selector of pods, volumes or namespaces.
pub fn selector(selector: &LabelSelector) -> Result<Selector, String> {
    let match_labels = labels(selector.match_labels.as_ref());
    let mut exprs = Vec::new();
    for requirement in selector.match_expressions.iter().flatten() {
        let op = match requirement.operator.as_str() {
            "In" => Op::In,
            "NotIn" => Op::NotIn,
            "Exists" => Op::Exists,
            "DoesNotExist" => Op::DoesNotExist,
            other => return Err(format!("`{}` is not an operator of selectors", short(other))),
        };
        exprs.push(expr(&requirement.key, op, requirement.values.as_deref()));
    }
    let selector = Selector { match_labels, exprs };
    selector.validate().map_err(|error| error.to_string())?;
    Ok(selector)
}

/// Converts a label selector to a node term; a selector that matches everything becomes an empty term.
pub(super) fn selector_term(wanted: &LabelSelector) -> Result<NodeTerm, String> {
    let Selector { match_labels, exprs } = selector(wanted)?;
    let same = match_labels.into_iter().map(|(key, value)| Expr::new(key, Op::In, [value]));
    Ok(NodeTerm { exprs: same.chain(exprs).collect(), names: Vec::new() })
}

/// Converts labels to the engine's type.
pub fn labels(labels: Option<&BTreeMap<String, String>>) -> Labels {
    let shared = |(key, value): (&String, &String)| (Arc::from(&**key), Arc::from(&**value));
    labels.into_iter().flatten().map(shared).collect()
}

/// Converts the terms of a node selector. A selector without terms matches no node, like an empty term.
pub(super) fn node_terms(selector: &NodeSelector) -> Result<Vec<NodeTerm>, String> {
    selector.node_selector_terms.iter().map(node_term).collect()
}

pub(super) fn node_term(term: &NodeSelectorTerm) -> Result<NodeTerm, String> {
    let exprs = term.match_expressions.iter().flatten().map(node_expr).collect::<Result<_, _>>()?;
    let names = term.match_fields.iter().flatten().map(name_expr).collect::<Result<_, _>>()?;
    let term = NodeTerm { exprs, names };
    term.validate().map_err(|error| error.to_string())?;
    Ok(term)
}

/// Beginning of user input, for messages.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

fn node_expr(requirement: &NodeSelectorRequirement) -> Result<Expr, String> {
    let op = match requirement.operator.as_str() {
        "In" => Op::In,
        "NotIn" => Op::NotIn,
        "Exists" => Op::Exists,
        "DoesNotExist" => Op::DoesNotExist,
        "Gt" => Op::Gt,
        "Lt" => Op::Lt,
        other => return Err(format!("`{}` is not an operator of node affinity", short(other))),
    };
    // The API server accepts these values; kube-scheduler rejects the whole pod.
    let wrong = requirement.values.iter().flatten().find(|value| !is_label_value(value));
    if let Some(wrong) = wrong {
        return Err(format!("`{}` cannot be the value of a label", short(wrong)));
    }
    Ok(expr(&requirement.key, op, requirement.values.as_deref()))
}

fn is_label_value(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let end = |c: Option<&u8>| c.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 63 && bytes.iter().all(|c| inner(*c)) && end(bytes.first()) && end(bytes.last())
}

fn name_expr(requirement: &NodeSelectorRequirement) -> Result<NameExpr, String> {
    if requirement.key != NAME_FIELD {
        return Err(format!(
            "`{}` is not a field of nodes that can be matched",
            short(&requirement.key)
        ));
    }
    let op = match requirement.operator.as_str() {
        "In" => NameOp::In,
        "NotIn" => NameOp::NotIn,
        other => return Err(format!("`{}` does not work on the names of nodes", short(other))),
    };
    Ok(NameExpr::new(op, requirement.values.iter().flatten().map(String::as_str)))
}

fn expr(key: &str, op: Op, values: Option<&[String]>) -> Expr {
    Expr::new(key, op, values.into_iter().flatten().map(String::as_str))
}

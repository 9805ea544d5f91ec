//! Hard GPU needs as node affinity, so that whoever buys nodes for a waiting pod buys the right kind.
//!
//! Not every cluster labels its nodes with GPU memory: there a plain requirement would leave the pod waiting
//! for ever although our own records know the memory. So each of the template's terms gets three variants, of
//! which one must hold: NVIDIA's label says enough; or it is absent and Karpenter's says enough; or both are
//! absent, and the scheduler goes by what it knows. A node that says too little matches none of them.

use serde_json::{Map, Value, json};

use super::template::{BadTemplate, object, shape};
use crate::names;

/// Karpenter's label on AWS: MiB of each GPU, known to it before the node exists.
const KARPENTER_MEMORY: &str = "karpenter.k8s.aws/instance-gpu-memory";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Requires nodes that do not say they have less than `memory` MiB on each GPU.
pub(super) fn require_memory(
    body: &mut Map<String, Value>,
    memory: u64,
) -> Result<(), BadTemplate> {
    if memory <= 1 {
        return Ok(());
    }
    let path = "podTemplate.spec.affinity";
    let affinity = object(body, "affinity", path)?;
    let path = format!("{path}.nodeAffinity");
    let nodes = object(affinity, "nodeAffinity", &path)?;
    let path = format!("{path}.{REQUIRED}");
    let required = object(nodes, REQUIRED, &path)?;
    let path = format!("{path}.nodeSelectorTerms");
    let terms = match required.remove("nodeSelectorTerms") {
        None | Some(Value::Null) => vec![json!({})],
        Some(Value::Array(terms)) if terms.is_empty() => vec![json!({})],
        // An empty term among others matches no node: Kubernetes says so, and it stays that way.
        Some(Value::Array(terms)) => terms.into_iter().filter(|term| !is_empty(term)).collect(),
        Some(_) => return Err(shape(&path, "a list")),
    };
    let mut all = Vec::with_capacity(terms.len() * 3);
    for term in terms {
        let Value::Object(term) = term else { return Err(shape(&path, "a list of objects")) };
        for variant in variants(memory) {
            all.push(narrowed(&term, variant, &path)?);
        }
    }
    required.insert("nodeSelectorTerms".into(), all.into());
    Ok(())
}

fn variants(memory: u64) -> [Vec<Value>; 3] {
    // Labels are compared as signed 64-bit numbers.
    let below = (memory - 1).min(i64::MAX as u64).to_string();
    let enough = |key: &str| json!({ "key": key, "operator": "Gt", "values": [below] });
    let absent = |key: &str| json!({ "key": key, "operator": "DoesNotExist" });
    [
        vec![enough(names::NVIDIA_MEMORY)],
        vec![absent(names::NVIDIA_MEMORY), enough(KARPENTER_MEMORY)],
        vec![absent(names::NVIDIA_MEMORY), absent(KARPENTER_MEMORY)],
    ]
}

fn narrowed(term: &Map<String, Value>, more: Vec<Value>, path: &str) -> Result<Value, BadTemplate> {
    let mut term = term.clone();
    let expressions = term.entry("matchExpressions").or_insert(Value::Null);
    if expressions.is_null() {
        *expressions = json!([]);
    }
    let Some(list) = expressions.as_array_mut() else {
        return Err(shape(&format!("{path}[].matchExpressions"), "a list"));
    };
    list.extend(more);
    Ok(Value::Object(term))
}

fn is_empty(term: &Value) -> bool {
    term.as_object().is_some_and(|term| {
        term.values().all(|part| part.is_null() || part.as_array().is_some_and(Vec::is_empty))
    })
}

//! GPU requirements as node affinity, so that autoscalers add the right nodes for a pending pod.
//!
//! Not every cluster labels its nodes with GPU memory: there a plain requirement would leave the pod pending although
//! the scheduler knows the memory. Each term of the template therefore becomes three alternatives: NVIDIA's label is
//! sufficient; or it is absent and Karpenter's is sufficient; or both are absent, and the scheduler decides. A node
//! with an insufficient label matches none of them.
//!
//! The list of model names in labels is never complete: requiring known names would exclude a node whose driver has a
//! new name for the same model. Nodes with labels of other models are excluded instead.

use agentaflow_gpu::catalog::{GKE_ACCELERATOR, GKE_ACCELERATORS, GPUS, KARPENTER_GPU_NAME};
use serde_json::{Map, Value, json};

use super::template::{BadTemplate, object, shape};
use crate::names;

/// Karpenter's label on AWS: memory of each GPU in MiB. Karpenter knows it before the node exists.
const KARPENTER_MEMORY: &str = "karpenter.k8s.aws/instance-gpu-memory";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Excludes nodes with a label of less than `memory` MiB per GPU.
pub(super) fn require_memory(
    body: &mut Map<String, Value>,
    memory: u64,
) -> Result<(), BadTemplate> {
    if memory <= 1 { Ok(()) } else { require(body, &variants(memory)) }
}

/// Excludes nodes with a label of another model. An unknown name has no effect.
pub(super) fn require_model(body: &mut Map<String, Value>, model: &str) -> Result<(), BadTemplate> {
    let others = other_models(model);
    if others.is_empty() { Ok(()) } else { require(body, &[others]) }
}

/// Narrows each of the template's terms to each of these alternatives.
fn require(body: &mut Map<String, Value>, alternatives: &[Vec<Value>]) -> Result<(), BadTemplate> {
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
        // An empty term matches no node in Kubernetes and stays empty.
        Some(Value::Array(terms)) => terms.into_iter().filter(|term| !is_empty(term)).collect(),
        Some(_) => return Err(shape(&path, "a list")),
    };
    let mut all = Vec::with_capacity(terms.len() * alternatives.len());
    for term in terms {
        let Value::Object(term) = term else { return Err(shape(&path, "a list of objects")) };
        for alternative in alternatives {
            all.push(narrowed(&term, alternative, &path)?);
        }
    }
    required.insert("nodeSelectorTerms".into(), all.into());
    Ok(())
}

/// Label values of models without the distinguishing word of the requested one, such as `h100`.
fn other_models(wanted: &str) -> Vec<Value> {
    let words = |text: &str| {
        let words = text.split([' ', '-', '_', '/']).map(str::to_ascii_lowercase);
        words.collect::<Vec<_>>()
    };
    let mut telling = words(wanted);
    telling.retain(|word| GPUS.iter().any(|gpu| gpu.family() == word));
    if telling.is_empty() {
        return Vec::new();
    }
    let products = GPUS.iter().flat_map(|gpu| gpu.products).copied().collect();
    let karpenter = GPUS.iter().map(|gpu| gpu.karpenter).collect();
    let labels: [(&str, Vec<&str>); 3] = [
        (names::NVIDIA_PRODUCT, products),
        (KARPENTER_GPU_NAME, karpenter),
        (GKE_ACCELERATOR, GKE_ACCELERATORS.to_vec()),
    ];
    let others = labels.map(|(key, mut values)| {
        values.retain(|value| !words(value).iter().any(|word| telling.contains(word)));
        values.dedup();
        json!({ "key": key, "operator": "NotIn", "values": values })
    });
    others.into()
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

fn narrowed(term: &Map<String, Value>, more: &[Value], path: &str) -> Result<Value, BadTemplate> {
    let mut term = term.clone();
    let expressions = term.entry("matchExpressions").or_insert(Value::Null);
    if expressions.is_null() {
        *expressions = json!([]);
    }
    let Some(list) = expressions.as_array_mut() else {
        return Err(shape(&format!("{path}[].matchExpressions"), "a list"));
    };
    list.extend_from_slice(more);
    Ok(Value::Object(term))
}

fn is_empty(term: &Value) -> bool {
    term.as_object().is_some_and(|term| {
        term.values().all(|part| part.is_null() || part.as_array().is_some_and(Vec::is_empty))
    })
}

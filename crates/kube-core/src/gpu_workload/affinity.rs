//! Hard GPU needs as node affinity, so that whoever buys nodes for a waiting pod buys the right kind.
//!
//! Not every cluster labels its nodes with GPU memory: there a plain requirement would leave the pod waiting
//! for ever although our own records know the memory. So each of the template's terms gets three variants, of
//! which one must hold: NVIDIA's label says enough; or it is absent and Karpenter's says enough; or both are
//! absent, and the scheduler goes by what it knows. A node that says too little matches none of them.
//!
//! Nor does anybody know every name of a model, as labels write it: a list of the right ones would shut out a node
//! whose driver has a new name for the same thing. So nodes that say they have another model are shut out instead.

use agentaflow_gpu::catalog::{GKE_ACCELERATOR, GKE_ACCELERATORS, GPUS, KARPENTER_GPU_NAME};
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
    if memory <= 1 { Ok(()) } else { require(body, &variants(memory)) }
}

/// Requires nodes that do not say they have GPUs of another model. A name that is not known requires nothing.
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
        // An empty term among others matches no node: Kubernetes says so, and it stays that way.
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

/// What labels say of models that do not have the word that tells the wanted one apart, such as `h100`.
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

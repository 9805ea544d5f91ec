//! Facts of one job object, read by the paths of its kind.

use serde_json::Value;
use std::collections::BTreeMap;

use super::kinds::{End, Exception, FieldTest, Pods, SetPath, UnitKind};
use crate::names;
use crate::slim::{JobObject, Pod};

/// Facts of a job.
#[derive(Clone, Debug, Default)]
pub struct UnitSpec {
    pub suspended: bool,
    /// Finished, or bound to finish.
    pub ended: bool,
    /// Pod sets of the object itself, without empty ones.
    pub sets: Vec<PodSet>,
    /// Pods of each group; only of a kind with groups.
    pub group_size: Option<u32>,
    /// Reason for which the pods of this spec cannot start together.
    pub exception: Option<String>,
}

/// Equal pods of a job.
#[derive(Clone, Debug)]
pub struct PodSet {
    pub count: u32,
    /// The template as a pod, without name and namespace.
    pub template: Pod,
    /// JSON pointer of the template in the object.
    pub pointer: String,
    /// The controller replaces a failed pod. A Job with a limit per index gives up single indexes.
    pub replaces_failed: bool,
}

/// Reads a job.
pub fn read(kind: &UnitKind, object: &JobObject) -> UnitSpec {
    let root = |pointer: &str| match pointer.strip_prefix("/status") {
        Some(rest) => find(&object.status, "/status", rest),
        None => find(&object.spec, "/spec", pointer.trim_start_matches("/spec")),
    };
    let (sets, unreadable) = match &kind.pods {
        Pods::Sets(paths) => pod_sets(paths, &root),
        Pods::OfChild | Pods::Groups { .. } => (Vec::new(), None),
    };
    let group_size = match kind.pods {
        Pods::Groups { size } => root(size).first().and_then(|(_, size)| size.as_u64()),
        _ => None,
    };
    let exception = kind.exceptions.iter().find(|exception| applies(exception, &root));
    let exception =
        exception.map(|Exception { at, reason, .. }| format!("{}: {reason}", dotted(at)));
    UnitSpec {
        suspended: root(kind.suspend).iter().any(|(_, value)| **value == Value::Bool(true)),
        ended: ended(&kind.end, object, &root),
        sets,
        group_size: group_size.and_then(|size| u32::try_from(size).ok()),
        exception: exception.or(unreadable).or_else(|| exclusive_topology(object)),
    }
}

/// Annotations of a job with the prefix of agentaflow.
pub fn own_annotations(object: &JobObject) -> BTreeMap<String, String> {
    let annotations = object.metadata.annotations.iter().flatten();
    annotations
        .filter(|(name, _)| name.starts_with(names::PREFIX))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Workers of a group with a topology of its own exist after their leader has a node.
fn exclusive_topology(object: &JobObject) -> Option<String> {
    let name = names::GROUP_TOPOLOGY;
    let annotations = object.metadata.annotations.as_ref()?;
    annotations.contains_key(name).then(|| format!("{name}: the workers follow their leader"))
}

fn pod_sets<'a>(
    paths: &[SetPath],
    root: &dyn Fn(&str) -> Found<'a>,
) -> (Vec<PodSet>, Option<String>) {
    let (mut sets, mut unreadable) = (Vec::new(), None);
    for path in paths {
        for (at, set) in root(path.at) {
            let (count, pointer) = (count(path, set), format!("{at}{}", path.template));
            let job = path.job.and_then(|job| set.pointer(job));
            let replaces_failed = job.is_none_or(|job| job.get("backoffLimitPerIndex").is_none());
            match set.pointer(path.template).map(|value| serde_json::from_value(value.clone())) {
                Some(Ok(template)) if count > 0 => {
                    sets.push(PodSet { count, template, pointer, replaces_failed });
                }
                Some(Err(error)) => {
                    unreadable = Some(format!("{}{}: {error}", dotted(path.at), path.template));
                }
                _ => {}
            }
        }
    }
    (sets, unreadable)
}

/// Number of pods that exist at once.
fn count(path: &SetPath, set: &Value) -> u32 {
    let number = |value: Option<&Value>| value.and_then(Value::as_u64);
    let factors = path.factors.iter().map(|factor| number(set.pointer(factor)).unwrap_or(1));
    let job = path.job.and_then(|job| set.pointer(job)).map(|job| {
        let parallelism = number(job.get("parallelism")).unwrap_or(1);
        parallelism.min(number(job.get("completions")).unwrap_or(u64::MAX))
    });
    let count = factors.chain(job).fold(1_u64, u64::saturating_mul);
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn applies<'a>(exception: &Exception, root: &dyn Fn(&str) -> Found<'a>) -> bool {
    root(exception.at).into_iter().any(|(_, value)| match exception.test {
        FieldTest::True => *value == Value::Bool(true),
        FieldTest::Text(text) => value == text,
        FieldTest::Present => match value {
            Value::Null => false,
            Value::Array(all) => !all.is_empty(),
            Value::Object(all) => !all.is_empty(),
            _ => true,
        },
    })
}

fn ended<'a>(end: &End, object: &JobObject, root: &dyn Fn(&str) -> Found<'a>) -> bool {
    match end {
        End::Conditions(types) => {
            let conditions = object.status.get("conditions").and_then(Value::as_array);
            conditions.into_iter().flatten().any(|condition| {
                condition["status"] == "True" && types.iter().any(|name| condition["type"] == *name)
            })
        }
        End::Field(at, values) => {
            root(at).into_iter().any(|(_, value)| values.iter().any(|end| value == end))
        }
    }
}

/// Values with their pointers.
type Found<'a> = Vec<(String, &'a Value)>;

/// Values at a path below a value at the pointer `at`; `*` stands for every element.
fn find<'a>(value: &'a Value, at: &str, path: &str) -> Found<'a> {
    let Some(path) = path.strip_prefix('/') else { return vec![(at.to_owned(), value)] };
    let (step, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    let next: Vec<(String, &Value)> = match (step, value) {
        ("*", Value::Array(all)) => {
            all.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
        }
        ("*", Value::Object(all)) => {
            all.iter().map(|(name, value)| (escape(name), value)).collect()
        }
        _ => value.get(step).map(|value| (step.to_owned(), value)).into_iter().collect(),
    };
    let below = next.into_iter();
    below.flat_map(|(step, value)| find(value, &format!("{at}/{step}"), rest)).collect()
}

/// A name as a step of a JSON pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A pointer as users write it: `spec.replicatedJobs`.
fn dotted(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace("/*", "").replace('/', ".")
}

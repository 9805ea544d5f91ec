//! Priorities and annotations of pods.

use agentaflow_engine::{MiB, Span};
use agentaflow_units::{DurationError, parse_go_duration};
use std::collections::BTreeMap;

use super::selector::short;
use crate::names;
use crate::slim::Pod;

/// Default priority.
pub const MIDDLE: u8 = 5;

const HIGHEST: u8 = 10;

/// Priority of a pod from 0 to 10: the one of its priority class, which an annotation (of the pod or its owners) can
/// lower but not raise, because quotas and policies control the use of classes. Without a class, the annotation's,
/// else [`MIDDLE`]. The webhook turns the annotation of a new pod without a class into a class.
pub fn priority(pod: &Pod, annotations: &BTreeMap<String, String>) -> u8 {
    match (admitted(pod), asked(annotations)) {
        (Some(admitted), Some(asked)) => asked.min(admitted),
        (Some(priority), None) | (None, Some(priority)) => priority,
        (None, None) => MIDDLE,
    }
}

/// Problem of agentaflow's annotations: an unreadable requirement must not be ignored.
pub fn annotation_problem(annotations: &BTreeMap<String, String>) -> Option<String> {
    let wrong = |name: &str, what: &str| {
        let text = annotations.get(name).map(|text| short(text.trim())).unwrap_or_default();
        format!("annotation {name}: `{text}` is not {what}")
    };
    let text = |name: &str| annotations.get(name).map(|text| text.trim());
    if text(names::PRIORITY).is_some() && asked(annotations).is_none() {
        return Some(wrong(names::PRIORITY, "a number from 0 to 10"));
    }
    if text(names::PREEMPTIBLE).is_some_and(|text| text != "true" && text != "false") {
        return Some(wrong(names::PREEMPTIBLE, "`true` or `false`"));
    }
    if text(names::GPU_MEMORY).is_some() && min_gpu_memory(annotations).is_none() {
        return Some(wrong(names::GPU_MEMORY, "a number of MiB such as 40960"));
    }
    let problem = duration(text(names::DURATION)?).err()?;
    Some(format!("annotation {}: {problem}", names::DURATION))
}

/// Annotated priority; a value that is not a number from 0 to 10 counts as absent.
pub fn asked(annotations: &BTreeMap<String, String>) -> Option<u8> {
    let text = annotations.get(names::PRIORITY)?;
    text.trim().parse().ok().filter(|priority| *priority <= HIGHEST)
}

/// Priority of the pod's class. A foreign class with a value below the first step can be the cluster's default, which
/// the API server sets on pods without a class: such pods count as without one. A negative class is deliberately low.
pub fn admitted(pod: &Pod) -> Option<u8> {
    let class = pod.spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
    let (name, value) = class.zip(pod.spec.priority)?;
    let ours = name.starts_with(names::PRIORITY_CLASS_PREFIX);
    (ours || !(0..names::PRIORITY_STEP).contains(&value)).then(|| of_value(value))
}

/// Priority of a priority class value.
pub fn of_value(value: i32) -> u8 {
    (value / names::PRIORITY_STEP).clamp(0, i32::from(HIGHEST)) as u8
}

/// True if the annotations allow preemption.
pub fn preemptible(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(names::PREEMPTIBLE).is_none_or(|text| text.trim() != "false")
}

/// Expected run time from the annotations; none if absent or invalid.
pub fn estimate(annotations: &BTreeMap<String, String>) -> Option<Span> {
    duration(annotations.get(names::DURATION)?.trim()).ok()
}

/// Required memory of each GPU according to the annotations.
pub fn min_gpu_memory(annotations: &BTreeMap<String, String>) -> Option<MiB> {
    annotations.get(names::GPU_MEMORY)?.trim().parse().ok().map(MiB)
}

/// Duration in Go's syntax, such as `1h30m` or `1.5h`; a part of a millisecond is rounded up.
pub fn duration(text: &str) -> Result<Span, DurationError> {
    let duration = parse_go_duration(text)?;
    Ok(Span(duration.as_nanos().div_ceil(1_000_000) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_to_milliseconds() {
        let milliseconds = |text| duration(text).ok().map(|span| span.0);
        assert_eq!(milliseconds("1m1ms1us"), Some(60_002));
        assert_eq!(milliseconds("3µs"), Some(1));
        assert_eq!((milliseconds("0"), milliseconds("1d")), (Some(0), None));
    }

    #[test]
    fn a_priority_comes_from_the_class_which_annotations_only_lower_else_from_the_annotation() {
        let table = [
            (Some("7"), Some("high"), 300_000, 3),
            (Some("2"), Some("high"), 300_000, 2),
            (Some("7"), Some("agentaflow-7"), 700_000, 7),
            (Some("10"), None, 0, 10),
            (Some("4"), None, 0, 4),
            (Some(" 0 "), None, 0, 0),
            (None, Some("default-of-the-cluster"), 0, 5),
            (None, Some("default-of-the-cluster"), 99_999, 5),
            (Some("9"), Some("default-of-the-cluster"), 1_000, 9),
            (None, Some("agentaflow-0"), 0, 0),
            (Some("9"), Some("agentaflow-0"), 0, 0),
            (Some("11"), Some("high"), 300_000, 3),
            (Some("many"), None, 0, 5),
            (None, Some("high"), 1_000_000_000, 10),
            (None, Some("low"), -5, 0),
            (None, Some("agentaflow-9"), 900_000, 9),
            (None, Some(""), 900_000, 5),
            (None, None, 900_000, 5),
        ];
        for (annotation, class, value, expected) in table {
            let mut pod = Pod::default();
            pod.spec.priority_class_name = class.map(str::to_owned);
            pod.spec.priority = Some(value);
            let message = annotation.map(|text| (names::PRIORITY.to_owned(), text.to_owned()));
            assert_eq!(
                priority(&pod, &message.into_iter().collect()),
                expected,
                "{annotation:?} {class:?} {value}"
            );
        }
    }

    #[test]
    fn other_annotations_are_read_where_they_make_sense() {
        let message = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        assert!(preemptible(&BTreeMap::new()));
        assert!(!preemptible(&message(names::PREEMPTIBLE, "false")));
        assert_eq!(estimate(&message(names::DURATION, "2h")), Some(Span(7_200_000)));
        assert_eq!(estimate(&message(names::DURATION, "soon")), None);
        assert_eq!(min_gpu_memory(&message(names::GPU_MEMORY, "40960")), Some(MiB(40_960)));
        assert_eq!(min_gpu_memory(&message(names::GPU_MEMORY, "-1")), None);
    }

    #[test]
    fn a_need_that_cannot_be_read_is_told_and_not_left_out() {
        let message = |name: &str, value: &str| {
            annotation_problem(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
                .unwrap_or_default()
        };
        let table = [
            (names::PRIORITY, " 7 ", ""),
            (names::PRIORITY, "11", "`11` is not a number from 0 to 10"),
            (names::PRIORITY, "high", "`high` is not a number from 0 to 10"),
            (names::PREEMPTIBLE, "false", ""),
            (names::PREEMPTIBLE, "no", "`no` is not `true` or `false`"),
            (names::GPU_MEMORY, "40960", ""),
            (names::GPU_MEMORY, "100Gi", "`100Gi` is not a number of MiB such as 40960"),
            (names::DURATION, "1h", ""),
            (
                names::DURATION,
                "long",
                "`long` is not a duration: use a form such as 90s, 5m or 1h30m",
            ),
            (names::QUEUE, "anything", ""),
        ];
        for (name, value, problem) in table {
            let expected = if problem.is_empty() {
                String::new()
            } else {
                format!("annotation {name}: {problem}")
            };
            assert_eq!(message(name, value), expected);
        }
    }
}

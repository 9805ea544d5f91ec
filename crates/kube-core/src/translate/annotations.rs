//! Priorities and annotations of pods.

use agentaflow_engine::{MiB, Priority, Span};
use agentaflow_units::{DurationError, parse_go_duration};
use std::collections::BTreeMap;

use super::selector::short;
use crate::names;
use crate::slim::Pod;

/// Value of the pod's priority class, as admission set it; 0 without a class.
pub fn priority(pod: &Pod) -> Priority {
    Priority(pod.spec.priority.unwrap_or(0))
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
    [names::DURATION, names::REPLACEMENT_TIMEOUT].into_iter().find_map(|name| {
        let problem = duration(text(name)?).err()?;
        Some(format!("annotation {name}: {problem}"))
    })
}

/// Annotated priority; a value that is not a number from 0 to 10 counts as absent.
pub fn asked(annotations: &BTreeMap<String, String>) -> Option<u8> {
    let text = annotations.get(names::PRIORITY)?;
    text.trim().parse().ok().filter(|priority| *priority <= names::HIGHEST_PRIORITY)
}

/// True if the annotations allow preemption.
pub fn preemptible(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(names::PREEMPTIBLE).is_none_or(|text| text.trim() != "false")
}

/// Expected run time from the annotations; none if absent or invalid.
pub fn estimate(annotations: &BTreeMap<String, String>) -> Option<Span> {
    duration(annotations.get(names::DURATION)?.trim()).ok()
}

/// Time during which the place of a lost pod stays reserved; none if absent or invalid.
pub fn replacement_timeout(annotations: &BTreeMap<String, String>) -> Option<Span> {
    duration(annotations.get(names::REPLACEMENT_TIMEOUT)?.trim()).ok()
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
    fn a_priority_is_the_value_of_the_class_as_it_is() {
        for value in [i32::MIN, -1, 0, 1, 99_999, 100_000, 2_000_001_000] {
            let mut pod = Pod::default();
            pod.spec.priority = Some(value);
            assert_eq!(priority(&pod), Priority(value));
        }
        assert_eq!(priority(&Pod::default()), Priority(0));
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
    fn an_unreadable_request_is_reported_and_not_ignored() {
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

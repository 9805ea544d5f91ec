//! Pod names and label values, shortened to the limits of Kubernetes.

use agentaflow_units::hash32;

/// Longest label value and host name; longer pod names are valid but truncated in both.
const MAX: usize = 63;

/// Pod of a task: `<workload>-<task>`, and `<workload>-<task>-r<attempt>` for later attempts. Too long names are
/// truncated and get a hash, so that two long names never share a pod.
pub fn pod_name(workload: &str, task: u32, attempt: u32) -> String {
    let suffix = match attempt {
        0 => format!("-{task}"),
        attempt => format!("-{task}-r{attempt}"),
    };
    let mut name = cut(workload, MAX - suffix.len());
    name.push_str(&suffix);
    name
}

/// Host name of a task, the same for all attempts. Dots are not allowed in host names.
pub(super) fn host_name(workload: &str, task: u32) -> String {
    let suffix = format!("-{task}");
    format!("{}{suffix}", host_label(workload, MAX - suffix.len()))
}

/// Headless Service of a gang: `<workload>-gang`.
pub(super) fn service_name(workload: &str) -> String {
    let suffix = "-gang";
    // Services of Kubernetes before 1.34 begin with a letter.
    let is_letter = workload.starts_with(|first: char| first.is_ascii_lowercase());
    let prefix = if is_letter { "" } else { "w-" };
    format!("{prefix}{}{suffix}", host_label(workload, MAX - suffix.len() - prefix.len()))
}

/// A name without dots; a changed name gets a hash, so that two names never share one.
fn host_label(workload: &str, room: usize) -> String {
    if !workload.contains('.') {
        return cut(workload, room);
    }
    let hash = format!("-{:08x}", hash32(workload));
    format!("{}{hash}", cut(&workload.replace('.', "-"), room - hash.len()))
}

/// Label value of a workload name: the name, or its beginning and a hash if the name exceeds the length of a label. Only
/// the owner reference identifies the pods of such a workload.
pub fn label_value(workload: &str) -> String {
    cut(workload, MAX)
}

fn cut(name: &str, room: usize) -> String {
    if name.len() <= room {
        return name.to_owned();
    }
    let hash = format!("-{:08x}", hash32(name));
    let mut end = room - hash.len();
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let start = name[..end].trim_end_matches(['-', '.', '_']);
    format!("{start}{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_named_after_their_workload_task_and_attempt() {
        assert_eq!(pod_name("train", 0, 0), "train-0");
        assert_eq!(pod_name("train", 63, 2), "train-63-r2");
        assert_eq!(label_value("train"), "train");
    }

    #[test]
    fn host_and_service_names_are_labels() {
        assert_eq!(host_name("train", 3), "train-3");
        assert_eq!(service_name("train"), "train-gang");
        assert_eq!(service_name("7b"), "w-7b-gang");
        assert_ne!(host_name("a.b", 0), host_name("a-b", 0));
        let long = "a.".repeat(100);
        for name in [host_name(&long, 9999), service_name(&long), service_name(&"9".repeat(200))] {
            assert!(name.len() <= 63 && !name.contains('.'), "{name}");
        }
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let long = "a".repeat(62) + ".b";
        let twin = "a".repeat(62) + ".c";
        for name in [pod_name(&long, u32::MAX, u32::MAX), pod_name(&long, 0, 0), label_value(&long)]
        {
            assert!(name.len() <= 63, "{name}");
        }
        assert_ne!(pod_name(&long, 0, 0), pod_name(&twin, 0, 0));
        assert_ne!(label_value(&long), label_value(&twin));
        assert_eq!(pod_name("x".repeat(58).as_str(), 7, 0).len(), 60);
        let dots = format!("{}{}", "a".repeat(40), ".".repeat(30));
        assert!(!label_value(&dots).contains('.'), "no part of a name ends with a dot");
        assert!(
            pod_name(&"ü".repeat(60), 0, 0).len() <= 63,
            "even names that cannot be do not panic"
        );
    }
}

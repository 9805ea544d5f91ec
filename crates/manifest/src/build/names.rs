//! Valid names of Kubernetes.

use agentaflow_units::hash32;

use super::{BuildError, refuse};

/// Longest text that is a valid label value and host name.
const MAX: usize = 63;

/// True for a DNS label.
pub fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= MAX
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && ends(text.chars().next())
        && ends(text.chars().next_back())
}

pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || (text.len() <= MAX && is_qualified(text))
}

/// Valid key of a label or annotation, or name of a resource: `name` or `domain/name`.
pub fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(p, name)| (Some(p), name));
    let prefix = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_name));
    prefix && name.len() <= MAX && is_qualified(name)
}

/// Validates an object name.
pub(super) fn name(flag: &'static str, given: Option<&str>) -> Result<String, BuildError> {
    name_within(flag, given, MAX)
}

/// Validates an object name that gets a suffix later.
pub(super) fn name_within(
    flag: &'static str,
    given: Option<&str>,
    most: usize,
) -> Result<String, BuildError> {
    match given {
        None => refuse(flag, "a name is required, such as `train`"),
        Some(text) if is_name(text) && text.len() <= most => Ok(text.to_owned()),
        Some(text) => refuse(
            flag,
            format!(
                "`{}` is not a name: use at most {most} of a-z, 0-9 and -, starting and ending with a letter or \
                 digit",
                short(text)
            ),
        ),
    }
}

/// Validates a node pool name of AKS, which is shorter than elsewhere.
pub(super) fn azure_pool<'a>(flag: &'static str, text: &'a str) -> Result<&'a str, BuildError> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    if text.len() <= 12 && begins && text.chars().all(is_inner) {
        return Ok(text);
    }
    let why = "AKS takes at most 12 of a-z and 0-9, starting with a letter, such as gpupool";
    refuse(flag, format!("`{}` is not a pool name: {why}", short(text)))
}

/// Job name of a task: `ml_task_123` → `gpu-job-ml-task-123`. Invalid characters become dashes; if that or the length
/// loses information, a hash of the whole id keeps tasks apart.
pub fn job_name(task_id: &str) -> Result<String, BuildError> {
    const PREFIX: &str = "gpu-job-";
    if task_id.trim().is_empty() {
        return refuse("task-id", "must not be empty: use the id of the task, such as ml_task_123");
    }
    let mut name = String::new();
    let mut lost = false;
    for c in task_id.chars() {
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9') => name.push(c),
            c => {
                lost |= !matches!(c, '_' | '-' | '.' | ' ' | '/' | ':');
                if !name.ends_with('-') {
                    name.push('-');
                }
            }
        }
    }
    let name = name.trim_matches('-');
    if !lost && !name.is_empty() && PREFIX.len() + name.len() <= MAX {
        return Ok(format!("{PREFIX}{name}"));
    }
    let hash = format!("{:08x}", hash32(task_id));
    // Only ASCII is left.
    let room = MAX - PREFIX.len() - hash.len() - 1;
    let start = name[..name.len().min(room)].trim_end_matches('-');
    let dash = if start.is_empty() { "" } else { "-" };
    Ok(format!("{PREFIX}{start}{dash}{hash}"))
}

/// Beginning of user input, for messages.
pub(super) fn short(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn is_qualified(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && ends(text.chars().next())
        && ends(text.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_becomes_a_name() {
        for (id, name) in [
            ("ml_task_123", "gpu-job-ml-task-123"),
            ("ML Task/7", "gpu-job-ml-task-7"),
            ("__a..b__", "gpu-job-a-b"),
            ("7", "gpu-job-7"),
        ] {
            assert_eq!(job_name(id).unwrap(), name);
        }
        assert!(job_name(" \t").unwrap_err().to_string().starts_with("--task-id: "));
    }

    #[test]
    fn hostile_ids_become_names_too_and_stay_apart() {
        let ids = [
            "日本",
            "日本語",
            "ä",
            "___",
            "a\u{0}b",
            "a;b",
            "💥",
            &"x".repeat(500),
            &"x".repeat(501),
        ];
        let names: std::collections::BTreeSet<_> =
            ids.iter().map(|id| job_name(id).unwrap()).collect();
        assert_eq!(names.len(), ids.len(), "{names:?}");
        assert!(names.iter().all(|name| is_name(name)), "{names:?}");
    }

    #[test]
    fn labels_are_checked_like_the_api_server() {
        for key in ["app", "app.kubernetes.io/name", "A_b.c-d", "nvidia.com/gpu"] {
            assert!(is_label_key(key), "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "-a", "a-", "ä", "A.com/x", "a b", &"a".repeat(64)] {
            assert!(!is_label_key(key), "{key}");
        }
        assert!(is_label_value("") && is_label_value("A_1.x") && !is_label_value("a:b"));
    }
}

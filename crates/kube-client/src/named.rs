//! Names of jobs: a workload by its name, a pod as `pod/NAME`, each with an optional namespace prefix.

use std::fmt;

use super::Failure;

/// Kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A `GPUWorkload`.
    Workload,
    /// A pod that belongs to no workload.
    Pod,
}

/// Reference to a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) namespace: String,
    pub(super) kind: Kind,
    pub(super) name: String,
}

impl Named {
    /// Parses a name; `namespace` is the default namespace.
    pub(super) fn parse(text: &str, namespace: &str) -> Result<Self, Failure> {
        let parts: Vec<&str> = text.trim().split('/').collect();
        let (space, kind, name) = match parts.as_slice() {
            [name] | ["gpuworkload" | "gpuworkloads" | "gw", name] => {
                (namespace, Kind::Workload, *name)
            }
            ["pod" | "pods", name] => (namespace, Kind::Pod, *name),
            [space, name] => (*space, Kind::Workload, *name),
            [space, "pod" | "pods", name] => (*space, Kind::Pod, *name),
            _ => return Err(Self::invalid_name(text)),
        };
        if !is_name(space) || !is_name(name) {
            return Err(Self::invalid_name(text));
        }
        Ok(Self { namespace: space.to_owned(), kind, name: name.to_owned() })
    }

    /// Name for the command line, with the namespace if `everywhere` is set.
    pub(super) fn handle(&self, everywhere: bool) -> String {
        let kind = if self.kind == Kind::Pod { "pod/" } else { "" };
        let space = if everywhere { format!("{}/", self.namespace) } else { String::new() };
        format!("{space}{kind}{}", self.name)
    }

    /// Error for a job that does not exist.
    pub(super) fn missing(&self) -> Failure {
        let (kind, name) = match self.kind {
            Kind::Workload => ("workload", &self.name),
            Kind::Pod => ("pod", &self.name),
        };
        Failure::NotFound(format!("{kind} `{name}` not found in namespace `{}`", self.namespace))
    }

    fn invalid_name(text: &str) -> Failure {
        let text: String = text.chars().take(100).collect();
        Failure::NotFound(format!(
            "`{text}` is not a job name; use NAME, `pod/NAME` or `NAMESPACE/NAME`"
        ))
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.handle(true))
    }
}

/// True for a valid object name; any other text would change the request path.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !text.is_empty() && text.len() <= 253 && text.chars().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_as_users_type_them() {
        let table = [
            ("train", "ml", Kind::Workload, "train"),
            ("pod/one", "ml", Kind::Pod, "one"),
            ("lab/train", "lab", Kind::Workload, "train"),
            ("lab/pod/one", "lab", Kind::Pod, "one"),
            ("gpuworkload/train", "ml", Kind::Workload, "train"),
        ];
        for (text, space, kind, name) in table {
            let named = Named::parse(text, "ml").unwrap();
            let expected = Named { namespace: space.into(), kind, name: name.into() };
            assert_eq!(named, expected, "{text}");
            assert_eq!(Named::parse(&named.handle(true), "other").unwrap(), expected);
        }
        for text in
            ["", "/", "a/b/c", "../x", "Train", "a b", "pod/", "a/pod/b/c", "x?y", "..", "%2e"]
        {
            assert!(Named::parse(text, "ml").is_err(), "{text}");
        }
    }
}

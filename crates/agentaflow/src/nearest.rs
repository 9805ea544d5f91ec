//! Errors for unknown names.

use agentaflow_units::{did_you_mean, nearest};
use anyhow::Result;

use crate::failure::NotFound;

/// Fails for the first unknown name.
pub(crate) fn must_exist(kind: &str, asked: &[String], known: &[String]) -> Result<()> {
    let Some(name) = asked.iter().find(|name| !known.contains(name)) else { return Ok(()) };
    Err(not_found(kind, name, known).into())
}

/// The error for an unknown name, with the nearest known one.
pub(crate) fn not_found(kind: &str, name: &str, known: &[String]) -> NotFound {
    let near = did_you_mean(nearest(name, known.iter().map(String::as_str)));
    NotFound(format!("{kind} `{name}` not found{near}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_reported_with_a_suggestion() {
        let known = ["gpu-7".to_owned()];
        assert_eq!(
            not_found("node", "gpu7", &known).0,
            "node `gpu7` not found (did you mean `gpu-7`?)"
        );
        assert_eq!(not_found("node", "other", &known).0, "node `other` not found");
        assert!(must_exist("node", &known, &known).is_ok());
    }
}

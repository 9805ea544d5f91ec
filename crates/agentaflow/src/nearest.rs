//! Suggestions for misspelled names.

pub(crate) use agentaflow_manifest::yaml::nearest;
use anyhow::Result;

use crate::failure::NotFound;

/// Fails for the first unknown name.
pub(crate) fn must_exist(kind: &str, asked: &[String], known: &[String]) -> Result<()> {
    let Some(name) = asked.iter().find(|name| !known.contains(name)) else { return Ok(()) };
    Err(not_found(kind, name, known).into())
}

/// The error for an unknown name, with the nearest known one.
pub(crate) fn not_found(kind: &str, name: &str, known: &[String]) -> NotFound {
    let near = nearest(name, known.iter().map(String::as_str));
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    NotFound(format!("{kind} `{name}` not found{near}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_has_a_suggestion_and_another_word_has_none() {
        let known = ["train", "serve", "best_fit"];
        assert_eq!(nearest("trian", known), Some("train"));
        assert_eq!(nearest("bestfit", known), Some("best_fit"));
        assert_eq!(nearest("SERVE", known), Some("serve"));
        assert_eq!(nearest("zebra", known), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn an_unknown_name_is_reported_with_a_suggestion() {
        let known = ["gpu-7".to_owned()];
        assert_eq!(
            not_found("node", "gpu7", &known).0,
            "node `gpu7` not found; did you mean `gpu-7`?"
        );
        assert_eq!(not_found("node", "other", &known).0, "node `other` not found");
        assert!(must_exist("node", &known, &known).is_ok());
    }
}

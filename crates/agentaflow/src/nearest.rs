//! What somebody may have meant.

pub(crate) use agentaflow_manifest::yaml::nearest;
use anyhow::Result;

use crate::failure::NotThere;

/// Fails for the first name that is not among those that there are.
pub(crate) fn must_exist(kind: &str, asked: &[String], known: &[String]) -> Result<()> {
    let Some(name) = asked.iter().find(|name| !known.contains(name)) else { return Ok(()) };
    Err(not_there(kind, name, known).into())
}

/// Something is not there, but perhaps something like it.
pub(crate) fn not_there(kind: &str, name: &str, known: &[String]) -> NotThere {
    let near = nearest(name, known.iter().map(String::as_str));
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    NotThere(format!("there is no {kind} `{name}`{near}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_something_else_is_not() {
        let known = ["train", "serve", "best_fit"];
        assert_eq!(nearest("trian", known), Some("train"));
        assert_eq!(nearest("bestfit", known), Some("best_fit"));
        assert_eq!(nearest("SERVE", known), Some("serve"));
        assert_eq!(nearest("zebra", known), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is_like_it() {
        let known = ["gpu-7".to_owned()];
        assert_eq!(
            not_there("node", "gpu7", &known).0,
            "there is no node `gpu7`; did you mean `gpu-7`?"
        );
        assert_eq!(not_there("node", "other", &known).0, "there is no node `other`");
        assert!(must_exist("node", &known, &known).is_ok());
    }
}

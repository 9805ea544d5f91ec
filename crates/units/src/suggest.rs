//! Suggestions for misspelled names.

use std::fmt::Display;

/// Known name within a typing error of `name`: one edit, and one more for every four characters.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(name, known, 1 + name.chars().count() / 4)
}

/// Known name with the fewest edits (insert, delete, change or swap a character), at most `edits`. Case is ignored.
pub fn nearest_within<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    edits: usize,
) -> Option<&'a str> {
    /// Longer texts are no names; comparing them costs the square of the length.
    const LONGEST: usize = 128;
    if name.len() > LONGEST {
        return None;
    }
    let lower = name.to_lowercase();
    let known = known.into_iter().filter(|other| other.len() <= LONGEST);
    let scored = known.map(|other| (strsim::osa_distance(&lower, &other.to_lowercase()), other));
    let (score, best) = scored.min_by_key(|(score, _)| *score)?;
    (score <= edits && score < name.chars().count()).then_some(best)
}

/// Text after a misspelled name: `` (did you mean `x`?)`` with a leading space, or nothing without a suggestion.
pub fn did_you_mean(suggestion: Option<impl Display>) -> String {
    suggestion.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
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
    fn a_suggestion_follows_the_misspelled_name() {
        assert_eq!(did_you_mean(Some("train")), " (did you mean `train`?)");
        assert_eq!(did_you_mean(None::<&str>), "");
    }
}

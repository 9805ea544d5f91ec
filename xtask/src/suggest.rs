//! "Did you mean …?" for a mistyped word.

/// Returns ` (did you mean `x`?)` for the nearest candidate, or an empty string.
pub(crate) fn did_you_mean<'a>(
    typed: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> String {
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(typed, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| format!(" (did you mean `{candidate}`?)"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn a_typo_gets_a_suggestion_and_an_unrelated_word_does_not() {
        let commands = ["run", "test", "bench"];
        assert_eq!(did_you_mean("tset", commands), " (did you mean `test`?)");
        assert_eq!(did_you_mean("benhc", commands), " (did you mean `bench`?)");
        assert_eq!(did_you_mean("deploy", commands), "");
    }
}

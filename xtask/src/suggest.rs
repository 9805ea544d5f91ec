//! "Did you mean …?" for a mistyped word.

/// Returns ` (did you mean `x`?)` for the nearest candidate, or nothing when none is near.
pub(crate) fn did_you_mean<'a>(
    typed: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> String {
    candidates
        .into_iter()
        .map(|candidate| (distance(typed, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| format!(" (did you mean `{candidate}`?)"))
        .unwrap_or_default()
}

/// Counts the letters to insert, delete or replace to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for j in 0..b.len() {
            let replaced = diagonal + usize::from(letter != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn a_typing_slip_is_recognised_and_nonsense_is_not() {
        let commands = ["run", "test", "bench"];
        assert_eq!(did_you_mean("tset", commands), " (did you mean `test`?)");
        assert_eq!(did_you_mean("benhc", commands), " (did you mean `bench`?)");
        assert_eq!(did_you_mean("deploy", commands), "");
    }
}

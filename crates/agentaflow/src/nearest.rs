//! What somebody may have meant.

use anyhow::Result;

use crate::failure::NotThere;

/// The known word that is nearest to one that is not known, if any is near.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let far = |other: &&str| distance(word, other);
    let best = known.into_iter().min_by_key(far)?;
    let allowed = (word.chars().count() / 3).max(1);
    (distance(word, best) <= allowed).then_some(best)
}

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

/// How many letters must be changed, added, removed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().take(64).collect(), b.to_lowercase().chars().take(64).collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
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

//! The `commits` phase: subjects of new commits are short, imperative sentences.

use anyhow::Result;

use crate::changes::Base;
use crate::output::out;
use crate::report::Report;

/// Width that `git log --oneline` and code hosts show without cutting.
const LONGEST: usize = 72;

/// Checks the commits that the main branch does not have; on the main branch itself the last commit.
pub(crate) fn check() -> Result<Report> {
    let base = match Base::find() {
        Ok(base) => base,
        Err(error) => return Ok(Report::skipped("commits", format!("{error:#}"))),
    };
    let mut problems = 0;
    for (hash, subject) in base.commits()? {
        if let Some(problem) = problem(&subject) {
            out!("   {hash} {subject}\n      {problem}");
            problems += 1;
        }
    }
    Ok(Report::from_count("commits", problems))
}

fn problem(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > LONGEST {
        return Some(format!("{length} characters; at most {LONGEST}"));
    }
    if subject.ends_with('.') {
        return Some("ends with a period".to_owned());
    }
    if !subject.starts_with(|c: char| c.is_uppercase() || c == '`') {
        return Some("does not start with a capital letter".to_owned());
    }
    let first = subject.split(' ').next().unwrap_or_default();
    let is_imperative =
        !NOT_IMPERATIVE.iter().any(|ending| first.ends_with(ending)) || IMPERATIVE.contains(&first);
    (!is_imperative).then(|| format!("`{first}` is not an imperative"))
}

const NOT_IMPERATIVE: [&str; 2] = ["ing", "ed"];

/// Imperatives that end like a participle.
const IMPERATIVE: [&str; 6] = ["Bring", "Embed", "Feed", "Seed", "Shed", "Speed"];

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn a_subject_is_a_short_imperative_without_a_period() {
        assert_eq!(problem("Resolve volume paths after the image pull"), None);
        assert_eq!(problem("Embed the dashboard"), None);
        assert!(problem("Resolve volume paths.").is_some());
        assert!(problem("resolve volume paths").is_some());
        assert!(problem("Resolved volume paths").is_some());
        assert!(problem(&"Resolve paths ".repeat(6)).is_some());
    }
}

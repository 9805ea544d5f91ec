//! The `prose` phase: comments and documents name the actor and the object.
//!
//! A script cannot judge a sentence. This one finds the patterns that mark most sentences without an actor or an
//! object: doc comments that start with an interrogative clause, indefinite persons, pronouns without a noun in comments,
//! and phrases that replace a term.
//! Strings of Rust files and deployed files count, since users read them. Names of tests are sentences, too.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::output::out;
use crate::report::Report;
use crate::{CommandError, no_arguments, repo, tools};

pub(crate) const HELP: &str = "\
List sentences that break the prose rule of CONTRIBUTING.md.

Usage: cargo xtask prose

Prints each doc comment that starts with What, Who, Whether, Those, How or Where, and each
line of Rust, Markdown or a deployed file with an indefinite person or a phrase that
replaces a term; each comment of Rust with a pronoun that needs a noun; and each name of a test with such a word.";

/// Number of known violations. Lower the number with every fix; never raise it.
const CEILING: usize = 0;

/// First words of doc comments that stand for a noun.
const OPENERS: [&str; 12] = [
    "What",
    "Who",
    "Whoever",
    "Whatever",
    "Whether",
    "Whose",
    "Those",
    "How",
    "Where",
    "Somebody",
    "Nobody",
    "Everybody",
];

/// Split, so that this file passes its own check.
const PERSONS: [&str; 4] = [
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("every", "body"),
    concat!("any", "body"),
];

/// Phrases that replace a term of the glossary, in lower case. Split like the persons.
const PHRASES: [&str; 16] = [
    concat!("looks ", "after"),
    concat!("looked ", "after"),
    concat!("came ", "of it"),
    concat!("became ", "of it"),
    concat!("all is ", "well"),
    concat!("how many ", "wait"),
    concat!("hands ", "in "),
    concat!("slow ", "down a little"),
    concat!("the rest is ", "an"),
    concat!("whose ", "turn it"),
    concat!("has the ", "turn"),
    concat!(" goes ", "on"),
    concat!("told ", "to"),
    concat!("switched ", "off"),
    concat!("handed ", "in"),
    concat!("sick ", "gpu"),
];

/// Words that need a noun, in comments of Rust files.
const PRONOUNS: [&str; 4] = ["others", "those", "thing", "things"];

/// Words that names of tests do not contain, besides indefinite persons: clauses that stand for a noun, pronouns
/// without a noun, and words with a term in the glossary.
const TEST_WORDS: [&str; 20] = [
    "what", "who", "whoever", "whatever", "whether", "those", "we", "us", "our", "ours", "others",
    "people", "thing", "things", "told", "sick", "mend", "mends", "mended", "nonsense",
];

pub(crate) fn check() -> Result<Report> {
    tools::ensure_program("git")?;
    let found = violations()?.len();
    Ok(match found.cmp(&CEILING) {
        std::cmp::Ordering::Greater => Report::failed(
            "prose",
            format!("{found} violations, ceiling {CEILING}; `cargo xtask prose` lists them"),
        ),
        std::cmp::Ordering::Equal => Report::passed(),
        std::cmp::Ordering::Less => {
            out!("   {found} violations: lower CEILING in xtask/src/prose.rs from {CEILING}");
            Report::passed()
        }
    })
}

pub(crate) fn run(rest: &[String]) -> Result<ExitCode, CommandError> {
    no_arguments("prose", rest)?;
    let found = violations()?;
    for violation in &found {
        out!("{violation}");
    }
    out!("{} violations, ceiling {CEILING}", found.len());
    Ok(if found.len() > CEILING { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// `file:line: text` of each violation.
fn violations() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in repo::files()? {
        let ending = Path::new(&file).extension().and_then(|ending| ending.to_str());
        let is_rust = ending == Some("rs");
        if !is_rust && ending != Some("md") && !is_deployed(&file, ending) {
            continue;
        }
        let text = fs::read_to_string(repo::root().join(&file))
            .with_context(|| format!("cannot read `{file}`"))?;
        let mut previous_is_doc = false;
        let mut in_test_head = false;
        for (number, line) in text.lines().enumerate() {
            let doc = doc_comment(line).filter(|_| is_rust);
            let opens = doc.is_some_and(|doc| !previous_is_doc && opens_with_clause(doc));
            // An empty doc line ends a paragraph, and the next line starts a sentence.
            previous_is_doc = doc.is_some_and(|doc| !doc.is_empty());
            in_test_head |= is_rust && is_test_attribute(line);
            let function = function_name(line);
            let names_badly = in_test_head && function.is_some_and(has_test_word);
            in_test_head &= function.is_none();
            let has_pronoun = is_rust && comment(line).is_some_and(has_pronoun);
            if opens || names_person(line) || has_phrase(line) || has_pronoun || names_badly {
                found.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    Ok(found)
}

/// Dashboards and manifests: their descriptions are text for users.
fn is_deployed(file: &str, ending: Option<&str>) -> bool {
    file.starts_with("deploy/") && matches!(ending, Some("json" | "yaml"))
}

fn has_phrase(line: &str) -> bool {
    let line = line.to_lowercase();
    PHRASES.iter().any(|phrase| line.contains(phrase))
}

fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    Some(text.trim())
}

/// Text of a comment on a line of its own.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']))
}

fn has_pronoun(comment: &str) -> bool {
    // Names of fields stand between backticks.
    let prose = comment.split('`').step_by(2);
    let words = prose.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.into_iter().any(|word| PRONOUNS.contains(&word.to_lowercase().as_str()))
}

fn is_test_attribute(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("#[test]") || line.starts_with("#[tokio::test")
}

fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    line.split('(').next()
}

fn has_test_word(name: &str) -> bool {
    // `what-if` is a term of the glossary.
    let name = name.replace("what_if", "forecast");
    name.split('_').any(|word| TEST_WORDS.contains(&word) || PERSONS.contains(&word))
}

fn opens_with_clause(doc: &str) -> bool {
    let first = doc.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    OPENERS.contains(&first)
}

/// True for an indefinite person in prose. Constants, paths, quoted words and the Unix user of the lowest rights are
/// names.
fn names_person(line: &str) -> bool {
    let text = line.replace(&format!("user {}", PERSONS[1]), "").replace(&default_user(), "");
    PERSONS.iter().any(|person| {
        let capitalised = person[..1].to_uppercase() + &person[1..];
        [*person, &capitalised].iter().any(|form| {
            text.match_indices(form).any(|(at, _)| {
                let before = text[..at].chars().next_back();
                let after = text[at + form.len()..].chars().next();
                let is_part = |c: char| c.is_alphanumeric() || "_/".contains(c);
                let in_name = |c: Option<char>| c.is_some_and(is_part);
                let is_quoted = |c: Option<char>| c.is_some_and(|c| c == '"' || c == '`');
                !(in_name(before) || in_name(after) || is_quoted(before) && is_quoted(after))
            })
        })
    })
}

/// Default value in the help of options.
fn default_user() -> String {
    format!("default: {}", PERSONS[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doc_comment_that_opens_with_a_clause_is_found() {
        assert!(opens_with_clause("What the engine was told."));
        assert!(opens_with_clause("Whether the node is ready."));
        assert!(!opens_with_clause("Node description last sent to the engine."));
        assert!(!opens_with_clause("Whole GPUs only."));
    }

    #[test]
    fn a_name_of_a_test_with_a_forbidden_word_is_found() {
        assert!(is_test_attribute("    #[tokio::test(start_paused = true)]"));
        assert_eq!(function_name("    async fn a_gpu_fails() {"), Some("a_gpu_fails"));
        assert!(has_test_word("the_manifest_is_what_the_code_says"));
        assert!(has_test_word(&format!("a_process_belongs_to_{}", PERSONS[1])));
        assert!(!has_test_word("what_if_predicts_a_start"));
        assert!(!has_test_word("the_status_of_a_job_whose_pods_end"));
    }

    #[test]
    fn a_phrase_is_found_in_strings_of_code_and_of_dashboards() {
        assert!(has_phrase(&format!("\"description\": \"GPUs that the program {}.\"", PHRASES[0])));
        assert!(!has_phrase("\"description\": \"GPUs managed by the scheduler.\""));
        assert!(is_deployed("deploy/grafana/cluster.json", Some("json")));
        assert!(!is_deployed("web/package.json", Some("json")));
    }

    #[test]
    fn a_pronoun_without_a_noun_is_found_in_comments_only() {
        let pronoun = PRONOUNS[1];
        let finds = |line: &str| comment(line).is_some_and(has_pronoun);
        assert!(finds(&format!("    // Pods of jobs, and {pronoun} of gangs.")));
        assert!(finds(&format!("/// {pronoun} of gangs")));
        assert!(!finds(&format!("// The field `{pronoun}` lists pods.")));
        assert!(!finds(&format!("let {pronoun} = 1;")));
    }

    #[test]
    fn an_indefinite_person_is_found_in_prose_and_not_in_names() {
        let person = PERSONS[1];
        assert!(names_person(&format!("// {person} waits for it")));
        assert!(!names_person(&format!("const USER: &str = \"{person}\";")));
        assert!(!names_person(&format!("let {person}_waits = true;")));
        assert!(!names_person(&format!("image: localhost/{person}/x")));
        assert!(!names_person(&format!("processes as user {person}")));
        assert!(!names_person(&format!("const {}: &str", person.to_uppercase())));
    }
}

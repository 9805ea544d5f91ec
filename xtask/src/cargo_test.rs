//! Parses the output of `cargo test`: totals from the result lines, names from the lines of tests.
//!
//! A test that skips itself (`tests/skip.rs`) prints a line of its own and then passes for the test harness:
//! `test NAME ... skipped, REASON`. It counts as skipped. A skipped part of a test has a name of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::report::Report;

/// Outcome of a test that skips itself; the reason follows.
const SKIPPED: &str = "skipped, ";
const SKIP_MARK: &str = " ... skipped, ";

/// Parses the output of `cargo test --no-fail-fast`.
///
/// A program that ends without a result line counts as one failure, and so does a failed build.
pub(crate) fn read(output: &str, succeeded: bool) -> Report {
    let mut report = Report::default();
    let mut running: Option<String> = None;
    let mut unfinished = Vec::new();
    let mut interrupted: Option<String> = None;
    for line in output.lines() {
        let line = without_colour(line);
        interrupted = interrupted_test(&line).map(str::to_owned).or(interrupted);
        if line == "FAILED"
            && let Some(test) = interrupted.take()
        {
            record(&mut report, running.as_deref(), &test, &line);
        } else if let Some(program) = started(&line) {
            unfinished.extend(running.replace(program));
        } else if let Some(passed) = passed(&line) {
            report.passed += passed;
            let program = running.take().unwrap_or_default();
            report.durations.extend(duration(&line).map(|time| (program, time)));
        } else if let Some((test, outcome)) = test_line(&line) {
            record(&mut report, running.as_deref(), test, outcome);
        }
    }
    let run = names_of_run(output);
    let skipped_themselves = report.skipped.iter().filter(|entry| run.contains(&entry.name));
    report.passed = report.passed.saturating_sub(skipped_themselves.count());
    unfinished.extend(running);
    if !succeeded {
        for program in unfinished {
            report.fail(program, "ended without a result line; see the output above");
        }
        if !report.is_failure() {
            report.fail("tests", "the tests do not build; see the output above");
        }
    }
    report
}

/// Names of the tests that ran, in the form of a report; tests that skipped themselves included.
pub(crate) fn names_of_run(output: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut running: Option<String> = None;
    for line in output.lines() {
        let line = without_colour(line);
        names.extend(interrupted_test(&line).map(|test| full_name(running.as_deref(), test)));
        if let Some(program) = started(&line) {
            running = Some(program);
        } else if let Some((test, outcome)) = test_line(&line)
            && !outcome.starts_with("ignored")
            && !outcome.starts_with(SKIPPED)
        {
            names.insert(full_name(running.as_deref(), test));
        }
    }
    names
}

/// Path of a test for `cargo test -- --exact`, from its name in a report; `None` unless its program is under `tests/`.
pub(crate) fn path_of_integration_test(name: &str) -> Option<&str> {
    let (program, test) = name.split_once(") ")?;
    program.contains(" (tests/").then_some(test)
}

/// `Running tests/scripts.rs (target/…)` and `Doc-tests agentaflow_engine` announce a program.
fn started(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(library) = line.strip_prefix("Doc-tests ") {
        return Some(format!("doc-tests {library}"));
    }
    let (source, binary) = line.strip_prefix("Running ")?.split_once(" (")?;
    let source = source.trim_start_matches("unittests ");
    let file = binary.trim_end_matches(')').rsplit('/').next()?;
    // The binary is named after its crate or test and a hash: `scripts-0f3a…`.
    let name = file.rsplit_once('-').map_or(file, |(name, _hash)| name);
    Some(format!("{name} ({source})"))
}

/// `test result: … finished in 1.25s` gives 1.25 s.
fn duration(line: &str) -> Option<Duration> {
    let (_, seconds) = line.rsplit_once("finished in ")?;
    Duration::try_from_secs_f64(seconds.trim_end_matches('s').parse().ok()?).ok()
}

/// `test result: ok. 3 passed; 0 failed; …` gives 3.
fn passed(line: &str) -> Option<usize> {
    let counts = line.strip_prefix("test result: ")?;
    let (before, _) = counts.split_once(" passed")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// With one thread the harness prints the name of a test first and the outcome at its end. A skip in between follows on the
/// same line, and the outcome is a line of its own: `test a ... test b ... skipped, REASON` gives `a`.
fn interrupted_test(line: &str) -> Option<&str> {
    let (before, after) = line.strip_prefix("test ")?.split_once(" ... test ")?;
    after.contains(SKIP_MARK).then_some(before)
}

/// `test names_are_unique ... ok` gives the name and the outcome.
fn test_line(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("test ")?;
    if let Some((before, reason)) = line.split_once(SKIP_MARK) {
        let name = before.rsplit("test ").next()?;
        let start = line.len() - reason.len() - SKIPPED.len();
        return Some((name, &line[start..]));
    }
    line.rsplit_once(" ... ")
}

fn record(report: &mut Report, program: Option<&str>, test: &str, outcome: &str) {
    let name = full_name(program, test);
    if outcome == "FAILED" {
        report.fail(name, "see the output above");
    } else if let Some(reason) = outcome.strip_prefix(SKIPPED) {
        if !report.skipped.iter().any(|entry| entry.name == name) {
            report.skip(name, reason);
        }
    } else if let Some(reason) = outcome.strip_prefix("ignored") {
        let reason = reason.trim_start_matches(", ");
        report.skip(name, if reason.is_empty() { "ignored, no reason given" } else { reason });
    }
}

fn full_name(program: Option<&str>, test: &str) -> String {
    let test = test.trim_end_matches(" - should panic");
    program.map_or_else(|| test.to_owned(), |program| format!("{program} {test}"))
}

/// Removes `ESC [ … letter` sequences.
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            letters.by_ref().skip(1).find(char::is_ascii_alphabetic);
        } else {
            plain.push(letter);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_test_of_a_program_under_tests_has_a_path() {
        let path = path_of_integration_test;
        assert_eq!(path("kube (tests/kube/main.rs) kube_gangs::waits"), Some("kube_gangs::waits"));
        assert_eq!(path("agentaflow_engine (src/lib.rs) order::tests::holds"), None);
        assert_eq!(path("kube (tests/kube/main.rs)"), None);
        assert_eq!(path("tests"), None);
    }

    const MIXED: &str = "
   Compiling demo v0.1.0
    Finished `test` profile in 1.00s
\u{1b}[1m\u{1b}[32m     Running\u{1b}[0m unittests src/lib.rs (target/debug/deps/demo-0123456789abcdef)

running 3 tests
test a_gang_is_whole ... ok
test needs_a_gpu ... ignored, no GPU here
test quota_is_kept ... FAILED

failures:
    quota_is_kept

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests demo

running 2 tests
test src/lib.rs - run (line 3) - compile ... ok
test src/lib.rs - (line 9) ... ignored

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn totals_are_summed_and_failures_and_skips_are_named() {
        let report = read(MIXED, false);
        assert_eq!(report.passed, 2);
        let program = "doc-tests demo".to_owned();
        assert_eq!(report.durations[1], (program, Duration::from_millis(100)));
        let names = |entries: &[crate::report::Entry]| -> Vec<String> {
            let line = |e: &crate::report::Entry| format!("{}: {}", e.name, e.reason);
            entries.iter().map(line).collect()
        };
        assert_eq!(
            names(&report.failed),
            ["demo (src/lib.rs) quota_is_kept: see the output above"]
        );
        assert_eq!(
            names(&report.skipped),
            [
                "demo (src/lib.rs) needs_a_gpu: no GPU here",
                "doc-tests demo src/lib.rs - (line 9): ignored, no reason given",
            ]
        );
    }

    #[test]
    fn passed_and_failed_tests_are_named_and_ignored_ones_are_not() {
        let names = names_of_run(MIXED);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "demo (src/lib.rs) a_gang_is_whole",
                "demo (src/lib.rs) quota_is_kept",
                "doc-tests demo src/lib.rs - run (line 3) - compile",
            ]
        );
    }

    #[test]
    fn a_test_that_skips_itself_is_skipped_and_not_passed() {
        let output = "     Running tests/a.rs (target/debug/deps/a-01)\n\
                      running 3 tests\n\
                      test root::changes_users ... skipped, needs root\n\
                      test root::changes_users ... ok\n\
                      test chaos::campaign ... ok\n\
                      test chaos::clock ... skipped, needs `a ... b`\n\
                      test serial ... test serial ... skipped, needs one thread\n\
                      ok\n\
                      test result: ok. 3 passed; 0 failed; 0 ignored;\n\
                      \x20    Running tests/b.rs (target/debug/deps/b-02)\n\
                      test root::changes_users ... ok\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored;\n";
        let report = read(output, true);
        let skipped: Vec<String> =
            report.skipped.iter().map(|e| format!("{}: {}", e.name, e.reason)).collect();
        assert_eq!(
            skipped,
            [
                "a (tests/a.rs) root::changes_users: needs root",
                "a (tests/a.rs) chaos::clock: needs `a ... b`",
                "a (tests/a.rs) serial: needs one thread",
            ]
        );
        // A part of the campaign was skipped, not the campaign.
        assert_eq!(report.passed, 1 + 1);
        assert!(names_of_run(output).contains("a (tests/a.rs) serial"));
    }

    #[test]
    fn a_failure_after_a_skipped_part_is_named() {
        let output = "     Running tests/a.rs (target/debug/deps/a-01)\n\
                      test campaign ... test clock ... skipped, no library\n\
                      FAILED\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored;\n";
        let report = read(output, false);
        let failed: Vec<&str> = report.failed.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(failed, ["a (tests/a.rs) campaign"]);
        assert_eq!((report.passed, report.skipped.len()), (0, 1));
    }

    #[test]
    fn a_failed_build_is_one_failure() {
        let report = read("error[E0425]: cannot find value `x`\n", false);
        assert_eq!((report.passed, report.failed.len()), (0, 1));
        assert!(report.failed[0].reason.contains("do not build"));
    }

    #[test]
    fn a_test_program_without_a_result_line_is_a_failure_by_name() {
        let output = "     Running tests/a.rs (target/debug/deps/a-01)\n\
                      test one ... ok\n\
                      \x20    Running tests/b.rs (target/debug/deps/b-02)\n\
                      test result: ok. 4 passed; 0 failed; 0 ignored;\n";
        let report = read(output, false);
        assert_eq!(report.passed, 4);
        assert_eq!(report.failed.len(), 1);
        assert_eq!(report.failed[0].name, "a (tests/a.rs)");
    }
}

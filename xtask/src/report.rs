//! Results of the phases: passed, failed, skipped and flaky checks.

use std::fmt;
use std::time::Duration;

/// Result of one phase, or the sum of several.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<Entry>,
    pub(crate) skipped: Vec<Entry>,
    /// Failed once and passed on retry; also counted in `passed`.
    pub(crate) flaky: Vec<Entry>,
    /// Run time of each test program, as the test harness reports the time.
    pub(crate) durations: Vec<(String, Duration)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// Number of test programs in the list of the slowest.
const SLOWEST: usize = 8;

/// Test programs faster than this never appear in the list.
const FAST: Duration = Duration::from_secs(5);

impl Report {
    pub(crate) fn passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    pub(crate) fn failed(name: impl Into<String>, reason: impl Into<String>) -> Self {
        let mut report = Self::default();
        report.fail(name, reason);
        report
    }

    pub(crate) fn skipped(name: impl Into<String>, reason: impl Into<String>) -> Self {
        let mut report = Self::default();
        report.skip(name, reason);
        report
    }

    /// Report of a check that prints each problem and counts them.
    pub(crate) fn from_count(name: &str, problems: usize) -> Self {
        match problems {
            0 => Self::passed(),
            count => Self::failed(name, format!("{count} problems; see the output above")),
        }
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.failed.push(Entry::new(name, reason));
    }

    pub(crate) fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push(Entry::new(name, reason));
    }

    /// Moves failures that passed on retry to `flaky`.
    pub(crate) fn mark_flaky(&mut self, reason: &str, passed_on_retry: impl Fn(&str) -> bool) {
        let moved = self.failed.extract_if(.., |entry| passed_on_retry(&entry.name));
        let moved = moved.map(|entry| Entry::new(entry.name, reason));
        let before = self.flaky.len();
        self.flaky.extend(moved);
        self.passed += self.flaky.len() - before;
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.flaky.extend(other.flaky);
        self.durations.extend(other.durations);
    }

    pub(crate) fn is_failure(&self) -> bool {
        !self.failed.is_empty()
    }

    /// One word for the result of a phase.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.is_failure(), self.passed, self.skipped.is_empty()) {
            (true, _, _) => "FAILED",
            (false, 0, false) => "skipped",
            (false, 0, true) => "nothing to check",
            (false, _, _) if !self.flaky.is_empty() => "ok, with flaky tests,",
            (false, _, false) => "ok, with skipped tests,",
            (false, _, true) => "ok",
        }
    }

    /// The slowest test programs, slowest first.
    pub(crate) fn slowest(&self) -> Vec<&(String, Duration)> {
        let mut slow: Vec<_> = self.durations.iter().filter(|(_, time)| *time >= FAST).collect();
        slow.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        slow.truncate(SLOWEST);
        slow
    }
}

/// Least important first: skipped, flaky, failed, then the line of counts.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [("Skipped", &self.skipped), ("Flaky", &self.flaky), ("Failed", &self.failed)];
        for (title, entries) in lists {
            if !entries.is_empty() {
                writeln!(f, "{title}:")?;
            }
            for entry in entries {
                writeln!(f, "  {}: {}", entry.name, entry.reason)?;
            }
        }
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        write!(f, "{} passed, {failed} failed, {skipped} skipped", self.passed)?;
        match self.flaky.len() {
            0 => Ok(()),
            some => write!(f, ", {some} flaky"),
        }
    }
}

impl Entry {
    fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_and_the_lines_before_give_reasons() {
        let mut report = Report::passed();
        report.add(Report::passed());
        report.add(Report::skipped("advisories", "no network"));
        report.add(Report::failed("fmt", "3 files differ"));
        assert_eq!(
            report.to_string(),
            "Skipped:\n  advisories: no network\n\
             Failed:\n  fmt: 3 files differ\n\
             2 passed, 1 failed, 1 skipped"
        );
        assert!(report.is_failure());
    }

    #[test]
    fn a_test_that_passes_on_retry_is_flaky_and_counts_as_passed() {
        let mut report = Report::failed("kube a", "see above");
        report.fail("kube b", "see above");
        report.mark_flaky("failed once", |name| name == "kube a");
        assert!(report.is_failure());
        assert_eq!(
            report.to_string(),
            "Flaky:\n  kube a: failed once\nFailed:\n  kube b: see above\n\
             1 passed, 1 failed, 0 skipped, 1 flaky"
        );
        report.mark_flaky("failed once", |_| true);
        assert!(!report.is_failure());
        assert_eq!((report.passed, report.verdict()), (2, "ok, with flaky tests,"));
    }

    #[test]
    fn a_clean_report_is_a_single_line() {
        assert_eq!(Report::passed().to_string(), "1 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn the_slowest_programs_come_first_and_fast_ones_are_left_out() {
        let seconds = |name: &str, time| (name.to_owned(), Duration::from_secs(time));
        let durations = vec![seconds("a", 1), seconds("b", 7), seconds("c", 90)];
        let report = Report { durations, ..Report::default() };
        let names: Vec<&str> = report.slowest().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["c", "b"]);
    }
}

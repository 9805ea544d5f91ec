//! Counts what passed, failed and was skipped, and says so at the end.

use std::fmt;

/// The result of one phase, or of all of them added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<Entry>,
    pub(crate) skipped: Vec<Entry>,
}

/// One thing that did not pass, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) reason: String,
}

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

    pub(crate) fn fail(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.failed.push(Entry::new(name, reason));
    }

    pub(crate) fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push(Entry::new(name, reason));
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }

    pub(crate) fn is_failure(&self) -> bool {
        !self.failed.is_empty()
    }

    /// A word for the end of a phase.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.is_failure(), self.passed, self.skipped.is_empty()) {
            (true, _, _) => "FAILED",
            (false, 0, false) => "skipped",
            (false, 0, true) => "nothing to do",
            (false, _, false) => "ok, some skipped,",
            (false, _, true) => "ok",
        }
    }
}

/// Skips, then failures, then the counts: what matters most stands last.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, entries) in [("Skipped", &self.skipped), ("Failed", &self.failed)] {
            if !entries.is_empty() {
                writeln!(f, "{title}:")?;
            }
            for entry in entries {
                writeln!(f, "  {}: {}", entry.name, entry.reason)?;
            }
        }
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        )
    }
}

impl Entry {
    fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

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
    fn a_clean_report_is_a_single_line() {
        assert_eq!(Report::passed().to_string(), "1 passed, 0 failed, 0 skipped");
    }
}

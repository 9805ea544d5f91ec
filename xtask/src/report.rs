//! Counts what passed, failed and was skipped, and says so at the end.

use std::fmt;

/// The result of one phase, or of all of them added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<Entry>,
    pub(crate) skipped: Vec<Entry>,
    /// Passed, but only when it was tried again.
    pub(crate) unsteady: Vec<Entry>,
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

    /// What failed at first and passed when it was tried again counts as passed, and is named.
    pub(crate) fn forgive(&mut self, reason: &str, passed_now: impl Fn(&str) -> bool) {
        let forgiven = self.failed.extract_if(.., |entry| passed_now(&entry.name));
        let forgiven = forgiven.map(|entry| Entry::new(entry.name, reason));
        let before = self.unsteady.len();
        self.unsteady.extend(forgiven);
        self.passed += self.unsteady.len() - before;
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.unsteady.extend(other.unsteady);
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
            (false, _, _) if !self.unsteady.is_empty() => "ok, some only at the second try,",
            (false, _, false) => "ok, some skipped,",
            (false, _, true) => "ok",
        }
    }
}

/// Skips, then what is unsteady, then failures, then the counts: what matters most stands last.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists =
            [("Skipped", &self.skipped), ("Unsteady", &self.unsteady), ("Failed", &self.failed)];
        for (title, entries) in lists {
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
        )?;
        match self.unsteady.len() {
            0 => Ok(()),
            some => write!(f, ", {some} only at the second try"),
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
    fn what_passes_at_the_second_try_is_named_and_counted() {
        let mut report = Report::failed("kube a", "see above");
        report.fail("kube b", "see above");
        report.forgive("failed once", |name| name == "kube a");
        assert!(report.is_failure());
        assert_eq!(
            report.to_string(),
            "Unsteady:\n  kube a: failed once\nFailed:\n  kube b: see above\n\
             1 passed, 1 failed, 0 skipped, 1 only at the second try"
        );
        report.forgive("failed once", |_| true);
        assert!(!report.is_failure());
        assert_eq!((report.passed, report.verdict()), (2, "ok, some only at the second try,"));
    }

    #[test]
    fn a_clean_report_is_a_single_line() {
        assert_eq!(Report::passed().to_string(), "1 passed, 0 failed, 0 skipped");
    }
}

//! Unified diff of a file and its corrected text.

use similar::TextDiff;

/// Lines of context around each change.
const CONTEXT: usize = 3;

/// Unified diff, as `diff -u` prints it; empty if the texts are equal.
pub fn diff(name: &str, old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let diff = TextDiff::from_lines(old, new);
    diff.unified_diff().context_radius(CONTEXT).header(name, name).to_string()
}

#[cfg(test)]
mod tests {
    use super::diff;

    #[test]
    fn a_diff_has_the_format_of_diff_u() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm";
        let new = "a\nB\nc\nd\ne\nf\ng\nh\ni\nj\nk\nm\nn\n";
        let shown = "--- x\n+++ x\n@@ -1,5 +1,5 @@\n a\n-b\n+B\n c\n d\n e\n@@ -9,5 +9,5 @@\n i\n j\n k\n-l\n-m\n\\ No newline at end of file\n+m\n+n\n";
        assert_eq!(diff("x", old, new), shown);
        assert_eq!(diff("x", old, old), "");
        assert_eq!(diff("x", "", "a\n"), "--- x\n+++ x\n@@ -0,0 +1 @@\n+a\n");
    }

    #[test]
    fn a_diff_of_a_long_text_shows_only_the_changes() {
        let old: String = (0..6000).map(|line| line.to_string() + "\n").collect();
        let new = old.replace("5\n", "5\nmore\n").replace("1000\n", "");
        let shown = diff("x", &old, &new);
        let count = |sign| shown.lines().skip(2).filter(|line| line.starts_with(sign)).count();
        assert_eq!((count('+'), count('-')), (600, 1));
    }
}

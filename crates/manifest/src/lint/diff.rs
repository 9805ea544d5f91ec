//! The difference between two texts, as `diff -u` shows it.

use std::fmt::Write as _;

/// Lines around a change that are shown with it.
const CONTEXT: usize = 3;

/// The most comparisons that are worth a finer difference; beyond that what differs is shown as a whole.
const EFFORT: usize = 4_000_000;

/// How a line of the one text becomes one of the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line<'t> {
    Same(&'t str),
    Old(&'t str),
    New(&'t str),
}

/// The difference in the unified format; empty if there is none.
pub fn diff(name: &str, old: &str, new: &str) -> String {
    let lines = lines(&split(old), &split(new));
    if lines.iter().all(|line| matches!(line, Line::Same(_))) {
        return String::new();
    }
    let mut text = format!("--- {name}\n+++ {name}\n");
    let changed: Vec<_> =
        (0..lines.len()).filter(|index| !matches!(lines[*index], Line::Same(_))).collect();
    let mut begin = 0;
    while begin < changed.len() {
        let mut end = begin;
        while end + 1 < changed.len() && changed[end + 1] - changed[end] <= 2 * CONTEXT + 1 {
            end += 1;
        }
        let from = changed[begin].saturating_sub(CONTEXT);
        let to = (changed[end] + CONTEXT + 1).min(lines.len());
        hunk(&lines, from, to, &mut text);
        begin = end + 1;
    }
    text
}

fn hunk(lines: &[Line<'_>], from: usize, to: usize, text: &mut String) {
    let count = |lines: &[Line<'_>], old: bool| {
        let counts = |line: &&Line<'_>| match line {
            Line::Same(_) => true,
            Line::Old(_) => old,
            Line::New(_) => !old,
        };
        lines.iter().filter(counts).count()
    };
    let (before, here) = (&lines[..from], &lines[from..to]);
    let start = |old| count(before, old) + usize::from(count(here, old) > 0);
    let _ = writeln!(
        text,
        "@@ -{},{} +{},{} @@",
        start(true),
        count(here, true),
        start(false),
        count(here, false)
    );
    for line in here {
        let (sign, line) = match line {
            Line::Same(line) => (' ', line),
            Line::Old(line) => ('-', line),
            Line::New(line) => ('+', line),
        };
        let _ = write!(text, "{sign}{line}");
        if !line.ends_with('\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
}

fn split(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

fn lines<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<Line<'t>> {
    let head = old.iter().zip(new).take_while(|(one, other)| one == other).count();
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let pairs = old_rest.iter().rev().zip(new_rest.iter().rev());
    let tail = pairs.take_while(|(one, other)| one == other).count();
    let (old_middle, new_middle) =
        (&old_rest[..old_rest.len() - tail], &new_rest[..new_rest.len() - tail]);
    let mut all: Vec<_> = old[..head].iter().map(|line| Line::Same(line)).collect();
    all.extend(middle(old_middle, new_middle));
    all.extend(old_rest[old_rest.len() - tail..].iter().map(|line| Line::Same(line)));
    all
}

/// The longest common part of what is between the lines that begin and end both texts.
fn middle<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<Line<'t>> {
    if old.len().saturating_mul(new.len()) > EFFORT {
        let gone = old.iter().map(|line| Line::Old(line));
        return gone.chain(new.iter().map(|line| Line::New(line))).collect();
    }
    let width = new.len() + 1;
    let mut common = vec![0_u32; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = if old[i] == new[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut all) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            all.push(Line::Same(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len()
            || (i < old.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            all.push(Line::Old(old[i]));
            i += 1;
        } else {
            all.push(Line::New(new[j]));
            j += 1;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::diff;

    #[test]
    fn a_difference_is_what_diff_u_shows() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm";
        let new = "a\nB\nc\nd\ne\nf\ng\nh\ni\nj\nk\nm\nn\n";
        let shown = "--- x\n+++ x\n@@ -1,5 +1,5 @@\n a\n-b\n+B\n c\n d\n e\n@@ -9,5 +9,5 @@\n i\n j\n k\n-l\n-m\n\\ No newline at end of file\n+m\n+n\n";
        assert_eq!(diff("x", old, new), shown);
        assert_eq!(diff("x", old, old), "");
        assert_eq!(diff("x", "", "a\n"), "--- x\n+++ x\n@@ -0,0 +1,1 @@\n+a\n");
    }
}

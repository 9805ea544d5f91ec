//! The difference between two texts, as `diff -u` shows it.

use std::fmt::Write as _;

/// Lines around a change that are shown with it.
const CONTEXT: usize = 3;

/// The most comparisons that the shortest difference is worth; beyond that a good one is taken.
const EFFORT: usize = 4_000_000;

/// How far the next lines that both texts have are looked for in a long text.
const WINDOW: usize = 100;

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
        return greedy(old, new);
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

/// Goes through both texts at once, and at each difference to the nearest two lines that they have in common.
fn greedy<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<Line<'t>> {
    let (mut i, mut j, mut all) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        let (mut gone, mut come) = meeting(&old[i..], &new[j..]);
        if (gone, come) == (0, 0) {
            all.push(Line::Same(old[i]));
            (gone, come) = (1, 1);
        } else {
            all.extend(old[i..i + gone].iter().map(|line| Line::Old(line)));
            all.extend(new[j..j + come].iter().map(|line| Line::New(line)));
        }
        (i, j) = (i + gone, j + come);
    }
    all
}

/// How many lines of each text come before the nearest lines that both have.
fn meeting(old: &[&str], new: &[&str]) -> (usize, usize) {
    for distance in 0..2 * WINDOW {
        for gone in 0..=distance {
            let come = distance - gone;
            let (Some(one), Some(other)) = (old.get(gone), new.get(come)) else { continue };
            let sure = distance == 0 || old.get(gone + 1) == new.get(come + 1);
            if one == other && sure {
                return (gone, come);
            }
        }
    }
    (old.len().min(WINDOW), new.len().min(WINDOW))
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

    #[test]
    fn a_long_text_with_many_small_changes_is_not_shown_as_a_whole() {
        let old: String = (0..6000).map(|line| line.to_string() + "\n").collect();
        let new = old.replace("5\n", "5\nmore\n").replace("1000\n", "");
        let shown = diff("x", &old, &new);
        let count = |sign| shown.lines().skip(2).filter(|line| line.starts_with(sign)).count();
        assert_eq!((count('+'), count('-')), (600, 1));
        assert!(!diff("x", &old, &old.replace('\n', "x\n")).is_empty());
    }
}

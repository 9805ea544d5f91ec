//! Scans one text for evidence and its polarity.

mod finds;

use std::collections::HashMap;
use std::ops::Range;

use self::finds::Find;
use super::evidence::{EvidenceKind, EvidenceLocation};
use super::kind::Hint;
use super::negation::{self, Polarity};
use super::numbers;
use super::packages;
use super::sources::{Format, Passage};
use super::text::Text;
use super::words::STRONG;

/// Something found in a text.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    pub(super) kind: EvidenceKind,
    pub(super) word: String,
    pub(super) found: String,
    pub(super) location: EvidenceLocation,
    pub(super) weight: f64,
    pub(super) hint: Option<Hint>,
    pub(super) polarity: Polarity,
    /// Negating phrase.
    pub(super) denial: Option<String>,
    /// The negation concerns only a part of the work.
    pub(super) aside: bool,
    /// Occurrences in this polarity.
    pub(super) times: usize,
}

/// Evidence of one text.
#[derive(Clone, Debug, Default)]
pub(super) struct Scanned {
    pub(super) hits: Vec<Hit>,
    pub(super) cpu_only: Vec<CpuOnly>,
    pub(super) facts: numbers::Facts,
    pub(super) file: Option<String>,
    pub(super) size_words: SizeWords,
}

/// Statement that a CPU is sufficient.
#[derive(Clone, Debug)]
pub(super) struct CpuOnly {
    pub(super) words: String,
    pub(super) location: EvidenceLocation,
    /// Concerns only a part of the work.
    pub(super) aside: bool,
    /// Applies to all files, not only to its own.
    pub(super) whole: bool,
}

/// Most such statements kept per text.
const MOST_STATEMENTS: usize = 32;

/// Words that determine the size without numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SizeWords {
    pub(super) large: Option<&'static str>,
    pub(super) training: bool,
}

pub(super) fn scan(passage: &Passage<'_>) -> Scanned {
    let text = Text::new(&passage.content, passage.file, passage.cell);
    let mut finds = finds::base_keywords(&text);
    finds.extend(finds::phrases_and_models(&text));
    finds.extend(packages::find(&text, passage.format).into_iter().map(|package| Find {
        kind: EvidenceKind::Package,
        word: package.name.replace('-', " ").into(),
        bytes: package.bytes,
        weight: package.weight,
        hint: package.hint.map(|kind| Hint { kind, said: false }),
    }));
    let facts = numbers::read(&text);
    finds.extend(facts.parameters.iter().map(|parameters| Find {
        kind: EvidenceKind::Model,
        word: "parameters".into(),
        bytes: parameters.bytes.clone(),
        weight: STRONG,
        hint: None,
    }));
    let mut listed = vec![false; text.tokens.len()];
    for find in finds.iter().filter(|find| find.weight > 0.0) {
        for token in text.tokens_of(&find.bytes) {
            if let Some(listed) = listed.get_mut(token) {
                *listed = true;
            }
        }
    }
    let hits = hits(&text, finds, &listed);
    Scanned {
        hits,
        file: passage.file.map(str::to_owned),
        cpu_only: cpu_only(&text, passage.format),
        facts,
        size_words: size_words(&text.lower),
    }
}

/// Substrings that determine the base size; a part of a word counts.
fn size_words(lower: &str) -> SizeWords {
    let large = ["large model", "billion"].into_iter().find(|word| lower.contains(word));
    SizeWords { large, training: lower.contains("training") }
}

/// Evidence with its polarities. Equal evidence in the same polarity is kept once and counted.
fn hits(text: &Text<'_>, finds: Vec<Find>, listed: &[bool]) -> Vec<Hit> {
    let mut hits: Vec<Hit> = Vec::new();
    let mut known = HashMap::new();
    for find in finds {
        let tokens = text.tokens_of(&find.bytes);
        let (polarity, negation) = match find.kind {
            EvidenceKind::Package => (Polarity::Affirmed, None),
            _ => negation::polarity(text, &tokens, listed),
        };
        let aside = polarity == Polarity::Denied && negation::is_aside(text, &tokens);
        let key = (find.kind, find.word.clone(), polarity, aside);
        if let Some(hit) = known.get(&key).and_then(|index: &usize| hits.get_mut(*index)) {
            hit.times += 1;
            hit.weight = hit.weight.max(find.weight);
            continue;
        }
        known.insert(key, hits.len());
        hits.push(Hit {
            kind: find.kind,
            word: find.word.into_owned(),
            found: short(text.written(&find.bytes)),
            location: text.location(
                negation.map_or(find.bytes.start, |first| start(text, first).min(find.bytes.start)),
            ),
            weight: find.weight,
            hint: find.hint,
            polarity,
            denial: negation.map(|first| denial(text, first, &tokens)),
            aside,
            times: 1,
        });
    }
    hits
}

/// Negation with the rest of its sentence, so that "GPU is not needed" is quoted completely; a question with its
/// answer.
fn denial(text: &Text<'_>, first: usize, tokens: &Range<usize>) -> String {
    let near = tokens.end + 4;
    let question = (tokens.end..near).find(|at| text.asks(*at));
    let far = question.map_or(near, |mark| mark + 5);
    let stops = |at: &usize| text.ends(*at) || text.mark(*at) == Some(',');
    // The answer may stand on the next line.
    let last = (question.map_or(tokens.end, |mark| mark + 2)..far).find(stops);
    let last = last.unwrap_or(far).min(text.tokens.len()).max(tokens.end);
    let words = quote(text, first.min(tokens.start)..last);
    words.trim_end_matches(['"', '\'', '`']).to_owned()
}

fn cpu_only(text: &Text<'_>, format: Format) -> Vec<CpuOnly> {
    let said = negation::cpu_is_enough(text).map(|tokens| {
        let start = start(text, tokens.start);
        let aside = negation::is_aside(text, &tokens);
        CpuOnly { words: quote(text, tokens), location: text.location(start), aside, whole: false }
    });
    let whole = matches!(format, Format::Requirements | Format::Project | Format::Docker);
    let builds = packages::cpu_builds(text).into_iter().map(|bytes| CpuOnly {
        words: short(text.written(&bytes)),
        location: text.location(bytes.start),
        aside: false,
        whole,
    });
    said.take(MOST_STATEMENTS).chain(builds.take(MOST_STATEMENTS)).collect()
}

/// Original text between two tokens, on one line.
fn quote(text: &Text<'_>, tokens: Range<usize>) -> String {
    let start = text.tokens.get(tokens.start).map_or(0, |token| token.range.start);
    let last = tokens.end.checked_sub(1).and_then(|last| text.tokens.get(last));
    short(text.written(&(start..last.map_or(start, |token| token.range.end))))
}

fn start(text: &Text<'_>, token: usize) -> usize {
    text.tokens.get(token).map_or(0, |token| token.range.start)
}

fn short(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() <= 60 {
        line
    } else {
        line.chars().take(59).collect::<String>() + "…"
    }
}

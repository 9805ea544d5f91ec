//! Looks through one text for everything that points to ML work, and in which sense it was said.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::evidence::{EvidenceKind, Place};
use super::kind::{Hint, WorkloadType};
use super::negation::{self, Sense};
use super::packages;
use super::sources::{Format, Passage};
use super::text::Text;
use super::words::{self, BASE_KEYWORDS, Entry, STRONG, WEAK};
use super::{code, models, numbers};

/// Something found in a text.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    pub(super) kind: EvidenceKind,
    pub(super) word: String,
    pub(super) found: String,
    pub(super) place: Place,
    pub(super) weight: f64,
    pub(super) hint: Option<Hint>,
    pub(super) sense: Sense,
    /// The words of the negation, where there is one.
    pub(super) denial: Option<String>,
    /// What is denied is denied of a side of the work only.
    pub(super) aside: bool,
    /// How often it was found in this sense.
    pub(super) times: usize,
}

/// What one text says.
#[derive(Clone, Debug, Default)]
pub(super) struct Scanned {
    pub(super) hits: Vec<Hit>,
    pub(super) cpu_only: Vec<CpuOnly>,
    pub(super) facts: numbers::Facts,
    pub(super) file: Option<String>,
    /// Which of the words that decide the base size it has.
    pub(super) size_words: SizeWords,
}

/// A statement that a CPU is enough.
#[derive(Clone, Debug)]
pub(super) struct CpuOnly {
    pub(super) words: String,
    pub(super) place: Place,
    /// It is about a side of the work only.
    pub(super) aside: bool,
    /// It holds for all files, not only for the one that it stands in.
    pub(super) whole: bool,
}

/// How many such statements of one text are kept.
const MOST_STATEMENTS: usize = 32;

/// The words that decide the size where no numbers do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SizeWords {
    pub(super) large: Option<&'static str>,
    pub(super) training: bool,
}

/// A hit before its sense is known.
struct Find {
    kind: EvidenceKind,
    word: Cow<'static, str>,
    bytes: Range<usize>,
    weight: f64,
    hint: Option<Hint>,
}

/// Looks through a passage.
pub(super) fn scan(passage: &Passage<'_>) -> Scanned {
    let text = Text::new(&passage.content, passage.file, passage.cell);
    let mut finds = base_keywords(&text);
    finds.extend(phrases_and_models(&text));
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

/// The words that decide the base size, exactly as they are: a part of a word counts.
fn size_words(lower: &str) -> SizeWords {
    let large = ["large model", "billion"].into_iter().find(|word| lower.contains(word));
    SizeWords { large, training: lower.contains("training") }
}

/// The senses of what was found. The same word in the same sense is kept once, and counted.
fn hits(text: &Text<'_>, finds: Vec<Find>, listed: &[bool]) -> Vec<Hit> {
    let mut hits: Vec<Hit> = Vec::new();
    let mut known = HashMap::new();
    for find in finds {
        let tokens = text.tokens_of(&find.bytes);
        let (sense, negation) = match find.kind {
            EvidenceKind::Package => (Sense::Said, None),
            _ => negation::sense(text, &tokens, listed),
        };
        let aside = sense == Sense::Denied && negation::is_aside(text, &tokens);
        let key = (find.kind, find.word.clone(), sense, aside);
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
            place: text.place(
                negation.map_or(find.bytes.start, |first| start(text, first).min(find.bytes.start)),
            ),
            weight: find.weight,
            hint: find.hint,
            sense,
            denial: negation.map(|first| denial(text, first, &tokens)),
            aside,
            times: 1,
        });
    }
    hits
}

/// The words of a negation with what follows in its sentence, so that "GPU is not needed" is told whole.
fn denial(text: &Text<'_>, first: usize, tokens: &Range<usize>) -> String {
    let far = tokens.end + 4;
    let last = (tokens.end..far).find(|at| text.ends(*at) || text.mark(*at) == Some(','));
    let last = last.unwrap_or(far).min(text.tokens.len()).max(tokens.end);
    quote(text, first.min(tokens.start)..last)
}

fn cpu_only(text: &Text<'_>, format: Format) -> Vec<CpuOnly> {
    let said = negation::cpu_is_enough(text).map(|tokens| {
        let start = start(text, tokens.start);
        let aside = negation::is_aside(text, &tokens);
        CpuOnly { words: quote(text, tokens), place: text.place(start), aside, whole: false }
    });
    let whole = matches!(format, Format::Requirements | Format::Project | Format::Docker);
    let builds = packages::cpu_builds(text).into_iter().map(|bytes| CpuOnly {
        words: short(text.written(&bytes)),
        place: text.place(bytes.start),
        aside: false,
        whole,
    });
    said.take(MOST_STATEMENTS).chain(builds.take(MOST_STATEMENTS)).collect()
}

/// The words from one token to another as they were written, on one line.
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

fn base_keywords(text: &Text<'_>) -> Vec<Find> {
    let mut finds = Vec::new();
    for keyword in BASE_KEYWORDS {
        let whole = matches!(keyword, "cv" | "nlp");
        for (at, _) in text.lower.match_indices(keyword) {
            let bytes = at..at + keyword.len();
            if whole && !is_whole_word(&text.lower, &bytes) {
                continue;
            }
            let (mut weight, hint) = words::base(keyword);
            if is_doubtful(text, keyword, &bytes) {
                weight = 0.3;
            }
            let hint = hint.map(|kind| Hint { kind, said: true });
            finds.push(Find {
                kind: EvidenceKind::Keyword,
                word: keyword.into(),
                bytes,
                weight,
                hint,
            });
        }
    }
    finds
}

fn is_whole_word(text: &str, bytes: &Range<usize>) -> bool {
    let letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    !text[..bytes.start].chars().next_back().is_some_and(letter)
        && !text[bytes.end..].chars().next().is_some_and(letter)
}

/// Base keywords count whatever they mean, but a CV may be a résumé and inference may be statistics: less sure.
fn is_doubtful(text: &Text<'_>, keyword: &str, bytes: &Range<usize>) -> bool {
    let inside = text.lower[..bytes.start].chars().next_back().is_some_and(char::is_alphabetic);
    let token = text.token_at(bytes.start);
    let before = token.checked_sub(1).map_or("", |before| text.word(before));
    match keyword {
        "cuda" => inside,
        "inference" => matches!(
            before,
            "type"
                | "statistical"
                | "causal"
                | "bayesian"
                | "schema"
                | "grammatical"
                | "logical"
                | "rule"
        ),
        "cv" => {
            let near = token.saturating_sub(10)..token + 10;
            near.into_iter().any(|at| {
                let word = text.word(at);
                [
                    "resume",
                    "résumé",
                    "applica",
                    "career",
                    "personnel",
                    "recruit",
                    "candidate",
                    "letter",
                    "pdf",
                ]
                .iter()
                .any(|begin| word.starts_with(begin))
            })
        }
        _ => false,
    }
}

fn phrases_and_models(text: &Text<'_>) -> Vec<Find> {
    let mut finds = Vec::new();
    let mut index = 0;
    while index < text.tokens.len() {
        let word = text.word(index);
        if word.is_empty() {
            index += 1;
            continue;
        }
        let phrase = words::beginning_with(word)
            .iter()
            .find_map(|entry| Some((*entry, phrase(text, index, entry)?)));
        let phrase = phrase.or_else(|| words::with_beginning(word).map(|entry| (entry, 1)));
        let model = models::named(text, index);
        let taken = match (phrase, model) {
            (Some((entry, tokens)), model)
                if model.as_ref().is_none_or(|model| tokens >= model.tokens) =>
            {
                finds.extend(said(text, index, entry, tokens));
                tokens
            }
            (_, Some(model)) => {
                let hint = model.hint.map(|kind| Hint { kind, said: false });
                let bytes = bytes(text, index, model.tokens);
                let word = model.name.into();
                finds.push(Find {
                    kind: EvidenceKind::Model,
                    word,
                    bytes,
                    weight: model.weight,
                    hint,
                });
                model.tokens
            }
            _ => 1,
        };
        index += taken;
    }
    finds.extend(lora(text));
    finds.extend(train_a_model(text));
    finds.extend(code::calls(text).map(|call| Find {
        kind: EvidenceKind::Phrase,
        word: call.name.into(),
        bytes: bytes(text, call.first, call.tokens),
        weight: call.weight,
        hint: Some(Hint { kind: call.kind, said: true }),
    }));
    finds
}

/// The tokens that a phrase takes, if it stands here.
fn phrase(text: &Text<'_>, index: usize, entry: &Entry) -> Option<usize> {
    let mut last = index;
    for wanted in entry.phrase.split(' ').skip(1) {
        last = text.after(last)?;
        let word = text.word(last);
        let fits = match wanted.strip_suffix('*') {
            Some(begin) => word.starts_with(begin),
            None => word == wanted,
        };
        if !fits {
            return None;
        }
    }
    Some(last + 1 - index)
}

fn said(text: &Text<'_>, index: usize, entry: Entry, tokens: usize) -> Option<Find> {
    let next = text.after(index).map_or("", |next| text.word(next));
    let used = matches!(next, "model" | "models" | "network" | "weights" | "checkpoint");
    // A resource's name, which says nothing beyond the word GPU in it: "nvidia.com/gpu: 0".
    let resource = text.mark(index + 1) == Some('.') && text.word(index + 2) == "com";
    if entry.phrase == "trained" && used || entry.phrase == "nvidia" && resource {
        return None;
    }
    Some(Find {
        kind: EvidenceKind::Phrase,
        word: entry.name().into(),
        bytes: bytes(text, index, tokens),
        weight: entry.weight,
        hint: entry.hint.map(|kind| Hint { kind, said: true }),
    })
}

/// `LoRA` adapts models, and so does `lora` before a number of parameters; `LoRa` is a radio.
fn lora<'a>(text: &'a Text<'_>) -> impl Iterator<Item = Find> + 'a {
    (0..text.tokens.len()).filter(|index| text.word(*index) == "lora").filter_map(|index| {
        let range = text.tokens.get(index)?.range.clone();
        let mut near = (index + 1..index + 5).take_while(|at| !text.ends(*at));
        let adapts = match text.written(&range) {
            "LoRA" => true,
            "LoRa" => false,
            _ => near.any(|at| numbers::is_size(text, at)),
        };
        adapts.then(|| Find {
            kind: EvidenceKind::Phrase,
            word: "lora".into(),
            bytes: range,
            weight: 0.5,
            hint: Some(Hint { kind: WorkloadType::FineTuning, said: true }),
        })
    })
}

/// "train a model", with a few words between.
fn train_a_model<'a>(text: &'a Text<'_>) -> impl Iterator<Item = Find> + 'a {
    let learns = |word: &str| {
        matches!(word, "model" | "network" | "networks" | "classifier" | "detector" | "recommender")
    };
    let trains =
        |word: &str| matches!(word, "train" | "training" | "trains" | "retrain" | "retraining");
    (0..text.tokens.len()).filter(move |index| trains(text.word(*index))).filter_map(move |index| {
        let near = (index + 1..index + 5).take_while(|at| !text.word(*at).is_empty());
        let last = near.into_iter().find(|at| learns(text.word(*at)))?;
        let railway =
            matches!(text.word(last + 1), "railway" | "trains" | "railways" | "kit" | "agency");
        (!railway).then(|| Find {
            kind: EvidenceKind::Phrase,
            word: "train a model".into(),
            bytes: bytes(text, index, last + 1 - index),
            weight: 2.0 * WEAK,
            hint: Some(Hint { kind: WorkloadType::Training, said: true }),
        })
    })
}

fn bytes(text: &Text<'_>, first: usize, count: usize) -> Range<usize> {
    let start = text.tokens.get(first).map_or(0, |token| token.range.start);
    let end = text.tokens.get(first + count - 1).map_or(start, |token| token.range.end);
    start..end
}

//! Phrases of a text that indicate ML work, regardless of negations.

use std::borrow::Cow;
use std::ops::Range;

use crate::detect::evidence::EvidenceKind;
use crate::detect::kind::{Hint, WorkloadType};
use crate::detect::text::Text;
use crate::detect::words::{self, BASE_KEYWORDS, Entry, WEAK};
use crate::detect::{code, models, numbers};

/// A hit before its sense is known.
pub(super) struct Find {
    pub(super) kind: EvidenceKind,
    pub(super) word: Cow<'static, str>,
    pub(super) bytes: Range<usize>,
    pub(super) weight: f64,
    pub(super) hint: Option<Hint>,
}

/// Every place of a base keyword: these are never missed.
pub(super) fn base_keywords(text: &Text<'_>) -> Vec<Find> {
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

/// True for an ambiguous base keyword: CV can be a résumé, and inference can be statistics. It counts with less
/// confidence.
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

/// True for the name of a company or location: "Keras Bros.", "Yolo County".
fn is_proper_name(text: &Text<'_>, index: usize) -> bool {
    let named = matches!(
        text.word(index + 1),
        "bros"
            | "brothers"
            | "county"
            | "inc"
            | "llc"
            | "ltd"
            | "gmbh"
            | "street"
            | "avenue"
            | "road"
    );
    let capital = |word: &str| word.starts_with(char::is_uppercase);
    named && text.tokens.get(index).is_some_and(|token| capital(text.written(&token.range)))
}

/// Other phrases, names of models, and calls of code.
pub(super) fn phrases_and_models(text: &Text<'_>) -> Vec<Find> {
    let mut finds = Vec::new();
    let mut index = 0;
    while index < text.tokens.len() {
        let word = text.word(index);
        if word.is_empty() || is_proper_name(text, index) {
            index += 1;
            continue;
        }
        // `8xH100`
        let word =
            word.split_once('x').filter(|(count, _)| is_count(count)).map_or(word, |(_, gpu)| gpu);
        let phrase = words::beginning_with(word)
            .iter()
            .find_map(|entry| Some((*entry, phrase(text, index, entry)?)));
        let phrase = phrase.or_else(|| words::with_beginning(word).map(|entry| (entry, 1)));
        let model = models::named(text, index);
        let taken = match (phrase, model) {
            (Some((entry, tokens)), model)
                if model.as_ref().is_none_or(|model| tokens >= model.tokens) =>
            {
                finds.extend(phrase_find(text, index, entry, tokens));
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
    if only_serves(text) {
        let adapters = |find: &&mut Find| matches!(&*find.word, "lora" | "lora adapter");
        finds.iter_mut().filter(adapters).for_each(|find| find.hint = None);
    }
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

fn is_count(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|letter| letter.is_ascii_digit())
}

/// Number of tokens of a phrase at this token.
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

fn phrase_find(text: &Text<'_>, index: usize, entry: Entry, tokens: usize) -> Option<Find> {
    let next = text.after(index).map_or("", |next| text.word(next));
    let used = matches!(next, "model" | "models" | "network" | "weights" | "checkpoint");
    // A resource name adds nothing to the word GPU in it: "nvidia.com/gpu: 0".
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

/// True if a text is about serving, not training: its adapters exist already, as in `serve SDXL with two LoRA
/// adapters`.
fn only_serves(text: &Text<'_>) -> bool {
    let any = |is: fn(&str) -> bool| (0..text.tokens.len()).any(|index| is(text.word(index)));
    let trains = |word: &str| {
        ["train", "pretrain", "finetun", "tun", "qlora"].iter().any(|begin| word.starts_with(begin))
    };
    let serves = |word: &str| {
        matches!(
            word,
            "serve" | "serves" | "serving" | "served" | "inference" | "vllm" | "comfyui" | "comfy"
        )
    };
    any(serves) && !any(trains)
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

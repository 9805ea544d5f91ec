//! Named quantities: batch sizes, sequence lengths, and GPU counts of launchers.

use super::{Facts, split_number};
use crate::detect::text::Text;

/// Largest plausible batch.
const MOST_SAMPLES: f64 = 1e6;
/// Plausible sequence lengths.
const LENGTHS: std::ops::RangeInclusive<f64> = 16.0..=1.6e7;
/// Most tokens between an option's name and its default.
const DEFAULT_WITHIN: usize = 32;

/// Most tokens between tensor and pipeline parallelism.
const STAGES_WITHIN: usize = 60;

/// `batch size 32` and its like, lengths, and options of launchers.
pub(super) fn read(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let word = text.word(index);
    let next = text.after(index);
    let next_word = next.map_or("", |next| text.word(next));
    if word == "batch"
        && next_word == "size"
        && let Some(samples) = next.and_then(|next| value(text, next))
    {
        take_batch(text, index, samples, facts);
    }
    if facts.sequence.is_none() {
        read_length(text, index, next.unwrap_or(index), facts);
    }
    if facts.gpus.is_none()
        && let Some(count) = launcher_argument(text, index)
    {
        facts.take_gpus(count);
    }
}

/// `batch 32`, `batches of 32`, `bs=32`: used if no batch size is named explicitly.
pub(super) fn read_plain_batch(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let samples = match text.word(index) {
        "batch" | "microbatch" | "bs" => value(text, index),
        "batches" | "microbatches" if text.word(index + 1) == "of" => value(text, index),
        word => word.strip_prefix("bs").and_then(|rest| rest.parse::<u32>().ok()).map(f64::from),
    };
    let Some(samples) = samples else { return };
    // "a batch of 12 jobs" is no batch of samples.
    let jobs = |word: &str| {
        let singular = word.strip_suffix('s').unwrap_or(word);
        matches!(singular, "gpu" | "gb" | "gib" | "job" | "task" | "node" | "run" | "file" | "pod")
    };
    if !(index + 1..index + 4).take_while(|at| !text.ends(*at)).any(|at| jobs(text.word(at))) {
        take_batch(text, index, samples, facts);
    }
}

/// `16 concurrent users`, `16 users at once`, `concurrency of 16`, `max_concurrent_requests=16`: number of concurrent
/// requests.
pub(super) fn read_concurrent(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let concurrent = match text.word(index) {
        "concurrent" | "simultaneous" | "parallel" => {
            let near = (index + 1..index + 4).take_while(|at| !text.ends(*at));
            let asked = near.into_iter().find(|at| is_request(text.word(*at)));
            asked.and_then(|at| number_before(text, index).or_else(|| value(text, at)))
        }
        "concurrency" => value(text, index),
        word if is_request(word) && is_together(text, index + 1) => number_before(text, index),
        _ => None,
    };
    let Some(requests) = concurrent else { return };
    if requests.fract() == 0.0 && (1.0..=MOST_SAMPLES).contains(&requests) {
        facts.concurrent = Some(facts.concurrent.map_or(requests, |known| known.max(requests)));
    } else {
        facts.ignore(format!(
            "{requests} requests at once are not believed: it is from 1 to 1,000,000"
        ));
    }
}

/// Words for requests to a model server.
fn is_request(word: &str) -> bool {
    let singular = word.strip_suffix('s').unwrap_or(word);
    matches!(
        singular,
        "user"
            | "request"
            | "session"
            | "stream"
            | "sequence"
            | "caller"
            | "call"
            | "client"
            | "chat"
            | "conversation"
            | "prompt"
            | "generation"
            | "query"
            | "querie"
            | "completion"
    )
}

/// `users at once`, `requests at the same time`, `streams in parallel`, `users concurrently`.
fn is_together(text: &Text<'_>, at: usize) -> bool {
    let words = [text.word(at), text.word(at + 1), text.word(at + 2), text.word(at + 3)];
    matches!(
        words,
        ["concurrently" | "simultaneously", ..]
            | ["at", "once", ..]
            | ["at", "a", "time", _]
            | ["at", "the", "same", "time"]
            | ["in", "parallel", ..]
    )
}

/// Number before a word: `16`, `1,000`, `10k`, `up to 16`.
fn number_before(text: &Text<'_>, index: usize) -> Option<f64> {
    let before = index.checked_sub(1)?;
    let (number, unit) = split_number(text.word(before))?;
    match unit {
        "" => Some(number),
        "k" => Some(number * 1000.0),
        _ => None,
    }
}

/// Sets the batch size unless it is known; the size per GPU determines the memory and takes precedence over the
/// global size.
fn take_batch(text: &Text<'_>, index: usize, samples: f64, facts: &mut Facts) {
    let each = is_of_each_gpu(text, index);
    if facts.batch.is_some() && (facts.batch_per_gpu || !each) {
        return;
    }
    if samples.fract() != 0.0 || !(1.0..=MOST_SAMPLES).contains(&samples) {
        facts.ignore(format!("a batch of {samples} is not believed: it is from 1 to 1,000,000"));
        return;
    }
    facts.batch = Some(samples);
    facts.batch_per_gpu = each;
}

/// `micro-batch`, `per_device_train_batch_size`, `batch size 4 per GPU`.
fn is_of_each_gpu(text: &Text<'_>, index: usize) -> bool {
    let micro = text.word(index).starts_with("micro")
        || (1..=2).any(|back| index.checked_sub(back).is_some_and(|at| text.word(at) == "micro"));
    let each = |at: usize| {
        text.word(at) == "per"
            && matches!(text.after(at).map(|at| text.word(at)), Some("gpu" | "device"))
    };
    micro || (index.saturating_sub(6)..index + 9).any(each)
}

fn read_length(text: &Text<'_>, index: usize, next: usize, facts: &mut Facts) {
    let explicit = match (text.word(index), text.word(next)) {
        ("sequence" | "context" | "seq", "length" | "len" | "window") | ("model", "len") => {
            value(text, next)
        }
        _ => None,
    };
    let plain = || {
        let context = text.word(index) == "context";
        context.then(|| value(text, index).or_else(|| thousands(text, index))).flatten()
    };
    match explicit.or_else(plain) {
        Some(length) if LENGTHS.contains(&length) => facts.sequence = Some(length),
        Some(length) if explicit.is_some() => facts.ignore(format!(
            "a sequence of {length} tokens is not believed: it is from 16 to 16,000,000"
        )),
        _ => {}
    }
}

/// `tensor_parallel_size=8`, `tensor parallel 8`, `8-way tensor parallelism`, `--tp 8`, `--nproc_per_node=8`, and
/// `devices=4` of a trainer. Multiplied by the pipeline stages, if given.
fn launcher_argument(text: &Text<'_>, index: usize) -> Option<f64> {
    let then = |at: Option<usize>| at.and_then(|at| text.after(at));
    let word = |at: Option<usize>| at.map_or("", |at| text.word(at));
    let (next, last) = (then(Some(index)), then(then(Some(index))));
    match (text.word(index), word(next), word(last)) {
        ("nproc", "per", "node") => value(text, last?),
        ("tensor", "parallel" | "parallelism", then) => {
            let sized = matches!(then, "size" | "degree");
            let told = value(text, if sized { last? } else { next? });
            let count = told.or_else(|| ways_before(text, index))?;
            Some(count * stages(text, index).unwrap_or(1.0))
        }
        ("tp", ..) if text.mark(index + 1) == Some('=') || is_option(text, index) => {
            value(text, index)
        }
        ("devices", ..) if matches!(text.mark(index + 1), Some('=' | ':')) => {
            let trains =
                |at: usize| matches!(text.word(at), "trainer" | "accelerator" | "lightning");
            (index.saturating_sub(30)..index + 30).any(trains).then(|| value(text, index))?
        }
        _ => None,
    }
}

/// `8-way tensor parallelism`, `8 way tensor parallel`.
fn ways_before(text: &Text<'_>, index: usize) -> Option<f64> {
    let way = index.checked_sub(1).filter(|way| text.word(*way) == "way")?;
    let joined = usize::from(way > 0 && text.mark(way - 1) == Some('-'));
    number_before(text, way - joined)
}

/// `pipeline_parallel_size=2`, `pipeline parallel 2`, near the other number.
fn stages(text: &Text<'_>, index: usize) -> Option<f64> {
    let near = index.saturating_sub(STAGES_WITHIN)..index + STAGES_WITHIN;
    let pipeline = near.into_iter().find_map(|at| {
        let parallel = text.after(at).filter(|_| text.word(at) == "pipeline")?;
        matches!(text.word(parallel), "parallel" | "parallelism").then_some(parallel)
    })?;
    let sized = text.after(pipeline).filter(|then| matches!(text.word(*then), "size" | "degree"));
    value(text, sized.unwrap_or(pipeline)).filter(|stages| *stages >= 1.0)
}

/// True for an option: `--tp`.
fn is_option(text: &Text<'_>, name: usize) -> bool {
    name.checked_sub(1).is_some_and(|before| text.mark(before) == Some('-'))
}

/// The number after a name: `batch size of 64`, `batch_size: int = 64`, `--batch-size=64`, `context 8k`.
fn value(text: &Text<'_>, name: usize) -> Option<f64> {
    let mut at = name + 1;
    let mut quoted = false;
    loop {
        at = match (text.mark(at), text.word(at)) {
            (Some(':' | '='), _) | (None, "of" | "is" | "to" | "int") => at + 1,
            (Some('"' | '`' | '\''), _) => {
                quoted = true;
                at + 1
            }
            (Some('_' | '-'), _) if text.word(at + 1) == "per" => at + 1,
            (None, "per") => text.after(at)? + 1,
            (Some(','), _) if quoted => return argument(text, at),
            // The next item of a list of arguments.
            (None, "") if text.mark(at + 1) == Some('-') && text.ends(at) => at + 2,
            _ => break,
        };
    }
    amount(text.word(at))
}

/// Value after a quoted name: `"--batch-size", "32"` or `"--batch-size", type=int, default=32`.
fn argument(text: &Text<'_>, comma: usize) -> Option<f64> {
    let quote = matches!(text.mark(comma + 1), Some('"' | '\''));
    let next = amount(text.word(comma + 1 + usize::from(quote)));
    let far = comma + DEFAULT_WITHIN;
    let end = (comma..far).find(|at| text.mark(*at) == Some(')')).unwrap_or(far);
    let named = |at: &usize| text.word(*at) == "default" && text.mark(at + 1) == Some('=');
    next.or_else(|| (comma..end).find(named).and_then(|at| amount(text.word(at + 2))))
}

/// `8k context`, `128k-token context`.
fn thousands(text: &Text<'_>, index: usize) -> Option<f64> {
    let mut at = index.checked_sub(1)?;
    while matches!(text.word(at), "token" | "tokens" | "of") || text.mark(at) == Some('-') {
        at = at.checked_sub(1)?;
    }
    let before = text.word(at);
    before.ends_with('k').then(|| amount(before)).flatten()
}

fn amount(word: &str) -> Option<f64> {
    let (number, unit) = split_number(word)?;
    match unit {
        "" => Some(number),
        "k" => Some(number * 1024.0),
        _ => None,
    }
}

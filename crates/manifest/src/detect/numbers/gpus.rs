//! GPUs named in a text: model, count and memory.

use super::{Facts, split_number};
use crate::detect::size::gpu::GpuType;
use crate::detect::text::Text;

/// Reads a word that names GPUs or their memory.
pub(super) fn read(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let word = text.word(index);
    let (counted, word) = match word.split_once('x') {
        Some((count, rest)) if !rest.is_empty() => (count.parse::<u32>().ok(), rest),
        _ => (None, word),
    };
    let singular = word.strip_suffix('s').filter(|_| word != "l40s").unwrap_or(word);
    let is_gpu = singular == "gpu";
    let model = GpuType::named(singular)
        .filter(|model| !model.is_short_name() || counted.is_some() || is_beside_gpu(text, index));
    if let (Some(model), None) = (model, facts.gpu) {
        let memory = memory_at(text, index + 1).or_else(|| memory_before(text, index));
        let exact = memory.and_then(|mib| model.with_memory(mib));
        facts.gpu = Some(exact.unwrap_or(model));
        facts.gpu_is_exact = exact.is_some();
    }
    if (is_gpu || model.is_some()) && facts.gpus.is_none() {
        let count = counted
            .or_else(|| count_before(text, index))
            .or_else(|| count_after(text, index, is_gpu));
        count.map(f64::from).into_iter().for_each(|count| facts.take_gpus(count));
    }
    if facts.gpu_memory_mib.is_none() && (is_gpu || singular == "vram" || word == "card") {
        facts.gpu_memory_mib = gpu_memory(text, index);
    }
}

/// `T4` and `L4` are ambiguous: they count beside a number, a vendor or the word GPU, and after "runs on".
fn is_beside_gpu(text: &Text<'_>, index: usize) -> bool {
    let before = index.checked_sub(1).map_or("", |before| text.word(before));
    let after = text.after(index).map_or("", |after| text.word(after));
    let article = matches!(before, "a" | "an" | "one" | "the");
    let place = if article { index.checked_sub(2) } else { index.checked_sub(1) };
    let on = place.is_some_and(|at| text.word(at) == "on");
    let times = before.strip_suffix('x').is_some_and(|count| count.parse::<u32>().is_ok());
    on || times || matches!(before, "nvidia" | "tesla" | "x") || matches!(after, "gpu" | "gpus")
}

/// `8 x H100`, `8x H100`, `two GPUs`, `4 NVIDIA A100`; not `at most 4 GPUs`.
fn count_before(text: &Text<'_>, index: usize) -> Option<u32> {
    let mut at = index.checked_sub(1)?;
    while matches!(text.word(at), "nvidia" | "tesla" | "x" | "a100" | "h100" | "v100" | "h200")
        || matches!(text.mark(at), Some('×'))
        || amount_of_memory(text.word(at)).is_some()
    {
        at = at.checked_sub(1)?;
    }
    let word = text.word(at);
    let times = word.split_once('x').and_then(|(count, each)| Some((number(count)?, each)));
    let count = match times {
        // `2x8 A100`: machines, and GPUs of each; `8x80GB A100`.
        Some((nodes, each)) if number(each).is_some() => nodes.checked_mul(number(each)?)?,
        Some((count, _)) => count.checked_mul(nodes_before(text, at))?,
        None => number(word)?.checked_mul(nodes_before(text, at))?,
    };
    let limit = at.checked_sub(1).map_or("", |before| text.word(before));
    let more = at.checked_sub(2).map_or("", |before| text.word(before));
    let bounded =
        matches!(limit, "most" | "to" | "maximum" | "max") || limit == "than" && more == "more";
    (!bounded).then_some(count)
}

fn number(word: &str) -> Option<u32> {
    let words = [
        "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
        "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
    ];
    let spoken = words.iter().position(|number| *number == word).map(|index| index as u32 + 1);
    word.parse().ok().or(spoken)
}

/// Machine count before a GPU count: 2 for the 8 of `2 nodes x 8 H100`, `2 × 8 H100` and `two machines with 8 GPUs
/// each`.
fn nodes_before(text: &Text<'_>, count: usize) -> u32 {
    let word = |back: usize| count.checked_sub(back).map_or("", |at| text.word(at));
    let mark = |back: usize| count.checked_sub(back).and_then(|at| text.mark(at));
    let times = word(1) == "x" || matches!(mark(1), Some('×' | '*'));
    let machines = matches!(word(2), "nodes" | "machines" | "servers");
    let nodes = if machines && (times || matches!(word(1), "with" | "of")) {
        number(word(3))
    } else {
        number(word(2)).filter(|_| times)
    };
    nodes.unwrap_or(1)
}

/// `gpus: 4`, `gpu_count=4`, `nvidia.com/gpu: 4`, `--gpus 4`.
fn count_after(text: &Text<'_>, index: usize, is_gpu: bool) -> Option<u32> {
    let mut at = index + 1;
    while text.word(at) == "count" || matches!(text.mark(at), Some('_' | '"')) {
        at += 1;
    }
    let option = text.word(index) == "gpus" && index >= 2 && text.mark(index - 1) == Some('-');
    if !is_gpu || !(option || matches!(text.mark(at), Some(':' | '='))) {
        return None;
    }
    let value = if option && text.mark(at).is_none() { at } else { at + 1 };
    let value = if matches!(text.mark(value), Some('"' | '\'')) { value + 1 } else { value };
    let unit = text.word(value + 1);
    let count = text.word(value).parse().ok()?;
    (!matches!(unit, "gb" | "gib" | "mb" | "mib")).then_some(count)
}

/// `24 GB VRAM`, `32 GB of GPU memory`, `one 24 GB card`, `GPU memory: 40 GiB`.
fn gpu_memory(text: &Text<'_>, index: usize) -> Option<u64> {
    let of_gpu = text.word(index) == "vram"
        || text.word(index + 1) == "memory"
        || text.word(index) == "card";
    let near = (index.saturating_sub(3)..index).rev().take_while(|at| !text.ends(*at));
    let before = near.filter(|at| {
        matches!(text.word(*at), "of" | "gb" | "gib" | "") || memory_at(text, *at).is_some()
    });
    let before = before.into_iter().find_map(|at| memory_at(text, at));
    let after = || {
        (index + 1..index + 5).take_while(|at| !text.ends(*at)).find_map(|at| memory_at(text, at))
    };
    if of_gpu { before.or_else(after) } else { before.or_else(|| memory_with(text, index)) }
}

/// `GPUs with 80 GB each`, `a GPU with 24 GB of memory`, `a GPU with 24 GB.`; not `a GPU with 64 GB RAM`, which can
/// be host memory.
fn memory_with(text: &Text<'_>, index: usize) -> Option<u64> {
    let mib = memory_at(text, index + 2).filter(|_| text.word(index + 1) == "with")?;
    let joined = split_number(text.word(index + 2)).is_some_and(|(_, unit)| !unit.is_empty());
    let after = index + if joined { 3 } else { 4 };
    let after = if text.word(after) == "of" { after + 1 } else { after };
    let alone = text.word(after).is_empty();
    (alone || matches!(text.word(after), "each" | "memory" | "vram")).then_some(mib)
}

/// `80GB A100`, `8x80GB A100`.
fn memory_before(text: &Text<'_>, index: usize) -> Option<u64> {
    let word = text.word(index.checked_sub(1)?);
    amount_of_memory(word.split_once('x').map_or(word, |(_, each)| each))
}

/// `80gb`, in MiB.
fn amount_of_memory(word: &str) -> Option<u64> {
    let (number, unit) = split_number(word)?;
    to_mib(number, unit)
}

/// Memory size that starts at a token, in MiB; GB are decimal, as in product names.
fn memory_at(text: &Text<'_>, index: usize) -> Option<u64> {
    let (number, unit) = split_number(text.word(index))?;
    let unit =
        if unit.is_empty() { text.after(index).map_or("", |after| text.word(after)) } else { unit };
    to_mib(number, unit)
}

fn to_mib(number: f64, unit: &str) -> Option<u64> {
    let bytes = match unit {
        "gb" | "g" => number * 1e9,
        "gib" | "gi" => number * f64::from(1 << 30),
        _ => return None,
    };
    (bytes <= 1e13).then_some((bytes / f64::from(1 << 20)) as u64).filter(|mib| *mib > 0)
}

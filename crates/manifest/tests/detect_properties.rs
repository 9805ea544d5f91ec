//! Properties of every text.

use agentaflow_manifest::detect::{BASE_KEYWORDS, Detection, File};
use proptest::prelude::*;

/// Phrases of the rules, so that arbitrary texts hit them.
const PIECES: &[&str] = &[
    "no",
    "not",
    "without",
    "a",
    "GPU",
    "gpus",
    "cuda:0",
    "cv",
    "csv",
    "nlp",
    "PyTorch",
    "training",
    "train",
    "a model",
    "billion",
    "7",
    "70B",
    "8x7B",
    "99999999999999b",
    "0b",
    "1e309b",
    "bf16",
    "4-bit",
    "adamw 8bit",
    "batch size",
    "batch_size=0",
    "999999999",
    "sequence length",
    "16k",
    "context",
    "llama",
    "Llama-3",
    "bert-base",
    "SAM",
    "yolov8m",
    "only",
    "CPU",
    "needed",
    ",",
    ".",
    ";",
    "\n",
    "-",
    "_",
    ":",
    "=",
    "0",
    "none",
    "import",
    "torch",
    "from",
    "==2.0",
    "İ",
    "ß",
    "K",
    "’",
    "\u{0}",
    "\u{feff}",
    "一",
    "e\u{301}",
    "x",
    "×",
    "A100",
    "80GB",
    "GB",
    "of",
    "VRAM",
    "\"",
    "'",
];

/// Sentences unrelated to ML work.
const NEUTRAL: &[&str] = &[
    "The office opens at nine.",
    "Invoices are sent by mail.",
    "Coffee is in the kitchen.",
    "Flask and Redis.",
];

fn texts() -> impl Strategy<Value = String> {
    let pieces = prop::collection::vec((prop::sample::select(PIECES), prop::bool::ANY), 0..40);
    let known = pieces.prop_map(|pieces| {
        pieces
            .into_iter()
            .map(|(piece, space)| if space { format!("{piece} ") } else { piece.to_owned() })
            .collect()
    });
    prop_oneof![3 => known, 1 => "\\PC{0,200}", 1 => any::<String>()]
}

fn sound(detection: &Detection) {
    assert!((0.0..=1.0).contains(&detection.confidence), "{detection:?}");
    assert!((0.0..=1.0).contains(&detection.score), "{detection:?}");
    assert_eq!(detection.is_ml_workload, detection.sizing.is_some());
    if let Some(sizing) = &detection.sizing {
        assert!((1..=1024).contains(&sizing.gpu_count), "{sizing:?}");
        assert!(sizing.memory_gib > 0 && sizing.cpu_millis > 0 && sizing.shm_gib > 0, "{sizing:?}");
        assert!(
            !sizing.fits || sizing.gpu_memory_mib <= sizing.gpu_type.memory_mib(),
            "{sizing:?}"
        );
    }
    serde_json::to_string(&detection.report()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_text_is_too_strange(text in texts()) {
        sound(&Detection::of_text(&text));
    }

    #[test]
    fn no_file_is_too_strange(text in texts(), name in prop::sample::select(&[
        "a.ipynb", "requirements.txt", "pyproject.toml", "Dockerfile", "x.py", "README.md", "",
    ][..])) {
        sound(&Detection::of_files(&[File::new(name, text)]));
    }

    #[test]
    fn unrelated_text_never_removes_evidence(text in texts(), neutral in prop::sample::select(NEUTRAL)) {
        let before = Detection::of_text(&text);
        let after = Detection::of_text(&format!("{text}\n\n{neutral}"));
        prop_assert!(after.score >= before.score, "{} < {}", after.score, before.score);
        prop_assert_eq!(after.is_ml_workload, before.is_ml_workload);
    }

    #[test]
    fn a_base_keyword_in_a_sentence_of_its_own_is_found_in_any_case(
        keyword in prop::sample::select(&BASE_KEYWORDS[..]),
        capitals in prop::collection::vec(prop::bool::ANY, 24),
        neutral in prop::sample::select(NEUTRAL),
    ) {
        let mixed: String = keyword.chars().zip(capitals)
            .map(|(letter, capital)| if capital { letter.to_ascii_uppercase() } else { letter }).collect();
        let text = format!("{neutral} {mixed}. {neutral}");
        let detection = Detection::of_text(&text);
        prop_assert!(detection.is_ml_workload, "{text}");
        prop_assert!(detection.detected_keywords.iter().any(|word| word == keyword));
    }
}

#[test]
fn a_text_of_nothing_but_keywords_is_looked_through_quickly() {
    let text = "no gpu, ".repeat(50_000);
    let before = on_cpu();
    let detection = Detection::of_text(&text);
    assert!(!detection.is_ml_workload);
    sound(&Detection::of_text(&"without a gpü gpu ".repeat(20_000)));
    for words in
        ["7b ", "serve LoRA adapters, ", "gpu? - ", "16 concurrent users ", "tensor parallel 0 "]
    {
        sound(&Detection::of_text(&words.repeat(50_000)));
    }
    let spent = before.zip(on_cpu()).map(|(before, after)| after - before);
    assert!(spent.is_none_or(|spent| spent < 30_000_000_000), "{spent:?} ns");
}

/// CPU time of this thread in nanoseconds, independent of the load; none if unavailable.
fn on_cpu() -> Option<u64> {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    spent.split(' ').next()?.parse().ok()
}

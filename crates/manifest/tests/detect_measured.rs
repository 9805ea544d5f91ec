//! Accuracy of detection on the texts in `data/detection`, which `docs/detection.md` must report.
//!
//! `UPDATE=1 cargo test -p agentaflow-manifest --test detect_measured` writes the numbers into the document. `TUNE=1`
//! also lists the wrong texts of the tuning part; texts of the held-out part are never listed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use agentaflow_manifest::detect::{BASE_KEYWORDS, Detection, WorkloadType};

const BEGIN: &str = "<!-- measured: written by a test, do not edit -->\n";
const END: &str = "<!-- end of what is measured -->\n";

/// Label of a text by a human.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Ml,
    /// Not ML work, but with a base keyword: the base rules count it as ML work.
    Base,
    Not,
}

struct Sample {
    label: Label,
    kind: String,
    text: String,
    found: Detection,
}

#[derive(Default)]
struct Counts {
    ml: usize,
    base: usize,
    not: usize,
    missed: usize,
    false_alarms: usize,
    right_kind: usize,
}

#[test]
fn the_documentation_has_the_measured_numbers() {
    let held_out = samples("held-out.txt");
    let tuning = samples("tuning.txt");
    let measured = section(&held_out, &tuning);
    let path = root().join("docs/detection.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) =
        document.split_once(BEGIN).expect("the document lacks the measured section");
    let (written, after) = rest.split_once(END).expect("the measured section does not end");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{measured}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        written, measured,
        "docs/detection.md differs from what is measured: UPDATE=1 writes it anew"
    );
}

#[test]
fn there_are_at_least_three_hundred_texts_and_no_two_are_the_same() {
    let mut texts: Vec<_> = all().into_iter().map(|sample| sample.text).collect();
    assert!(texts.len() >= 300, "{}", texts.len());
    texts.sort();
    let count = texts.len();
    texts.dedup();
    assert_eq!(texts.len(), count);
}

#[test]
fn a_text_with_a_base_keyword_is_never_missed() {
    for sample in all().iter().filter(|sample| sample.label != Label::Not) {
        let plain = BASE_KEYWORDS.iter().any(|keyword| has(&sample.text, keyword));
        assert!(
            sample.label != Label::Base || plain,
            "labelled `base` without a keyword: {}",
            sample.text
        );
        assert!(!plain || sample.found.is_ml_workload, "{}", sample.text);
    }
}

#[test]
fn false_alarms_stay_under_two_in_a_hundred() {
    for file in ["held-out.txt", "tuning.txt"] {
        let counts = counts(&samples(file));
        assert!(
            counts.false_alarms * 50 < counts.not,
            "{file}: {} of {}",
            counts.false_alarms,
            counts.not
        );
    }
}

#[test]
fn a_negation_is_reported_with_the_verdict() {
    let mut cleared = 0;
    for sample in all().iter().filter(|sample| sample.label == Label::Not) {
        let keyword = BASE_KEYWORDS.iter().any(|keyword| has(&sample.text, keyword));
        if keyword && !sample.found.is_ml_workload {
            cleared += 1;
            assert!(sample.found.cleared_by.is_some(), "{}", sample.text);
        }
    }
    assert!(cleared > 20, "only {cleared} texts deny that they need a GPU");
}

fn section(held_out: &[Sample], tuning: &[Sample]) -> String {
    let parts = [("held out", counts(held_out)), ("tuning", counts(tuning))];
    let mut text = String::from(
        "| part | texts | ML | not ML | found | missed | false alarms | precision | recall | false alarm rate | right kind |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for (name, counts) in &parts {
        let ml = counts.ml + counts.base;
        let found = ml - counts.missed;
        writeln!(
            text,
            "| {name} | {} | {ml} | {} | {found} | {} | {} | {} | {} | {} | {} |",
            ml + counts.not,
            counts.not,
            counts.missed,
            counts.false_alarms,
            percent(found, found + counts.false_alarms),
            percent(found, ml),
            percent(counts.false_alarms, counts.not),
            percent(counts.right_kind, counts.ml),
        )
        .unwrap();
    }
    let base: usize = parts.iter().map(|(_, counts)| counts.base).sum();
    let not: usize = parts.iter().map(|(_, counts)| counts.not).sum();
    let alarms: usize = parts.iter().map(|(_, counts)| counts.false_alarms).sum();
    let unsure = held_out.iter().chain(tuning).filter(|sample| sample.label == Label::Base);
    let unsure = unsure.filter(|sample| sample.found.confidence < 0.5).count();
    writeln!(
        text,
        "\n{base} of these texts are no ML work to a person, but name a base keyword, and the rule that those are \
         never missed counts them as ML work. Counted as false alarms, the rate over both parts would be {} instead \
         of {}. For {unsure} of the {base} the confidence is below 0.5.\n",
        percent(alarms + base, not + base),
        percent(alarms, not),
    )
    .unwrap();
    text.push_str("Kinds in both parts, without those texts: rows are what a person says, columns what was found.\n\n");
    text + &confusion(held_out.iter().chain(tuning)) + "\n"
}

fn confusion<'a>(samples: impl Iterator<Item = &'a Sample>) -> String {
    let mut table: BTreeMap<(String, WorkloadType), usize> = BTreeMap::new();
    for sample in samples.filter(|sample| sample.label != Label::Base) {
        *table.entry((sample.kind.clone(), sample.found.workload_type)).or_default() += 1;
    }
    let mut text = String::from("| |");
    for kind in WorkloadType::ALL {
        write!(text, " {kind} |").unwrap();
    }
    text.push_str("\n|---|");
    text.push_str(&"--:|".repeat(WorkloadType::ALL.len()));
    for row in WorkloadType::ALL {
        write!(text, "\n| {row} |").unwrap();
        for column in WorkloadType::ALL {
            match table.get(&(row.as_str().to_owned(), column)) {
                Some(count) => write!(text, " {count} |").unwrap(),
                None => text.push_str(" |"),
            }
        }
    }
    text + "\n"
}

fn counts(samples: &[Sample]) -> Counts {
    let mut counts = Counts::default();
    for sample in samples {
        let found = sample.found.is_ml_workload;
        match sample.label {
            Label::Ml => counts.ml += 1,
            Label::Base => counts.base += 1,
            Label::Not => counts.not += 1,
        }
        counts.missed += usize::from(sample.label != Label::Not && !found);
        counts.false_alarms += usize::from(sample.label == Label::Not && found);
        let kind = sample.found.workload_type.as_str() == sample.kind;
        counts.right_kind += usize::from(sample.label == Label::Ml && kind);
    }
    counts
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Base rule as documented, independent of the implementation.
fn has(text: &str, keyword: &str) -> bool {
    let text = text.to_lowercase();
    if !matches!(keyword, "cv" | "nlp") {
        return text.contains(keyword);
    }
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .any(|word| word == keyword)
}

fn all() -> Vec<Sample> {
    let mut all = samples("held-out.txt");
    all.extend(samples("tuning.txt"));
    all
}

fn samples(file: &str) -> Vec<Sample> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/detection").join(file);
    let data = std::fs::read_to_string(path).unwrap();
    let lines = data.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let samples: Vec<_> = lines.map(sample).collect();
    if file == "tuning.txt" && std::env::var_os("TUNE").is_some() {
        for sample in &samples {
            let wrong = (sample.label != Label::Not) != sample.found.is_ml_workload;
            let kind =
                sample.label == Label::Ml && sample.kind != sample.found.workload_type.as_str();
            if wrong || kind {
                let found = &sample.found;
                println!(
                    "{:?} {} → {} {:?} | {}",
                    sample.label,
                    sample.kind,
                    found.workload_type,
                    found.detected_keywords,
                    sample.text
                );
            }
        }
    }
    samples
}

fn sample(line: &str) -> Sample {
    let mut parts = line.splitn(3, " | ");
    let mut part = || parts.next().unwrap_or_else(|| panic!("three parts are needed: {line}"));
    let label = match part() {
        "ml" => Label::Ml,
        "base" => Label::Base,
        "not" => Label::Not,
        other => panic!("unknown label {other}"),
    };
    let kind = part().to_owned();
    assert!(WorkloadType::ALL.iter().any(|known| known.as_str() == kind), "unknown kind: {line}");
    let text = part().replace("\\n", "\n");
    let found = Detection::of_text(&text);
    Sample { label, kind, text, found }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

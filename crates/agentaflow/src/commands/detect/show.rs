//! A detection for people: the verdict, what it needs, why, and the arithmetic.

use std::collections::HashMap;

use agentaflow_console::format::{self, one_line};
use agentaflow_manifest::detect::{Detection, Evidence, EvidenceKind, Sizing, SizingRule};

use crate::output;

/// How many places are shown unless all are wanted.
const SHOWN: usize = 12;

/// The text for people.
pub(super) fn words(detection: &Detection, skipped: &[String], all: bool) -> String {
    let mut text = verdict(detection);
    if let Some(sizing) = &detection.sizing {
        text += &needs(sizing);
    }
    text += &why(&detection.evidence, all);
    if let Some(sizing) = &detection.sizing {
        text += &arithmetic(sizing);
    }
    if !skipped.is_empty() {
        text += &section("Not read", skipped.iter().map(|line| one_line(line)));
    }
    text
}

fn verdict(detection: &Detection) -> String {
    let sure = format!("{:.0} % sure", detection.confidence * 100.0);
    let head = if detection.is_ml_workload {
        format!("ML work ({}), {sure}", detection.workload_type)
    } else {
        format!("No ML work that needs a GPU, {sure}")
    };
    let mut text = output::bold(&head) + "\n";
    let why = usize::from(detection.confidence < 0.5 && detection.is_ml_workload) + 1;
    for line in detection.reasoning.iter().take(why) {
        text += &output::wrapped(&one_line(line), "  ", "    ");
    }
    text
}

fn needs(sizing: &Sizing) -> String {
    let mib = format::grouped(sizing.gpu_memory_mib);
    let mut lines = vec![
        format!("GPUs           {} × {}", sizing.gpu_count, sizing.gpu_type.name()),
        format!("GPU memory     {mib} MiB on each"),
        format!("memory         {}", sizing.memory()),
        format!("CPU            {}", sizing.cpu()),
        format!("shared memory  {}", sizing.shm()),
    ];
    if sizing.nodes() > 1 {
        lines.push(format!("machines       {}, the amounts above are for each", sizing.nodes()));
    }
    section("Needs", lines.into_iter())
}

fn why(evidence: &[Evidence], all: bool) -> String {
    if evidence.is_empty() {
        return String::new();
    }
    let shown = if all { evidence.len() } else { SHOWN };
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut best: Vec<_> = evidence
        .iter()
        .map(|found| {
            let times = seen.entry(found.word.as_str()).or_default();
            *times += 1;
            (*times, found)
        })
        .collect();
    // Every word once before any word twice.
    best.sort_by(|(one, first), (other, second)| {
        one.cmp(other).then(second.weight.total_cmp(&first.weight))
    });
    let mut lines: Vec<_> = best.iter().take(shown).map(|(_, found)| line(found)).collect();
    if evidence.len() > shown {
        lines.push(format!("{} more: --all shows them", evidence.len() - shown));
    }
    section("Found", lines.into_iter())
}

fn line(found: &Evidence) -> String {
    let times = if found.times > 1 { format!(", {} times", found.times) } else { String::new() };
    let sense = match (found.kind, found.negated) {
        (EvidenceKind::Negation, _) => " (no GPU needed)",
        (_, true) => " (denied)",
        (_, false) => "",
    };
    one_line(&format!("\"{}\"{sense} at {}{times}", found.found, found.location))
}

fn arithmetic(sizing: &Sizing) -> String {
    let terms = sizing
        .arithmetic
        .iter()
        .map(|term| format!("{}: {} = {} MiB", term.name, term.formula, format::grouped(term.mib)));
    let title = match sizing.rule {
        SizingRule::Computed => "Arithmetic",
        SizingRule::Base | SizingRule::Asked => "Size",
    };
    section(title, terms.chain(sizing.reasons.iter().cloned()))
}

fn section(title: &str, lines: impl Iterator<Item = String>) -> String {
    let mut text = format!("\n{}\n", output::bold(title));
    for line in lines {
        text += &output::wrapped(&line, "  ", "    ");
    }
    text
}

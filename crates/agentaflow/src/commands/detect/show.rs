//! Plain text of a detection: result, requirements, evidence and arithmetic.

use std::collections::HashMap;

use agentaflow_console::format::{self, one_line};
use agentaflow_manifest::detect::{Detection, Evidence, EvidenceKind, Sizing, SizingRule};

use crate::output;

/// Evidence shown without `--all`.
const SHOWN_EVIDENCE: usize = 12;

pub(super) fn text(detection: &Detection, skipped: &[String], all: bool) -> String {
    let mut text = summary(detection);
    if let Some(sizing) = &detection.sizing {
        text += &requirements(sizing);
    }
    text += &evidence_section(&detection.evidence, all);
    if let Some(sizing) = &detection.sizing {
        text += &arithmetic(sizing);
    }
    if !skipped.is_empty() {
        text += &section("Skipped", skipped.iter().map(|line| one_line(line)));
    }
    text
}

fn summary(detection: &Detection) -> String {
    let confidence = format!("{:.0} % confidence", detection.confidence * 100.0);
    let head = if detection.is_ml_workload {
        format!("ML workload ({}), {confidence}", detection.workload_type)
    } else {
        format!("No ML workload that needs a GPU, {confidence}")
    };
    let mut text = output::bold(&head) + "\n";
    let lines = usize::from(detection.confidence < 0.5 && detection.is_ml_workload) + 1;
    for line in detection.reasoning.iter().take(lines) {
        text += &output::wrapped(&one_line(line), "  ", "    ");
    }
    text
}

fn requirements(sizing: &Sizing) -> String {
    let mib = format::grouped(sizing.gpu_memory_mib);
    let mut lines = vec![
        format!("GPUs           {} × {}", sizing.gpu_count, sizing.gpu_type.name()),
        format!("GPU memory     {mib} MiB per GPU"),
        format!("memory         {}", sizing.memory()),
        format!("CPU            {}", sizing.cpu()),
        format!("shared memory  {}", sizing.shm()),
    ];
    if sizing.nodes() > 1 {
        lines.push(format!("nodes          {}; amounts are per node", sizing.nodes()));
    }
    section("Requirements", lines.into_iter())
}

fn evidence_section(evidence: &[Evidence], all: bool) -> String {
    if evidence.is_empty() {
        return String::new();
    }
    let shown = if all { evidence.len() } else { SHOWN_EVIDENCE };
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut best: Vec<_> = evidence
        .iter()
        .map(|found| {
            let times = seen.entry(found.word.as_str()).or_default();
            *times += 1;
            (*times, found)
        })
        .collect();
    // Different words come before repetitions.
    best.sort_by(|(one, first), (other, second)| {
        one.cmp(other).then(second.weight.total_cmp(&first.weight))
    });
    let mut lines: Vec<_> = best.iter().take(shown).map(|(_, found)| line(found)).collect();
    if evidence.len() > shown {
        lines.push(format!("{} more; use --all to show them", evidence.len() - shown));
    }
    section("Evidence", lines.into_iter())
}

fn line(found: &Evidence) -> String {
    let times = if found.times > 1 { format!(", {} times", found.times) } else { String::new() };
    let sense = match (found.kind, found.negated) {
        (EvidenceKind::Negation, _) => " (no GPU needed)",
        (_, true) => " (negated)",
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

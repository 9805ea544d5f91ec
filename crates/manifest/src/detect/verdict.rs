//! Combines the evidence: verdict, confidence and reasons.

use std::collections::BTreeMap;

use super::Detection;
use super::evidence::{Evidence, EvidenceKind, EvidenceLocation};
use super::kind::{self, WorkloadType};
use super::negation::Polarity;
use super::numbers::Facts;
use super::scan::{CpuOnly, Hit, Scanned, SizeWords};
use super::size::{self, Sizing, SizingRule};
use super::words::{BASE_KEYWORDS, names_gpu};

/// Required score without a base keyword.
const ENOUGH: f64 = 0.6;
/// Upper bound of the confidence.
const SUREST: f64 = 0.99;
/// Confidence for a text without any evidence.
const SURE_OF_NONE: f64 = 0.95;
/// Confidence for a text that clears the verdict itself.
const SURE_OF_CLEARED: f64 = 0.9;
/// Most evidence listed; the rest is only counted.
const MOST_EVIDENCE: usize = 200;

/// Evidence of all texts.
#[derive(Debug, Default)]
pub(super) struct Findings {
    hits: Vec<Hit>,
    cpu_only: Vec<CpuOnly>,
    /// Numbers by folder: numbers of one project belong together.
    facts: BTreeMap<Option<String>, Facts>,
    size_words: SizeWords,
    pub(super) notes: Vec<String>,
}

impl Findings {
    pub(super) fn add(&mut self, scanned: Scanned) {
        self.hits.extend(scanned.hits);
        self.cpu_only.extend(scanned.cpu_only);
        let folder = scanned
            .file
            .map(|file| file.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned());
        self.facts.entry(folder).or_default().merge(scanned.facts);
        self.size_words.large = self.size_words.large.or(scanned.size_words.large);
        self.size_words.training |= scanned.size_words.training;
    }

    /// Adds a file whose name is evidence.
    pub(super) fn add_file(&mut self, path: &str, ending: &str, weight: f64) {
        self.hits.push(Hit {
            kind: EvidenceKind::File,
            word: ending.to_owned(),
            found: path.rsplit('/').next().unwrap_or(path).to_owned(),
            location: EvidenceLocation {
                file: Some(path.to_owned()),
                ..EvidenceLocation::default()
            },
            weight,
            hint: None,
            polarity: Polarity::Affirmed,
            denial: None,
            aside: false,
            times: 1,
        });
    }

    pub(super) fn detection(self) -> Detection {
        let weights = self.weights();
        let score =
            (1.0 - weights.values().map(|weight| 1.0 - weight).product::<f64>()).min(SUREST);
        let has_base = self.affirmed().any(|hit| hit.kind == EvidenceKind::Keyword);
        let cleared_by = self.cleared_by();
        let is_ml_workload = cleared_by.is_none() && (has_base || score >= ENOUGH);
        let confidence = match (is_ml_workload, &cleared_by) {
            (true, _) => score,
            (false, Some(_)) => SURE_OF_CLEARED,
            (false, None) => SURE_OF_NONE * (1.0 - score),
        };
        let workload_type = if is_ml_workload { self.kind() } else { WorkloadType::None };
        let sizing = is_ml_workload.then(|| self.sizing(workload_type));
        let mut detection = Detection {
            is_ml_workload,
            confidence: rounded(confidence),
            score: rounded(score),
            workload_type,
            detected_keywords: keywords(&weights),
            cleared_by: cleared_by.map(|(words, location)| cited(&words, &location)),
            evidence: self.evidence(),
            sizing,
            reasoning: Vec::new(),
        };
        detection.reasoning = reasoning(&detection, &weights, self.notes);
        detection
    }

    /// Affirmed evidence.
    fn affirmed(&self) -> impl Iterator<Item = &Hit> {
        self.hits.iter().filter(|hit| hit.polarity == Polarity::Affirmed && hit.weight > 0.0)
    }

    /// Each phrase counts once, with its largest weight.
    fn weights(&self) -> BTreeMap<String, f64> {
        let mut weights = BTreeMap::new();
        for hit in self.affirmed() {
            let weight = weights.entry(hit.word.clone()).or_insert(hit.weight);
            *weight = hit.weight.max(*weight);
        }
        weights
    }

    /// Size from the numbers of the folder that has most of them.
    fn sizing(&self, kind: WorkloadType) -> Sizing {
        let none = Facts::default();
        let most = self.facts.values().map(Facts::known).max().unwrap_or(0);
        let fullest = self.facts.iter().find(|(_, facts)| facts.known() == most);
        let (folder, facts) =
            fullest.map_or((None, &none), |(folder, facts)| (folder.as_deref(), facts));
        let mut sizing = size::size(kind, facts, self.size_words);
        let others = self.facts.values().filter(|facts| facts.known() > 0).count() > 1;
        if let (Some(folder), true, true) = (folder, others, sizing.rule != SizingRule::Base) {
            let folder = if folder.is_empty() { "." } else { folder };
            sizing.reasons.push(format!(
                "numbers are those of the files in {folder}, which has most of them"
            ));
        }
        sizing
    }

    fn kind(&self) -> WorkloadType {
        let said = self.hits.iter().filter(|hit| hit.polarity == Polarity::Affirmed);
        kind::choose(&said.filter_map(|hit| Some((hit.hint?, hit.times))).collect::<Vec<_>>())
    }

    /// Statement that clears the verdict: no other evidence is left, or no GPU is needed and none is requested.
    fn cleared_by(&self) -> Option<(String, EvidenceLocation)> {
        let denial = |hit: &Hit| {
            (hit.denial.clone().unwrap_or_else(|| hit.found.clone()), hit.location.clone())
        };
        let statement = |cpu: &CpuOnly| (cpu.words.clone(), cpu.location.clone());
        if self.affirmed().next().is_none() {
            let denied =
                self.hits.iter().find(|hit| hit.polarity != Polarity::Affirmed && hit.weight > 0.0);
            return denied.map(denial).or_else(|| self.cpu_only.first().map(statement));
        }
        if self.affirmed().any(|hit| names_gpu(&hit.word)) {
            return None;
        }
        let denies =
            |hit: &&Hit| hit.polarity == Polarity::Denied && !hit.aside && names_gpu(&hit.word);
        // A README about machines without a GPU does not clear the code beside it.
        let clears = |cpu: &&CpuOnly| {
            !cpu.aside
                && (cpu.whole || self.affirmed().all(|hit| hit.location.file == cpu.location.file))
        };
        let gpu = self.hits.iter().find(denies).map(denial);
        gpu.or_else(|| self.cpu_only.iter().find(clears).map(statement))
    }

    fn evidence(&self) -> Vec<Evidence> {
        let mut kept: Vec<Evidence> = Vec::new();
        let mut index: BTreeMap<_, usize> = BTreeMap::new();
        for hit in self.hits.iter().filter(|hit| hit.weight > 0.0) {
            let negated = hit.polarity != Polarity::Affirmed;
            let key = (hit.word.as_str(), hit.kind, hit.location.file.as_deref(), negated);
            if let Some(at) = index.get(&key) {
                kept[*at].times += hit.times;
                kept[*at].weight = kept[*at].weight.max(hit.weight);
            } else if kept.len() < MOST_EVIDENCE {
                index.insert(key, kept.len());
                kept.push(Evidence {
                    kind: hit.kind,
                    word: hit.word.clone(),
                    found: hit.denial.clone().unwrap_or_else(|| hit.found.clone()),
                    location: hit.location.clone(),
                    times: hit.times,
                    negated,
                    weight: hit.weight,
                });
            }
        }
        for CpuOnly { words, location, .. } in self.cpu_only.iter().take(8) {
            kept.push(Evidence {
                kind: EvidenceKind::Negation,
                word: words.to_lowercase(),
                found: words.clone(),
                location: location.clone(),
                times: 1,
                negated: false,
                weight: 0.0,
            });
        }
        kept.sort_by(|one, other| one.location.cmp(&other.location));
        kept
    }
}

/// Base keywords in their order, then other phrases.
fn keywords(weights: &BTreeMap<String, f64>) -> Vec<String> {
    let base = BASE_KEYWORDS.iter().filter(|keyword| weights.contains_key(**keyword));
    let other = weights.keys().filter(|word| !BASE_KEYWORDS.contains(&word.as_str()));
    base.map(|keyword| (*keyword).to_owned()).chain(other.cloned()).collect()
}

fn reasoning(
    detection: &Detection,
    weights: &BTreeMap<String, f64>,
    notes: Vec<String>,
) -> Vec<String> {
    let mut lines = vec![verdict(detection, weights)];
    if detection.is_ml_workload && detection.confidence < 0.5 {
        lines.push("the words may mean something else here: look at the places".to_owned());
    }
    if let Some(sizing) = &detection.sizing {
        lines.extend(sizing_lines(sizing));
    }
    lines.extend(notes);
    lines
}

fn verdict(detection: &Detection, weights: &BTreeMap<String, f64>) -> String {
    let words = quoted(&detection.detected_keywords);
    match (&detection.cleared_by, detection.is_ml_workload) {
        (Some(cleared), _) if weights.is_empty() => format!("it says {cleared}"),
        (Some(cleared), _) => {
            format!("it names {words}, but says {cleared}, which clears the verdict")
        }
        (None, true) => format!("it names {words}"),
        (None, false) if weights.is_empty() => "no word points to ML work".to_owned(),
        (None, false) => format!("it names {words}, which is too little"),
    }
}

fn sizing_lines(sizing: &Sizing) -> Vec<String> {
    let mut lines: Vec<_> = sizing
        .arithmetic
        .iter()
        .map(|term| format!("{}: {} = {} MiB", term.name, term.formula, term.mib))
        .collect();
    if sizing.rule == SizingRule::Computed && sizing.nodes() > 1 {
        lines.push(format!(
            "{} machines with 8 GPUs; memory, CPU and shm are for each of them",
            sizing.nodes()
        ));
    }
    lines.extend(sizing.reasons.iter().cloned());
    lines
}

fn quoted(words: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = words.iter().take(SHOWN).map(|word| format!("\"{word}\"")).collect();
    let more = words.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

fn cited(words: &str, location: &EvidenceLocation) -> String {
    format!("\"{words}\" ({location})")
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

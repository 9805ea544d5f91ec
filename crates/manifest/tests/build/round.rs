//! Generated objects have no findings unless the flags request the risk.

use agentaflow_manifest::build::yaml;
use agentaflow_manifest::lint::{Finding, Input, Options, Severity, check};
use agentaflow_manifest::yaml::{Limits, read_text};
use clap::Parser;
use proptest::prelude::*;
use serde_json::Value;

use crate::blocks::BLOCKS;
use crate::property::{CATALOGUE, line};
use crate::{Line, make};

/// The errors and warnings of objects, as they are read from their text.
fn found(objects: &[Value]) -> Vec<Finding> {
    let text = yaml(objects).unwrap();
    let documents = read_text(&text, &Limits::default()).unwrap();
    let mut all = check(&[Input::text("made.yaml", documents)], &Options::default());
    all.retain(|finding| finding.severity > Severity::Info);
    all
}

/// Rules that flags can break, and the beginnings of these flags. Any other finding is a bug of one side.
const ASKED: &[(&str, &[&str])] = &[
    // Slices that are also time-sliced.
    ("AF005", &["--mig="]),
    // Other GPUs than the pod's.
    ("AF007", &["--env=CUDA_VISIBLE_DEVICES="]),
    ("AF101", &["--taint=none"]),
    // The taint has one value.
    ("AF102", &["--taint="]),
    // Explicit labels.
    ("AF103", &["--selector="]),
    ("AF104", &["--selector="]),
    // An unknown machine.
    ("AF106", &["--instance-type=", "--selector="]),
    // The note recommends a claim.
    ("AF110", &["--spot"]),
    ("AF204", &["--timeout=none", "--bare"]),
    ("AF205", &["--ttl=none", "--bare"]),
    ("AF301", &["--image="]),
    ("AF401", &["--shm=none", "--bare"]),
    ("AF501", &["--load-time=", "--health=none"]),
    // Without a strategy, too.
    ("AF503", &["--access-mode=", "--bare"]),
];

fn is_asked_for(finding: &Finding, words: &[String]) -> bool {
    let flags = ASKED.iter().find(|(id, _)| *id == finding.rule.id).map_or(&[][..], |risk| risk.1);
    words.iter().any(|word| flags.iter().any(|flag| word.starts_with(flag)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generated_objects_have_only_findings_caused_by_flags(words in line()) {
        let Ok(Line { recipe }) = Line::try_parse_from(&words) else { return Ok(()) };
        let Ok(made) = recipe.make(&CATALOGUE) else { return Ok(()) };
        for finding in found(&made.objects) {
            let output = format!("{} {}: {}", finding.rule.id, finding.path, finding.message);
            prop_assert!(is_asked_for(&finding, &words), "{output}\n{words:?}");
        }
    }
}

/// Blocks of the guides with findings, because the command line follows the guide.
const UNCLEAN: &[(&str, &[&str])] = &[
    // The taint has one value; no deadline and no clean-up; `latest`.
    ("worker-job", &["AF102", "AF204", "AF205", "AF301"]),
    // Nodes without the taint, and no time to live.
    ("worker-spot", &["AF101", "AF110"]),
    ("worker-scaling-karpenter", &["AF301"]),
    ("worker-complete-job", &["AF102", "AF204", "AF301"]),
    // No toleration.
    ("pod", &["AF101"]),
    // No shared memory.
    ("four-gpus", &["AF401"]),
    ("training-job", &["AF205", "AF401"]),
    // No toleration, and two replicas on a claim of one node.
    ("model-server", &["AF101", "AF503"]),
    // `latest-gpu`.
    ("gpu-workload", &["AF301"]),
    // A custom label.
    ("printed/inference-deployment", &["AF103"]),
];

#[test]
fn generated_blocks_have_only_the_findings_of_the_guide() {
    let mut all = Vec::new();
    for block in &BLOCKS {
        let mut ids: Vec<_> =
            found(&make(block.line).objects).iter().map(|finding| finding.rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        if !ids.is_empty() {
            all.push((block.file, ids));
        }
    }
    let wanted: Vec<_> = UNCLEAN.iter().map(|(file, ids)| (*file, ids.to_vec())).collect();
    assert_eq!(all, wanted);
}

#[test]
fn default_recipes_have_no_findings() {
    for line in [
        "job --task-id ml_task_123 --image train:v1 --gpu a100 -- python train.py",
        "job --name train --image train:v1 --cloud eks --gpu a100 --gpus 8 --spot --workspace",
        "pod --name one --image train:v1 --cloud gke --gpu l4",
        "pod --name part --image train:v1 --gpu a100 --mig 1g.5gb",
        "pod --name part --image train:v1 --cloud gke --gpu a100 --mig 1g.5gb",
        "job --name parts --image train:v1 --cloud gke --instance-type a2-highgpu-1g --mig 1g.5gb --gpus 7",
        "deployment --name serve --image serve:v1 --gpu t4 --replicas 2 --service",
        "model-server --name llm --image vllm/vllm-openai:v0.11.0 --gpu l4",
        "model-server --name llm --image vllm/vllm-openai:v0.11.0 --gpu l4 --replicas 2",
        "scaler --cloud gke --cluster ml --location us-central1",
        "scaler --cloud eks --cluster ml --location us-east-1",
        "scaler --cloud aks --cluster ml --resource-group rg",
        "scaler --cloud karpenter",
        "workload --name train --image train:v1 --gpu a100 --gpus 2 --duration 4h",
        "nodepool --gpu a100",
        "mig-config --gpu h100 --slices 3g.40gb=2",
        "time-slicing --replicas 4",
        "hpa --target llm",
        "keda --target llm",
    ] {
        let text = yaml(&make(line).objects).unwrap();
        let documents = read_text(&text, &Limits::default()).unwrap();
        let found = check(&[Input::text("made.yaml", documents)], &Options::default());
        let output: Vec<_> =
            found.iter().map(|f| format!("{}: {}", f.rule.id, f.message)).collect();
        assert!(output.is_empty(), "{line}: {output:?}");
    }
}

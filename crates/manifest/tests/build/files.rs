//! Small YAML files instead of flags.

use agentaflow_manifest::build::Recipe;
use agentaflow_manifest::catalogue::Catalogue;
use serde_json::Value;

use crate::{make, recipe};

/// Objects of a file with flags.
fn made(line: &str, file: &str) -> Vec<Value> {
    let recipe = recipe(line).over(file).unwrap_or_else(|error| panic!("{error}"));
    recipe.make(&Catalogue::built_in().unwrap()).unwrap_or_else(|error| panic!("{error}")).objects
}

#[test]
fn a_file_says_the_same_as_flags() {
    let file = "
task-id: ml_task_123
image: train:v1
gpus: 2
gpu: a100
cpu: 8
memory: 32Gi
spot: true
env:
  EPOCHS: 10
  DEBUG: false
mount: [data=training-data:/data]
prefer: [a100=100]
command: [python, train.py]
";
    let flags = "job --task-id ml_task_123 --image train:v1 --gpus 2 --gpu a100 --cpu 8 --memory 32Gi --spot \
                 --env EPOCHS=10 --env DEBUG=false --mount data=training-data:/data --prefer a100=100 \
                 -- python train.py";
    assert_eq!(made("job", file), make(flags).objects);
}

#[test]
fn flags_go_before_a_file() {
    let file = "{name: a, image: i:1, gpus: 2, label: {app: x}}";
    let both = made("pod --name b --label app=y", file);
    assert_eq!(both, make("pod --name b --image i:1 --gpus 2 --label app=y").objects);
}

#[test]
fn every_kind_takes_a_file() {
    for (line, file) in [
        ("deployment", "{name: a, image: i:1, replicas: 2, load-time: 90}"),
        ("model-server", "{name: a, image: i:1, cache-size: 10Gi, access-mode: rwx}"),
        ("pvc", "{name: a, size: 10Gi}"),
        ("time-slicing", "{replicas: 2, mps: true}"),
        ("mig-config", "{gpu: a100, slices: {3g.20gb: 2}}"),
        ("scaler", "{cloud: karpenter, up: 0 8 * * *}"),
        ("hpa", "{target: a, value: 70}"),
        ("keda", "{target: a, query: up, min: 0}"),
        ("nodepool", "{gpu: h100, instance-type: [p5.48xlarge]}"),
        ("workload", "{name: a, image: i:1, strategy: best_fit, gang: 4}"),
        ("pod", "{name: a, image: i:1, taint: true, cloud: gke}"),
    ] {
        assert!(!made(line, file).is_empty());
    }
}

#[test]
fn a_file_that_is_no_recipe_says_why() {
    for (line, file, words) in [
        (
            "job",
            "name: a\nflavour: red",
            "line 2, column 1: flavour: unknown field `flavour`; fields are named like the flags",
        ),
        (
            "job",
            "name: a\nimagee: red",
            "line 2, column 1: imagee: unknown field `imagee` (did you mean `image`?)",
        ),
        (
            "pod",
            "gpus: eight",
            "line 1, column 1: gpus: invalid type: string \"eight\", expected a whole number such as 2",
        ),
        (
            "pod",
            "name: a\nspot: 7",
            "line 2, column 1: spot: invalid type: integer `7`, expected true or false",
        ),
        ("pvc", "{name: a, colour: red}", "line 1, column 11: colour: unknown field `colour`"),
        ("pvc", "[a]", "line 1, column 1: a recipe is a mapping"),
        ("pvc", "", "it is empty"),
        ("pvc", "name: a\n---\nname: b", "it contains 2 documents"),
        ("pvc", "{name: a\nsize", "line"),
        ("pod", "{env: [A]}", "KEY=VALUE"),
        ("pod", "{env: [{name: A, value: b}]}", "env: use KEY=VALUE"),
        (
            "pod",
            "{command: python train.py}",
            "command: invalid type: string \"python train.py\", expected a list such as [a, b]",
        ),
        ("pod", "{name: 7}", "name: invalid type: integer `7`, expected a text"),
        ("pod", "{mount: [A]}", "CLAIM:/path"),
        ("pod", "{cloud: moon}", "moon"),
    ] {
        let output = recipe(line).over(file).map(|_: Recipe| ()).unwrap_err().to_string();
        assert!(output.contains(words), "{file}: {output}");
    }
}

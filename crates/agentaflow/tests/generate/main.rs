//! `agentaflow generate` and `generate-template` with the real binary.

mod kinds_generate;
mod kube_generate;
#[path = "../../../kube-scheduler/tests/support/mod.rs"]
mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use agentaflow_kube_core::crd::GpuWorkload;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_agentaflow");

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn agentaflow(folder: &Path, line: &str) -> Output {
    Command::new(PROGRAM).args(line.split_whitespace()).current_dir(folder).output().unwrap()
}

/// Stdout of a successful command.
fn printed(folder: &Path, line: &str) -> String {
    let output = agentaflow(folder, line);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Exit code and stderr of a failing command.
fn failure(folder: &Path, line: &str) -> (i32, String) {
    let output = agentaflow(folder, line);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{line}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_manifest_goes_to_stdout_and_notes_go_to_stderr() {
    let folder = folder("generate-stdout");
    let line = "generate job --task-id ml_task_123 --image train:v1 --cloud eks --gpu a100 --gpus 8 -- python train.py";
    let output = agentaflow(&folder, line);
    let manifest: Value = serde_saphyr::from_str(str::from_utf8(&output.stdout).unwrap()).unwrap();
    assert_eq!(manifest["metadata"]["name"], "gpu-job-ml-task-123");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.starts_with("note: p4d.24xlarge: 8 × A100 40 GB"), "{notes}");
    assert_eq!(
        printed(&folder, &format!("generate -o name {}", &line[9..])),
        "job.batch/gpu-job-ml-task-123\n"
    );
    let json: Value =
        serde_json::from_str(&printed(&folder, "generate pvc --name c -o json")).unwrap();
    assert_eq!(json["kind"], "PersistentVolumeClaim");
}

#[test]
fn a_file_is_not_overwritten_by_accident() {
    let folder = folder("generate-file");
    let line = "generate pvc --name one --output-file claim.yaml";
    assert_eq!(printed(&folder, line), "");
    let (code, message) = failure(&folder, &line.replace("one", "two"));
    assert_eq!(code, 2);
    assert!(message.contains("`claim.yaml` exists; use --force to overwrite it"), "{message}");
    let text = || std::fs::read_to_string(folder.join("claim.yaml")).unwrap();
    assert!(text().contains("name: one"));
    printed(&folder, &line.replace("one", "two --force"));
    assert!(text().contains("name: two"));
}

#[test]
fn a_recipe_comes_from_a_file_or_from_stdin() {
    let folder = folder("generate-from");
    std::fs::write(folder.join("job.yaml"), "{name: train, image: train:v1, gpus: 2}").unwrap();
    let text = printed(&folder, "generate job --from job.yaml --gpu v100 -o name");
    assert_eq!(text, "job.batch/train\n");
    let mut command = Command::new(PROGRAM);
    command.args(["generate", "pod", "--from", "-", "-o", "name"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{name: piped, image: train:v1}").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"pod/piped\n");
}

#[test]
fn detected_requirements_are_applied_and_explained() {
    let folder = folder("generate-detect");
    let run = |line: &str, about: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("generate").args(line.split_whitespace()).args(about);
        let output = command.current_dir(&folder).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let line = "job --name serve --image serve:v1 --gpus 4";
    let (code, manifest, message) = run(line, &["--detect", "Serve Llama-3 70B in bf16"]);
    assert_eq!(code, 0, "{message}");
    assert!(manifest.contains("accelerator: nvidia-a100-80gb"), "{manifest}");
    assert!(manifest.contains("nvidia.com/gpu: \"4\""), "{manifest}");
    assert!(message.starts_with("note: ML workload (inference), "), "{message}");
    for part in ["2 × a100-80gb, ", "weights: 70B × 2 bytes", "note: --gpus 4 overrides 2"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    std::fs::write(folder.join("requirements.txt"), "torch\ntransformers\n").unwrap();
    let (code, manifest, message) =
        run("pod --name one --image one:v1", &["--detect", "requirements.txt"]);
    assert_eq!((code, manifest.contains("nvidia.com/gpu")), (0, true), "{message}");
    for (about, words) in [
        (
            ["--detect", "import a csv into the database"],
            "error: --detect: no ML workload that needs a GPU",
        ),
        (["--detect", "absent/requirements.txt"], "no such file or directory"),
        (["--detect", "Full fine-tuning of a 70B model in bf16"], "use `generate workload`"),
    ] {
        let (code, manifest, message) = run("job --name a --image a:v1", &about);
        assert_ne!(code, 0, "{message}");
        assert_eq!(manifest, "");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_detection_pipes_into_a_manifest() {
    let folder = folder("generate-pipe");
    let mut command = Command::new(PROGRAM);
    command.args(["detect", "model training with pytorch", "-o", "recipe"]);
    let recipe = command.output().unwrap().stdout;
    let mut command = Command::new(PROGRAM);
    command.args(["generate", "job", "--from", "-", "--name", "train", "--image", "train:v1"]);
    command.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&recipe).unwrap();
    let manifest = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(manifest.contains("accelerator: nvidia-tesla-a100"), "{manifest}");
    assert!(manifest.contains("memory: 32Gi"), "{manifest}");
}

#[test]
fn prices_of_ones_own_go_before_the_built_in_ones() {
    let folder = folder("generate-catalogue");
    let own = "as-of: 2026-01-31\ninstances:\n\
               - {cloud: eks, name: own.large, gpu: a100, gpus: 8, vcpus: 96, memory-gib: 1152, on-demand: 9}\n";
    std::fs::write(folder.join("own.yaml"), own).unwrap();
    let text = printed(
        &folder,
        "generate pod --name p --image i:1 --cloud eks --gpu a100 --gpus 8 --catalogue own.yaml",
    );
    assert!(text.contains("node.kubernetes.io/instance-type: own.large"), "{text}");
    printed(&folder, "generate catalogue --output-file built-in.yaml");
    printed(&folder, "generate pod --name p --image i:1 --catalogue built-in.yaml");
    let text = printed(&folder, "generate catalogue -o json");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["instances"][0]["cloud"], "eks", "{json}");
    std::fs::write(folder.join("built-in.json"), text).unwrap();
    printed(&folder, "generate pod --name p --image i:1 --catalogue built-in.json");
    let names = printed(&folder, "generate catalogue -o name");
    assert!(names.lines().any(|name| name == "p4d.24xlarge"), "{names}");
}

#[test]
fn invalid_options_are_reported_on_one_line() {
    let folder = folder("generate-refusals");
    std::fs::write(folder.join("wrong.yaml"), "{name: train, colour: red}").unwrap();
    std::fs::write(folder.join("prices.yaml"), "instances: 7").unwrap();
    let dead = "{apiVersion: v1, kind: Config, current-context: c, \
                clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}";
    std::fs::write(folder.join("dead.yaml"), dead).unwrap();
    for (line, code, words) in [
        ("generate job --name train", 2, "error: --image: an image is required"),
        (
            "generate pod --name p --image i:1 --gpus 0",
            2,
            "error: --gpus: 0 is not between 1 and 64",
        ),
        (
            "generate pvc --name c --size -5Gi",
            2,
            "error: --size: `-5Gi` is not an amount of memory",
        ),
        ("generate pod --name p --image i:1 --gpus -1", 2, "invalid value '-1' for '--gpus"),
        (
            "generate pod --name p --image i:1 --gpus 0.5",
            2,
            "for a part of a GPU use a MIG slice (--mig",
        ),
        (
            "generate pvc --name c --apply --kubeconfig dead.yaml",
            5,
            "error: cannot look up kind PersistentVolumeClaim of v1: the API server does not answer",
        ),
        ("generate pod --name p --image i:1 --dry-run", 2, "error: --dry-run requires --apply"),
        (
            "generate pod --name p --image i:1 --apply --output-file x",
            2,
            "error: --apply cannot be combined with --output-file",
        ),
        (
            "generate pod --from wrong.yaml",
            2,
            "error: `wrong.yaml`: line 1, column 15: colour: unknown field `colour`",
        ),
        (
            "generate pod --from absent.yaml",
            3,
            "error: cannot read `absent.yaml`: no such file or directory",
        ),
        ("generate pod --from .", 1, "error: cannot read `.`: "),
        (
            "generate pod --name p --image i:1 --catalogue prices.yaml",
            2,
            "error: `prices.yaml`: line 1, column 1: instances: invalid type: integer `7`",
        ),
        (
            "generate pod --name p --image i:1 --catalogue absent.yaml",
            3,
            "error: cannot read `absent.yaml`: no such file or directory",
        ),
        (
            "generate mig-config --gpu a100 --slices 3g.20gb=3",
            2,
            "the nearest possible layout is 2 × 3g.20gb",
        ),
        ("generate everything", 2, "unrecognized subcommand 'everything'"),
    ] {
        let (found, message) = failure(&folder, line);
        assert_eq!(found, code, "{line}: {message}");
        assert!(message.contains(words), "{line}: {message}");
    }
}

#[test]
fn an_error_on_stdin_has_its_line() {
    let mut command = Command::new(PROGRAM);
    command.args(["generate", "job", "--from", "-", "--name", "a", "--image", "b:1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"gpus: eight\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    let words = "error: stdin: line 1, column 1: gpus: invalid type: string \"eight\", expected a whole number";
    assert!(message.starts_with(words), "{message}");
}

#[test]
fn a_template_is_a_commented_workload_under_both_names_of_the_command() {
    let folder = folder("generate-template");
    assert_eq!(printed(&folder, "generate-template my-workload.yaml"), "");
    let text = std::fs::read_to_string(folder.join("my-workload.yaml")).unwrap();
    assert!(text.contains("# "), "{text}");
    let workload: GpuWorkload = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(workload.metadata.name.as_deref(), Some("my-training-job"));
    let (code, output) = failure(&folder, "generate-template my-workload.yaml");
    assert_eq!((code, output.contains("use --force to overwrite it")), (2, true), "{output}");
    assert_eq!(printed(&folder, "--mode=cli generate-template -"), text);
}

#[test]
fn the_scheduler_reads_a_generated_workload() {
    let folder = folder("generate-workload");
    let line = "generate workload --name train --image train:v1 --gpu a100 --gpus 2 --strategy best_fit --duration 90m \
                --gang 2 --retries 1 --queue research --priority 7";
    let workload: GpuWorkload = serde_saphyr::from_str(&printed(&folder, line)).unwrap();
    let spec = workload.spec;
    assert_eq!((spec.priority, spec.gang_size, spec.retries), (7, 2, 1));
    assert_eq!(spec.estimated_duration.as_deref(), Some("1h30m"));
    assert_eq!(spec.scheduling_strategy.as_deref(), Some("best_fit"));
    assert_eq!((spec.gpu_requirements.gpu_count, spec.gpu_memory_required), (2, 36_000));
    assert_eq!(spec.pod_template.value()["spec"]["restartPolicy"], "Never");
}

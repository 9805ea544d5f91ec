//! `agentaflow detect` on valid and invalid input.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn detect(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentaflow"));
    command.arg("detect").args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn json(arguments: &[&str], folder: &Path) -> Value {
    let output = detect(&[arguments, &["-o", "json"]].concat(), folder);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn skipped(answer: &Value) -> String {
    answer["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_text_gets_a_verdict_a_size_and_the_arithmetic() {
    let folder = tempfile::tempdir().unwrap();
    let output = detect(&["Serve Llama-3 70B in bf16"], folder.path());
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "ML workload (inference)",
        "GPUs           2 × a100-80gb",
        "\"Llama\" at line 1, column 7",
        "weights: 70B × 2 bytes (bf16) = 133,515 MiB",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn json_and_yaml_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let answer = json(&["model", "training"], folder.path());
    let fields = [
        ("is_ml_workload", "true"),
        ("workload_type", "\"training\""),
        ("gpu_count", "1"),
        ("gpu_type", "\"a100\""),
        ("gpu_memory_mib", "40960"),
        ("memory", "\"32Gi\""),
        ("cpu", "\"16000m\""),
        ("shm", "\"4Gi\""),
    ];
    for (field, value) in fields {
        assert_eq!(answer[field].to_string(), value, "{field}");
    }
    let yaml = detect(&["model training", "-o", "yaml"], folder.path()).stdout;
    let yaml: Value = serde_saphyr::from_str(&String::from_utf8(yaml).unwrap()).unwrap();
    assert_eq!(yaml, answer);
}

#[test]
fn standard_input_is_a_text() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_agentaflow"))
        .args(["detect", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a blog\nCPU only, no GPU needed\n").unwrap();
    let answer: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(answer["is_ml_workload"], false);
    assert!(answer["cleared_by"].as_str().unwrap().contains("no GPU needed"));
    assert_eq!((&answer["gpu_count"], &answer["gpu_type"]), (&0.into(), &Value::Null));
}

#[test]
fn a_missing_file_is_not_taken_for_text() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["requirements.txt", "./src", "/nowhere/at/all"] {
        let output = detect(&[name], folder.path());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("no such file or directory"), "{message}");
    }
    assert!(detect(&["cv/nlp"], folder.path()).status.success());
    symlink("nowhere", folder.path().join("link")).unwrap();
    let message = String::from_utf8(detect(&["link"], folder.path()).stderr).unwrap();
    assert!(message.starts_with("error: cannot read `link`: "), "{message}");
}

#[test]
fn texts_of_windows_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = "xformers==0.0.32\r\n";
    let units = |bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<_>>();
    for content in [
        [b"\xff\xfe", units(u16::to_le_bytes).as_slice()].concat(),
        [b"\xfe\xff", units(u16::to_be_bytes).as_slice()].concat(),
        [b"\xef\xbb\xbf", text.as_bytes()].concat(),
    ] {
        std::fs::write(folder.path().join("requirements.txt"), content).unwrap();
        for target in ["requirements.txt", "."] {
            let answer = json(&[target], folder.path());
            assert_eq!(answer["evidence"][0]["column"], 1, "{answer}");
            assert_eq!(answer["is_ml_workload"], true, "{answer}");
        }
    }
}

#[test]
fn a_directory_is_read_without_dependencies_and_links() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    for place in ["node_modules/x", ".git", ".cache", "venv/lib", "__pycache__"] {
        write(&format!("{place}/README.md"), "PyTorch on CUDA");
    }
    write("venv/pyvenv.cfg", "home = /usr/bin");
    write("notes.txt", "A shop.");
    assert_eq!(json(&["."], folder.path())["is_ml_workload"], false);
    write("src/train.py", "import os\nimport torch\n");
    let answer = json(&["."], folder.path());
    assert_eq!(answer["is_ml_workload"], true);
    assert_eq!(answer["evidence"][0]["file"], "./src/train.py");
    assert_eq!(
        (&answer["evidence"][0]["line"], &answer["evidence"][0]["column"]),
        (&2.into(), &8.into())
    );
}

#[test]
fn unkind_folders_are_read_as_far_as_they_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("binary.md"), b"gpu\0gpu").unwrap();
    std::fs::write(path("latin.txt"), b"caf\xe9 with a GPU").unwrap();
    std::fs::write(path("huge.txt"), "gpu and more\n".repeat(100_000)).unwrap();
    std::fs::write(path("broken.ipynb"), "{\"cells\": [").unwrap();
    symlink(folder.path(), path("loop")).unwrap();
    let deep = (0..40).fold(folder.path().to_owned(), |path, _| path.join("d"));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("README.md"), "PyTorch").unwrap();
    let answer = json(&["."], folder.path());
    assert_eq!(answer["detected_keywords"], serde_json::json!(["gpu"]));
    let skipped = skipped(&answer);
    for note in [
        "binary.md: not text",
        "latin.txt: replaced invalid UTF-8",
        "huge.txt: larger than 1 MiB",
        "1 symbolic links not followed",
        "more than 24 directories deep",
    ] {
        assert!(skipped.contains(note), "{note} is not in:\n{skipped}");
    }
    assert!(
        answer["reasoning"].as_str().unwrap().contains("broken.ipynb is not a notebook"),
        "{answer}"
    );
}

#[test]
fn a_file_that_is_named_is_read_in_part_rather_than_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("huge.txt"), "gpu and more\n".repeat(100_000)).unwrap();
    let answer = json(&["huge.txt"], folder.path());
    assert_eq!(answer["is_ml_workload"], true);
    assert!(skipped(&answer).contains("read only the first 1 MiB"));
    std::fs::write(path("binary"), b"\0\x01").unwrap();
    let output = detect(&["binary"], folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("is not text"));
    std::fs::write(path("model.safetensors"), b"\0\x01").unwrap();
    assert_eq!(json(&["model.safetensors"], folder.path())["is_ml_workload"], true);
}

#[test]
fn a_named_pipe_without_a_writer_does_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new("mkfifo").arg(folder.path().join("notes.md")).status().unwrap();
    assert!(made.success());
    let output = detect(&["notes.md"], folder.path());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("`notes.md` is neither a file nor a directory"), "{message}");
    let answer = json(&["."], folder.path());
    assert!(skipped(&answer).contains("notes.md: neither a file nor a directory"), "{answer}");
}

#[test]
fn process_substitution_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("exec {} detect -o json <(echo PyTorch)", env!("CARGO_BIN_EXE_agentaflow"));
    let output =
        Command::new("bash").args(["-c", &line]).current_dir(folder.path()).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["is_ml_workload"], true, "{answer}");
}

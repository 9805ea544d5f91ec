//! `agentaflow lint` with the real binary and small manifests.

mod kube_lint;
#[path = "../../../kube-scheduler/tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_agentaflow");

/// A Job without restartPolicy, which the API server rejects.
const REFUSED: &str = "\
apiVersion: batch/v1
kind: Job
metadata:
  name: train # every night
spec:
  backoffLimit: 1
  activeDeadlineSeconds: 3600
  ttlSecondsAfterFinished: 600
  template:
    spec:
      containers:
      - name: train
        image: train:1.0.0
";

const CLEAN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  b: c\n";

/// Creates an empty directory for the test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lint-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn lint(folder: &Path, line: &str, input: &str) -> Output {
    let mut child = Command::new(PROGRAM)
        .arg("lint")
        .args(line.split_whitespace())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may exit before it reads stdin.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Exit code, stdout and stderr.
fn check(folder: &Path, line: &str, input: &str) -> (i32, String, String) {
    let output = lint(folder, line, input);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_finding_is_a_line_with_its_place_and_the_command_fails() {
    let folder = folder("finding");
    fs::write(folder.join("job.yaml"), REFUSED).unwrap();
    let (code, out, _) = check(&folder, "job.yaml", "");
    assert_eq!(code, 1);
    assert!(out.starts_with("job.yaml:10:5: error AF201 restartPolicy is missing"), "{out}");
    assert!(out.ends_with("1 error in 1 object; 1 fixable with --fix\n"), "{out}");
}

#[test]
fn a_valid_manifest_has_no_findings() {
    let (code, out, errors) = check(&folder("right"), "-", CLEAN);
    assert_eq!((code, out.as_str(), errors.as_str()), (0, "no findings in 1 object\n", ""));
}

#[test]
fn fix_corrects_the_file_and_keeps_its_comments() {
    let folder = folder("fix");
    let file = folder.join("job.yaml");
    fs::write(&file, REFUSED).unwrap();
    let (code, out, _) = check(&folder, "--diff job.yaml", "");
    assert_eq!((code, fs::read_to_string(&file).unwrap().as_str()), (1, REFUSED));
    assert!(out.contains("+      restartPolicy: OnFailure\n"), "{out}");
    let (code, out, _) = check(&folder, "--fix .", "");
    assert_eq!((code, out.as_str()), (0, "1 fixed, no findings in 1 object\n"));
    let fixed = REFUSED.to_owned() + "      restartPolicy: OnFailure\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), fixed);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn unfixable_findings_are_not_offered_again() {
    let folder = folder("shared");
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  \
                - {name: a, image: a:1, resources: {requests: &one {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}}\n  \
                - {name: b, image: a:1, resources: {requests: *one, limits: {nvidia.com/gpu: 1}}}\n";
    fs::write(folder.join("pod.yaml"), text).unwrap();
    let (_, out, _) = check(&folder, "--rule AF001 pod.yaml", "");
    assert!(out.ends_with("1 error in 1 object; 1 fixable with --fix\n"), "{out}");
    let (_, out, _) = check(&folder, "--fix --rule AF001 pod.yaml", "");
    assert!(out.ends_with("1 error in 1 object; 1 not fixable in place\n"), "{out}");
    assert_eq!(fs::read_to_string(folder.join("pod.yaml")).unwrap(), text);
}

#[test]
fn stdin_is_fixed_to_stdout() {
    let (code, out, errors) = check(&folder("pipe"), "--fix -", REFUSED);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(out, REFUSED.to_owned() + "      restartPolicy: OnFailure\n");
    assert!(errors.starts_with("1 fixed"), "{errors}");
}

#[test]
fn a_directory_is_searched_for_manifests_only() {
    let folder = folder("folder");
    fs::create_dir_all(folder.join("chart/templates")).unwrap();
    fs::create_dir_all(folder.join(".git")).unwrap();
    fs::write(
        folder.join("chart/templates/job.yaml"),
        "kind: {{ .Values.kind }}\napiVersion: v1\n",
    )
    .unwrap();
    fs::write(folder.join("chart/values.yaml"), "image: x:latest\n").unwrap();
    fs::write(folder.join(".git/job.yaml"), REFUSED).unwrap();
    fs::write(folder.join("empty.yml"), "").unwrap();
    fs::write(folder.join("tsconfig.json"), "// a comment\n{}\n").unwrap();
    fs::write(folder.join("blob.json"), [0, 159, 146, 150]).unwrap();
    fs::write(folder.join("readme.md"), REFUSED).unwrap();
    let (code, out, errors) = check(&folder, "-v .", "");
    assert_eq!((code, out.as_str()), (0, "No Kubernetes object to check\n"), "{errors}");
    for file in ["blob.json", "chart/templates/job.yaml", "empty.yml", "tsconfig.json"] {
        assert!(errors.contains(file), "{errors}");
    }
    let (code, _, errors) = check(&folder, ".", "");
    let line = "note: not checked: blob.json, chart/templates/job.yaml, empty.yml and 2 more; use -v for the reasons\n";
    assert_eq!((code, errors.as_str()), (0, line));
    let (code, out, _) = check(&folder, "chart/templates/job.yaml", "");
    assert_eq!(code, 1);
    assert!(out.contains("job.yaml:1:8: error AF000"), "{out}");
}

#[test]
fn a_patch_of_kustomize_is_no_whole_object() {
    let folder = folder("kustomize");
    let patch =
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  replicas: 2\n";
    fs::create_dir_all(folder.join("overlay")).unwrap();
    fs::write(folder.join("more.yaml"), patch).unwrap();
    fs::write(folder.join("overlay/less.yaml"), patch).unwrap();
    fs::write(folder.join("good.yaml"), CLEAN).unwrap();
    let names = "patches:\n- path: ../more.yaml\npatchesStrategicMerge: [less.yaml]\n";
    fs::write(folder.join("overlay/kustomization.yaml"), names).unwrap();
    let (code, _, output) = check(&folder, "-v .", "");
    assert_eq!(code, 0, "{output}");
    for name in ["more.yaml", "overlay/less.yaml"] {
        assert!(output.contains(&format!("note: {name}: Kustomize patch")), "{output}");
    }
    // An operand must contain an object.
    let (code, found, _) = check(&folder, "more.yaml", "");
    assert_eq!(code, 1, "{found}");
}

#[test]
fn a_template_beside_a_good_manifest_is_named() {
    let folder = folder("beside");
    fs::write(folder.join("good.yaml"), CLEAN).unwrap();
    fs::write(folder.join("template.yaml"), "kind: {{ .Values.kind }}\napiVersion: v1\n").unwrap();
    for format in ["text", "json", "sarif"] {
        let (code, _, errors) = check(&folder, &format!("-o {format} ."), "");
        let line = "note: not checked: template.yaml; use -v for the reasons\n";
        assert_eq!((code, errors.as_str()), (0, line), "{format}");
    }
}

#[test]
fn an_operand_without_an_object_is_an_error() {
    let folder = folder("nothing");
    fs::write(folder.join("values.yaml"), "image: x:latest\n").unwrap();
    fs::write(folder.join("comments.yaml"), "# later\n").unwrap();
    fs::write(folder.join("good.yaml"), CLEAN).unwrap();
    let table = [
        ("-", "", "-: error AF000 stdin is empty"),
        ("-", "# later\n", "-: error AF000 it contains only comments"),
        ("-", "image: x:latest\n", "-: error AF000 no Kubernetes object"),
        ("values.yaml good.yaml", "", "values.yaml: error AF000 no Kubernetes object"),
        ("comments.yaml", "", "comments.yaml: error AF000 it contains only comments"),
    ];
    for (line, input, output) in table {
        let (code, out, errors) = check(&folder, line, input);
        assert!(code == 1 && out.starts_with(output), "{line}: {code} {out}{errors}");
    }
    // An empty list and an empty directory are valid.
    let empty = "apiVersion: v1\nkind: List\nitems: []\n";
    assert_eq!(check(&folder, "-", empty).0, 0);
    assert_eq!(check(&folder, ".", "").0, 0);
}

#[test]
fn a_named_pipe_without_a_writer_does_not_block() {
    let folder = folder("fifo");
    assert!(Command::new("mkfifo").arg(folder.join("job.yaml")).status().unwrap().success());
    let (code, _, errors) = check(&folder, "job.yaml", "");
    assert!(code == 1 && errors.contains("`job.yaml`"), "{code} {errors}");
    let (code, _, errors) = check(&folder, ".", "");
    assert_eq!(
        (code, errors.as_str()),
        (0, "note: not checked: job.yaml; use -v for the reasons\n")
    );
}

#[test]
fn unchecked_kinds_are_named() {
    let workflow = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata:\n  name: a\nspec:\n  podSpecPatch: '{}'\n  templates:\n  - container:\n      image: b:1\n      command: [c]\n";
    let (code, out, _) = check(&folder("kinds"), "-", workflow);
    let output =
        "not checked: pods of Workflow, which has no pod template\nno findings in 1 object\n";
    assert_eq!((code, out.as_str()), (0, output));
}

#[test]
fn rules_can_be_chosen_left_out_listed_and_explained() {
    let folder = folder("rules");
    let (code, _, _) = check(&folder, "--ignore AF201 -", REFUSED);
    assert_eq!(code, 0);
    let (code, _, _) = check(&folder, "--rule latest-tag -", REFUSED);
    assert_eq!(code, 0);
    let (code, out, _) = check(&folder, "--explain af201", "");
    assert!(code == 0 && out.starts_with("# AF201: "), "{out}");
    let (code, out, _) = check(&folder, "--list", "");
    assert!(code == 0 && out.contains("AF301  warning"), "{out}");
    let (code, _, errors) = check(&folder, "--rule AF999 -", "");
    assert!(code == 2 && errors.contains("AF999"), "{errors}");
}

#[test]
fn warnings_fail_only_where_that_is_asked_for() {
    let text = REFUSED
        .replace("train:1.0.0", "train:latest")
        .replace("    spec:\n", "    spec:\n      restartPolicy: Never\n");
    let folder = folder("strict");
    assert_eq!(check(&folder, "-", &text).0, 0);
    assert_eq!(check(&folder, "--strict -", &text).0, 1);
}

#[test]
fn programs_get_json_and_sarif() {
    let folder = folder("json");
    let (code, out, _) = check(&folder, "-o json -", REFUSED);
    let output: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &output["findings"][0]["rule"]), (1, &"AF201".into()));
    let (code, out, _) = check(&folder, "-o sarif -", REFUSED);
    let output: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &output["runs"][0]["results"][0]["ruleId"]), (1, &"AF201".into()));
}

#[test]
fn missing_input_and_missing_files_are_reported() {
    let folder = folder("usage");
    assert_eq!(check(&folder, "", "").0, 2);
    let (code, _, errors) = check(&folder, "nowhere.yaml", "");
    assert!(code == 3 && errors.contains("`nowhere.yaml`"), "{errors}");
    assert_eq!(check(&folder, "-n research job.yaml", "").0, 2);
    let (code, _, errors) = check(&folder, "--cluster --kubeconfig nowhere", "");
    assert!(code == 3 && errors.contains("`nowhere`"), "{code}: {errors}");
}

#[test]
fn a_cluster_that_does_not_answer_is_unreachable() {
    let folder = folder("cluster");
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a, cluster: {server: \"http://127.0.0.1:1\"}}]\nusers: [{name: a, user: {}}]\n";
    fs::write(folder.join("config"), config).unwrap();
    let (code, _, errors) = check(&folder, "--cluster --kubeconfig config", "");
    assert_eq!(code, 5, "{errors}");
    let mut program = Command::new(PROGRAM);
    program.args(["lint", "--cluster"]).env_clear().env("HOME", &folder).env("KUBECONFIG", "none");
    let output = program.current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    for flag in ["--fix", "--diff"] {
        let (code, _, errors) = check(&folder, &format!("--cluster {flag}"), "");
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(flag), "{errors}");
    }
}

#[test]
fn manifests_of_the_repository_have_no_errors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (code, out, errors) = check(&root, "deploy examples", "");
    assert_eq!(code, 0, "{out}{errors}");
}

#[test]
fn machines_of_ones_own_count_as_well() {
    let folder = folder("catalogue");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: big\nspec:\n  nodeSelector:\n    \
               node.kubernetes.io/instance-type: own-type\n  containers:\n  - name: big\n    image: big:1.0.0\n    \
               resources:\n      requests:\n        memory: 16Gi\n";
    fs::write(folder.join("pod.yaml"), pod).unwrap();
    let own =
        "instances:\n- {cloud: gke, name: own-type, gpu: t4, gpus: 1, vcpus: 4, memory-gib: 16}\n";
    fs::write(folder.join("own.yaml"), own).unwrap();
    let (code, output, _) = check(&folder, "pod.yaml", "");
    assert_eq!((code, output.contains("AF108")), (0, false), "{output}");
    let (code, output, _) = check(&folder, "pod.yaml --catalogue own.yaml", "");
    assert_eq!((code, output.contains("AF108")), (1, true), "{output}");
    let (code, _, output) = check(&folder, "pod.yaml --machine own-type", "");
    assert_eq!(code, 2, "{output}");
    assert!(output.contains("`own-type`"), "{output}");
}

//! The commands of the scheduler guide, verbatim, on a dedicated cluster.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::PROGRAM;
use crate::support::{Program, free_port, get, repository, wait_for};

/// Commands of the guide that cannot run here, with the reason.
const NOT_HERE: [(&str, &str); 5] = [
    (
        "docker build -f examples/k8s/Dockerfile -t agentaflow/k8s-gpu-scheduler:latest .",
        "it fetches images from registries",
    ),
    ("docker push agentaflow/k8s-gpu-scheduler:latest", "no access to the registry"),
    (
        "kubectl logs -f deployment/agentaflow-gpu-scheduler -n agentaflow",
        "KWOK plays the pods, which have no logs",
    ),
    (
        "kubectl logs -l app=agentaflow-gpu-monitor -n agentaflow",
        "KWOK plays the pods, which have no logs",
    ),
    ("kubectl exec -it <monitor-pod> -- nvidia-smi", "KWOK plays the pods, which run no programs"),
];

/// The workload of the guide, saved as `my-workload.yaml`.
const PRINTED: &str = include_str!("manifests/gpu-workload.yaml");

/// Minimal CRDs of the Prometheus operator.
const OPERATOR: &str = "
for kind in ServiceMonitor PodMonitor; do
plural=$(echo ${kind}s | tr A-Z a-z)
kubectl apply -f - <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $plural.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: $kind, plural: $plural}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
END
kubectl wait --for=condition=Established crd/$plural.monitoring.coreos.com --timeout=30s
done";

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn every_command_of_the_guide_works_verbatim() {
    for (line, why) in NOT_HERE {
        eprintln!("not typed: `{line}`: {why}");
    }
    let desk = Desk::new();
    installation(&desk).await;
    let _scheduler = start_scheduler(&desk).await;
    command_line(&desk).await;
    submission(&desk).await;
    watching(&desk);
    monitoring_stack(&desk);
}

/// The manual installation, then the quick one, which must change nothing.
async fn installation(desk: &Desk) {
    desk.types("kubectl create namespace agentaflow");
    desk.types("kubectl apply -f examples/k8s/rbac.yaml");
    desk.types("kubectl apply -f examples/k8s/scheduler.yaml");
    desk.types("kubectl apply -f examples/k8s/monitor-daemonset.yaml");
    let installed = desk.installed();
    for _ in 0..2 {
        desk.types("kubectl apply -f examples/k8s/scheduler-deployment.yaml");
        assert_eq!(desk.installed(), installed);
    }
    desk.types("kubectl get pods -n agentaflow");
    // Two replicas, and a monitor per node.
    wait_for("four pods run", async || {
        let line = "kubectl get pods -n agentaflow -o jsonpath='{.items[*].status.phase}'";
        let phases = desk.types(line);
        if phases == "Running Running Running Running" { Ok(()) } else { Err(phases) }
    })
    .await;
}

async fn command_line(desk: &Desk) {
    for command in ["status", "nodes", "workloads", "health"] {
        desk.types(&format!("./k8s-gpu-scheduler --mode=cli {command}"));
    }
    let line = "./k8s-gpu-scheduler --mode=cli submit examples/k8s/pytorch-training-workload.yaml";
    assert_eq!(desk.types(line).trim(), "pytorch-training");
    desk.phase("pytorch-training", "Running").await;
    for strategy in ["best_fit", "priority"] {
        desk.types(&format!("./k8s-gpu-scheduler --mode=cli strategy {strategy}"));
        assert_eq!(desk.types("./k8s-gpu-scheduler --mode=cli strategy").trim(), strategy);
    }
    desk.types("./k8s-gpu-scheduler --mode=cli generate-template my-workload.yaml");
    desk.types("kubectl apply --dry-run=server -f my-workload.yaml");
}

async fn submission(desk: &Desk) {
    std::fs::write(desk.folder.path().join("my-workload.yaml"), PRINTED).expect("a workload");
    let name = desk.types("./k8s-gpu-scheduler --mode=cli submit my-workload.yaml");
    assert_eq!(name.trim(), "my-training-job");
    desk.phase("my-training-job", "Running").await;
    // No monitor runs, so the test labels the node.
    desk.types("kubectl label node gpu-0 agentaflow.gpu/enabled=true");
    let nodes = desk.types("kubectl get nodes -l agentaflow.gpu/enabled=true");
    assert!(nodes.contains("gpu-0") && !nodes.contains("gpu-1"), "{nodes}");
    desk.types("kubectl describe node gpu-0");
    desk.types("kubectl describe daemonset agentaflow-gpu-monitor -n agentaflow");
    // KWOK pods have no logs, but the label of the guide selects them.
    let monitors = "kubectl get pods -l app=agentaflow-gpu-monitor -n agentaflow -o name";
    assert_eq!(desk.types(monitors).lines().count(), 2);
}

/// Runs until it is killed.
fn watching(desk: &Desk) {
    let line = desk.command("exec ./k8s-gpu-scheduler --mode=cli watch");
    let mut watch = Program::start(line, &desk.folder.path().join("watch.log"));
    let started = std::time::Instant::now();
    // The first column of a node row, printed at every refresh.
    while watch.log().lines().filter(|line| line.starts_with("gpu-0 ")).count() < 2 {
        assert!(watch.runs() && started.elapsed() < crate::support::SOON, "{}", watch.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn monitoring_stack(desk: &Desk) {
    let line = "kubectl apply -f examples/k8s/prometheus-servicemonitor.yaml";
    assert!(!desk.output(line).status.success(), "the operator is not installed yet");
    desk.types(OPERATOR);
    desk.types(line);
    desk.types("kubectl apply -f examples/k8s/grafana-dashboard.json");
    let version = "kubectl get configmap/agentaflow-grafana-dashboard -n agentaflow -o \
                   jsonpath='{.metadata.resourceVersion}'";
    let before = desk.types(version);
    desk.types("kubectl apply -f examples/k8s/grafana-dashboard.yaml");
    assert_eq!(desk.types(version), before, "both files hold the same object");
    let data = "kubectl get configmap/agentaflow-grafana-dashboard -n agentaflow -o \
                jsonpath='{.data.agentaflow-cluster\\.json}'";
    let dashboard: serde_json::Value = serde_json::from_str(&desk.types(data)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.iter().any(|panel| panel["targets"][0]["expr"].is_string()), "{dashboard}");
}

/// A directory with the program and the examples, and a dedicated cluster, since the guide
/// installs cluster-wide objects.
struct Desk {
    folder: TempDir,
    search_path: OsString,
}

impl Desk {
    fn new() -> Self {
        let programs = std::env::var_os("AGENTAFLOW_TEST_KUBE_BIN").map(PathBuf::from);
        let programs = programs.expect("AGENTAFLOW_TEST_KUBE_BIN names the folder of kubectl");
        let known = std::env::var_os("PATH").unwrap_or_default();
        let search_path =
            std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&known)));
        let folder = tempfile::tempdir().expect("a folder");
        symlink(PROGRAM, folder.path().join("k8s-gpu-scheduler")).expect("the program");
        symlink(repository().join("examples"), folder.path().join("examples")).expect("examples");
        let desk = Self { folder, search_path: search_path.expect("a PATH") };
        desk.plane(&["up", "--nodes", "2", "--gpus", "4"]);
        desk
    }

    /// `cargo xtask kube …` for the cluster of this test.
    fn plane(&self, words: &[&str]) {
        let mut command = Command::new("cargo");
        command
            .args(["xtask", "kube"])
            .args(words)
            .arg("--dir")
            .arg(self.folder.path().join("plane"));
        let output = command.current_dir(repository()).output().expect("cargo can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        // A second panic would hide the first.
        assert!(output.status.success() || std::thread::panicking(), "kube {words:?}: {stderr}");
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("PATH", &self.search_path).env("COLUMNS", "200");
        command.env("KUBECONFIG", self.folder.path().join("plane/admin.kubeconfig"));
        command.env("XDG_CONFIG_HOME", self.folder.path().join("home"));
        for name in ["AGENTAFLOW_SERVER", "AGENTAFLOW_TOKEN", "AGENTAFLOW_CONTEXT"] {
            command.env_remove(name);
        }
        command
    }

    fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("a shell")
    }

    /// Stdout of a successful command.
    #[track_caller]
    fn types(&self, line: &str) -> String {
        let output = self.output(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {stderr}\n{text}");
        text
    }

    /// Names of the installed objects.
    fn installed(&self) -> String {
        let kinds = "crd,clusterrole,clusterrolebinding,role,rolebinding,serviceaccount,service,\
                     deployment,daemonset,configmap,priorityclass,mutatingwebhookconfiguration,\
                     validatingwebhookconfiguration,validatingadmissionpolicy,\
                     validatingadmissionpolicybinding,poddisruptionbudget,networkpolicy";
        self.types(&format!("kubectl get {kinds} -A -o name | grep agentaflow | sort"))
    }

    async fn phase(&self, workload: &str, phase: &str) {
        let line = format!(
            "kubectl get gpuworkload {workload} -n agentaflow -o jsonpath='{{.status.phase}}'"
        );
        wait_for(&format!("{workload} {phase}"), async || {
            let found = self.types(&line);
            if found == phase { Ok(()) } else { Err(found) }
        })
        .await;
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.plane(&["down"]);
    }
}

/// The scheduler in debug mode. KWOK simulates the pods of its Deployment, so the scheduler runs outside of the cluster on
/// free ports, where the API server sends admission requests.
async fn start_scheduler(desk: &Desk) -> Program {
    desk.types(
        "kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration agentaflow",
    );
    let [http, metrics, webhook] = [free_port(), free_port(), free_port()];
    let line = desk.command(&format!(
        "exec ./k8s-gpu-scheduler --mode=scheduler --log-level=debug --http 127.0.0.1:{http} \
         --metrics 127.0.0.1:{metrics} --webhook 127.0.0.1:{webhook} --webhook-url https://127.0.0.1:{webhook}"
    ));
    let mut program = Program::start(line, &desk.folder.path().join("scheduler.log"));
    wait_for("the scheduler is ready", async || {
        assert!(program.runs(), "it ended:\n{}", program.log());
        let answer = get(http, "/readyz").ok_or("no answer".to_owned())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let health = get(http, "/healthz").expect("an answer");
    assert_eq!(health.status, 200, "{}", health.body);
    wait_for("all GPUs counted", async || {
        let text = get(metrics, "/metrics").ok_or("no answer".to_owned())?.body;
        let counted = text.lines().any(|line| line == "agentaflow_gpu_total 8");
        if counted { Ok(()) } else { Err(text) }
    })
    .await;
    // The API server needs a moment to switch the webhook.
    let line = "kubectl apply --dry-run=server -f examples/k8s/pytorch-training-workload.yaml";
    wait_for("admission", async || {
        let output = desk.output(line);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(stderr) }
    })
    .await;
    program
}

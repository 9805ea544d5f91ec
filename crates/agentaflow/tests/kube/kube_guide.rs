//! The commands of the scheduler guide, verbatim, on a dedicated cluster.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::PROGRAM;
use crate::support::{Program, free_port, get, repository, wait_for};

/// Commands of the guide that cannot run here, with the reason.
const NOT_HERE: [(&str, &str); 4] = [
    (
        "docker build -f examples/k8s/Dockerfile -t agentaflow/k8s-gpu-scheduler:latest .",
        "it fetches images from registries",
    ),
    ("docker push agentaflow/k8s-gpu-scheduler:latest", "no access to the registry"),
    (
        "kubectl logs -f deployment/agentaflow-gpu-scheduler -n agentaflow",
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
async fn every_line_of_the_guide_works_as_it_is_printed() {
    for (line, why) in NOT_HERE {
        eprintln!("not typed: `{line}`: {why}");
    }
    let desk = Desk::new();
    installation(&desk).await;
    let mut scheduler = Running::start(&desk).await;
    command_line(&desk, &mut scheduler).await;
    submission(&desk).await;
    watching(&desk);
    monitoring_stack(&desk);
}

/// The manual installation, then the quick one, which must change nothing.
async fn installation(desk: &Desk) {
    desk.types("kubectl create namespace agentaflow");
    let made = desk.types("kubectl apply -f examples/k8s/rbac.yaml");
    check(&made, &["gpuworkloads.agentaflow.io created", "clusterrole.rbac.authorization.k8s.io"]);
    let made = desk.types("kubectl apply -f examples/k8s/scheduler.yaml");
    check(&made, &["deployment.apps/agentaflow-gpu-scheduler created"]);
    let made = desk.types("kubectl apply -f examples/k8s/monitor-daemonset.yaml");
    check(&made, &["daemonset.apps/agentaflow-gpu-monitor created"]);
    for _ in 0..2 {
        let made = desk.types("kubectl apply -f examples/k8s/scheduler-deployment.yaml");
        assert!(!made.contains(" created"), "the steps are not the whole:\n{made}");
    }
    // Two replicas, and a monitor per node.
    wait_for("four pods run", async || {
        let pods = desk.types("kubectl get pods -n agentaflow");
        let running = pods.lines().filter(|line| line.contains("Running")).count();
        if running == 4 { Ok(()) } else { Err(pods) }
    })
    .await;
}

async fn command_line(desk: &Desk, scheduler: &mut Running) {
    let status = desk.types("./k8s-gpu-scheduler --mode=cli status");
    check(&status, &["2/2 active", "0 running, 0 pending"]);
    let nodes = desk.types("./k8s-gpu-scheduler --mode=cli nodes");
    check(&nodes, &["gpu-0", "gpu-1", "NVIDIA-A100"]);
    desk.types("./k8s-gpu-scheduler --mode=cli workloads");
    let line = "./k8s-gpu-scheduler --mode=cli submit examples/k8s/pytorch-training-workload.yaml";
    check(&desk.types(line), &["pytorch-training"]);
    desk.phase("pytorch-training", "Running").await;
    let work = desk.types("./k8s-gpu-scheduler --mode=cli workloads");
    check(&work, &["pytorch-training", "running"]);
    for strategy in ["best_fit", "priority"] {
        desk.types(&format!("./k8s-gpu-scheduler --mode=cli strategy {strategy}"));
        assert_eq!(desk.types("./k8s-gpu-scheduler --mode=cli strategy").trim(), strategy);
        scheduler.program.says(&format!("strategy={strategy}")).await;
    }
    check(&desk.types("./k8s-gpu-scheduler --mode=cli health"), &["8 GPUs on 2 nodes"]);
    desk.types("./k8s-gpu-scheduler --mode=cli generate-template my-workload.yaml");
    desk.types("kubectl apply --dry-run=server -f my-workload.yaml");
}

async fn submission(desk: &Desk) {
    std::fs::write(desk.folder.path().join("my-workload.yaml"), PRINTED).expect("a workload");
    let told = desk.types("./k8s-gpu-scheduler --mode=cli submit my-workload.yaml");
    check(&told, &["my-training-job"]);
    desk.phase("my-training-job", "Running").await;
    // No monitor runs, so the test labels the node.
    desk.types("kubectl label node gpu-0 agentaflow.gpu/enabled=true");
    let nodes = desk.types("kubectl get nodes -l agentaflow.gpu/enabled=true");
    assert!(nodes.contains("gpu-0") && !nodes.contains("gpu-1"), "{nodes}");
    check(&desk.types("kubectl describe node gpu-0"), &["nvidia.com/gpu"]);
    let told = desk.types("kubectl describe daemonset agentaflow-gpu-monitor -n agentaflow");
    check(&told, &["agentaflow/k8s-gpu-scheduler:latest", "agentaflow-monitor"]);
    // KWOK pods have no logs.
    let logs = desk.output("kubectl logs -l app=agentaflow-gpu-monitor -n agentaflow");
    let told = String::from_utf8_lossy(&logs.stderr);
    check(&told, &["containerLogs/agentaflow/agentaflow-gpu-monitor-"]);
}

/// Runs until it is killed.
fn watching(desk: &Desk) {
    let line = desk.command("exec ./k8s-gpu-scheduler --mode=cli watch");
    let mut watch = Program::start(line, &desk.folder.path().join("watch.log"));
    let asked = std::time::Instant::now();
    while watch.log().matches("2/2 active").count() < 2 {
        assert!(watch.runs() && asked.elapsed() < crate::support::SOON, "{}", watch.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn monitoring_stack(desk: &Desk) {
    let line = "kubectl apply -f examples/k8s/prometheus-servicemonitor.yaml";
    let refused = desk.output(line);
    assert!(!refused.status.success());
    let told = String::from_utf8_lossy(&refused.stderr);
    check(&told, &["no matches for kind \"ServiceMonitor\""]);
    desk.types(OPERATOR);
    check(
        &desk.types(line),
        &["agentaflow-gpu-scheduler created", "agentaflow-gpu-monitor created"],
    );
    let map = "configmap/agentaflow-grafana-dashboard";
    let made = desk.types("kubectl apply -f examples/k8s/grafana-dashboard.json");
    check(&made, &[&format!("{map} created")]);
    let made = desk.types("kubectl apply -f examples/k8s/grafana-dashboard.yaml");
    check(&made, &[&format!("{map} unchanged")]);
    let one = format!("kubectl get {map} -n agentaflow -o jsonpath='{{.data.agentaflow\\.json}}'");
    let dashboard: serde_json::Value = serde_json::from_str(&desk.types(&one)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.iter().any(|panel| panel["targets"][0]["expr"].is_string()), "{dashboard}");
}

#[track_caller]
fn check(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
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
        let told = String::from_utf8_lossy(&output.stderr);
        // A second panic would hide the first.
        assert!(output.status.success() || std::thread::panicking(), "kube {words:?}: {told}");
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
        let told = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {told}\n{text}");
        text
    }

    async fn phase(&self, workload: &str, phase: &str) {
        let line =
            format!("kubectl get gpuworkload {workload} -n agentaflow -o jsonpath='{{.status}}'");
        wait_for(&format!("{workload} {phase}"), async || {
            let status = self.types(&line);
            let is_so = status.contains(&format!("\"phase\":\"{phase}\""));
            if is_so { Ok(()) } else { Err(status) }
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
struct Running {
    program: Program,
}

impl Running {
    async fn start(desk: &Desk) -> Self {
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
            let told = get(metrics, "/metrics").ok_or("no answer".to_owned())?.body;
            if told.contains("agentaflow_gpu_total 8\n") { Ok(()) } else { Err(told) }
        })
        .await;
        // The API server needs a moment to switch the webhook.
        let line = "kubectl apply --dry-run=server -f examples/k8s/pytorch-training-workload.yaml";
        wait_for("admission", async || {
            let output = desk.output(line);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(told) }
        })
        .await;
        Self { program }
    }
}

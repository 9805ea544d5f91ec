//! Controllers of job kinds, each of its own release.

use std::path::Path;
use std::process::Command;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::support::{Program, Share, free_port, get, wait_for};

/// The `JobSet` controller with its defaulting webhook.
pub(crate) async fn job_set(share: &Share) -> Program {
    define(share, &["jobset.x-k8s.io_jobsets"]).await;
    let rule = Rule {
        path: "/mutate-jobset-x-k8s-io-v1alpha2-jobset",
        group: "jobset.x-k8s.io",
        version: "v1alpha2",
        resource: "jobsets",
        objects: json!({}),
    };
    with_webhook(share, "jobset", "config.jobset.x-k8s.io/v1alpha1", &[rule]).await
}

/// The `LeaderWorkerSet` controller with its defaulting webhooks.
pub(crate) async fn leader_worker_set(share: &Share) -> Program {
    let kinds = [
        "leaderworkerset.x-k8s.io_leaderworkersets",
        "disaggregatedset.x-k8s.io_disaggregatedsets",
    ];
    define(share, &kinds).await;
    let own = json!([{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]);
    let rules = [
        Rule {
            path: "/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset",
            group: "leaderworkerset.x-k8s.io",
            version: "v1",
            resource: "leaderworkersets",
            objects: json!({}),
        },
        Rule {
            path: "/mutate--v1-pod",
            group: "",
            version: "v1",
            resource: "pods",
            objects: json!({"matchExpressions": own}),
        },
    ];
    with_webhook(share, "lws", "config.lws.x-k8s.io/v1alpha1", &rules).await
}

/// The controllers of `PyTorchJob` and `MPIJob` for the namespace of the share.
pub(crate) async fn kubeflow(share: &Share) -> Program {
    define(share, &["kubeflow.org_mpijobs", "kubeflow.org_pytorchjobs"]).await;
    let mut command = program(share, "kubeflow-controllers");
    command.arg(&share.namespace);
    Program::start(command, &share.file("kubeflow.log"))
}

/// KubeRay for the namespace of the share, without its validating webhook.
pub(crate) async fn ray(share: &Share) -> Program {
    define(share, &["ray.io_rayclusters", "ray.io_rayjobs", "ray.io_rayservices"]).await;
    let health = free_port();
    let mut command = program(share, "kuberay-operator");
    command.args(["--watch-namespace", &share.namespace]);
    command.args(["--enable-leader-election=false", "--metrics-addr", "0"]);
    command.args(["--health-probe-bind-address", &format!("127.0.0.1:{health}")]);
    let operator = Program::start(command, &share.file("kuberay.log"));
    is_ready(health).await;
    operator
}

/// The controller of Kubeflow Trainer, without its validating webhooks.
pub(crate) async fn trainer(share: &Share) -> Program {
    let kinds = ["trainjobs", "trainingruntimes", "clustertrainingruntimes"];
    define(share, &kinds.map(|kind| format!("trainer.kubeflow.org_{kind}"))).await;
    let [webhook, health] = [free_port(), free_port()];
    // The webhook server reads its certificate below the folder for temporary files.
    let folder = share.file("k8s-webhook-server/serving-certs");
    std::fs::create_dir_all(&folder).unwrap();
    write_certificate(&folder);
    let config = json!({
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration",
        "webhook": {"port": webhook, "host": "127.0.0.1"},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": format!("127.0.0.1:{health}")},
        "leaderElection": {"leaderElect": false},
        "certManagement": {"enable": false},
    });
    let file = share.file("trainer.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = program(share, "trainer-controller");
    command.arg("--config").arg(&file).env("TMPDIR", share.file(""));
    let controller = Program::start(command, &share.file("trainer.log"));
    is_ready(health).await;
    controller
}

async fn is_ready(health: u16) {
    wait_for("the controller is ready", async || {
        get(health, "/readyz").filter(|answer| answer.status == 200).ok_or("not ready")
    })
    .await;
}

/// Writes a certificate of 127.0.0.1 with its key; returns the certificate.
fn write_certificate(folder: &Path) -> String {
    let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let pem = certificate.cert.pem();
    std::fs::write(folder.join("tls.crt"), &pem).unwrap();
    std::fs::write(folder.join("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
    pem
}

/// Creates kinds from the sources of their controllers.
pub(crate) async fn define(share: &Share, kinds: &[impl AsRef<str>]) {
    for kind in kinds {
        let file = programs(share).join("crds").join(format!("{}.yaml", kind.as_ref()));
        let text = std::fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        share.apply(&text).await;
    }
}

fn programs(share: &Share) -> &Path {
    let programs = share.cluster.programs.as_deref();
    programs.expect("AGENTAFLOW_TEST_KUBE_BIN names the folder of the programs")
}

fn program(share: &Share, name: &str) -> Command {
    let mut command = Command::new(programs(share).join(name));
    command.env("KUBECONFIG", &share.cluster.kubeconfig);
    command
}

/// Objects that a webhook of a controller defaults.
struct Rule {
    path: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    /// Selector of the objects.
    objects: Value,
}

/// Starts `NAME-controller` with its configuration file, and adds its webhooks.
async fn with_webhook(share: &Share, name: &str, configuration: &str, rules: &[Rule]) -> Program {
    let [webhook, health] = [free_port(), free_port()];
    let pem = write_certificate(&share.file(""));
    let config = json!({
        "apiVersion": configuration, "kind": "Configuration",
        "webhook": {"port": webhook, "host": "127.0.0.1",
            "certDir": share.file("tls.crt").parent()},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": format!("127.0.0.1:{health}")},
        "leaderElection": {"leaderElect": false},
        "internalCertManagement": {"enable": false},
    });
    let file = share.file(&format!("{name}.yaml"));
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = program(share, &format!("{name}-controller"));
    command.arg("--config").arg(&file);
    let controller = Program::start(command, &share.file(&format!("{name}.log")));
    is_ready(health).await;
    share.apply_object(defaulting(share, name, webhook, &pem, rules)).await;
    controller
}

fn defaulting(share: &Share, name: &str, port: u16, pem: &str, rules: &[Rule]) -> Value {
    let webhook = |(index, rule): (usize, &Rule)| {
        let url = format!("https://127.0.0.1:{port}{}", rule.path);
        let here = json!({"kubernetes.io/metadata.name": share.namespace});
        json!({
            "name": format!("{name}-{index}.example.com"),
            "clientConfig": {"url": url, "caBundle": ByteString(pem.as_bytes().to_vec())},
            "rules": [{"apiGroups": [rule.group], "apiVersions": [rule.version],
                "resources": [rule.resource], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": here},
            "objectSelector": rule.objects,
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        })
    };
    let webhooks: Vec<Value> = rules.iter().enumerate().map(webhook).collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": format!("{name}-{}", share.id)},
        "webhooks": webhooks,
    })
}

//! Model servers: probes, claims, caches.

use serde_json::{Map, Value, json};

use crate::lint::object::{Container, Pod, list, text};
use crate::lint::{Findings, Object, Rule, Set, Severity, set};

/// Startup time of a model server that probes must allow, in seconds.
const LOADING: u64 = 300;

/// Startup time that a fix allows, in seconds.
const PATIENCE: u64 = 600;

pub(super) static AF501: Rule = rule! {
    "AF501" "probe-too-short" Warning fixable true;
    title: "The probe fails before the model is loaded",
    why: "Loading tens of gigabytes into a GPU takes minutes. A liveness probe, or a short startup probe, kills the \
          server before it is ready; the server restarts and never serves.",
    advice: "Add a `startupProbe` with `periodSeconds` × `failureThreshold` of at least ten minutes.",
    check: probe_too_short,
};

pub(super) static AF502: Rule = rule! {
    "AF502" "no-probe" Info;
    title: "A model server has no probe",
    why: "Without a readiness or startup probe, the service sends requests to a server that is still loading its \
          model.",
    advice: "Add a `startupProbe` and a `readinessProbe` on the server's health path.",
    check: no_probe,
};

pub(super) static AF503: Rule = rule! {
    "AF503" "claim-of-one-node" Warning;
    title: "Several pods share a claim that only one node can mount",
    why: "One node at a time can mount a claim with `ReadWriteOnce`: a second replica on another node stays \
          pending, and with GPUs each replica usually needs its own node. A single replica has the same problem at \
          its next rolling update: the new pod waits for the volume and the GPU of the old pod, which waits for the \
          new pod.",
    advice: "Use `ReadOnlyMany` or `ReadWriteMany` with a storage class that supports it, or a StatefulSet with a \
             claim for each replica. For one replica, `strategy: {type: Recreate}` stops the old pod first.",
    check: claim_of_one_node,
};

pub(super) static AF504: Rule = rule! {
    "AF504" "no-model-cache" Info;
    title: "The model is downloaded at each start",
    why: "Without a volume, each replica downloads tens of gigabytes at every start while its GPU is idle.",
    advice: "Mount a claim at the model directory of the server (`/root/.cache/huggingface`, `/models`).",
    check: no_model_cache,
};

fn is_server(object: &Object<'_>) -> bool {
    object.is(&["Deployment", "StatefulSet", "ReplicaSet"])
}

/// Seconds until a probe fails the container.
fn patience(probe: &Value) -> u64 {
    let number = |key: &str, default| probe.get(key).and_then(Value::as_u64).unwrap_or(default);
    let tries = number("periodSeconds", 10).saturating_mul(number("failureThreshold", 3));
    number("initialDelaySeconds", 0).saturating_add(tries)
}

fn probe_too_short(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods().filter(|pod| is_server(&pod.object)) {
        for container in pod.containers().into_iter().filter(|container| container.gpus() > 0) {
            match (container.at(&["startupProbe"]), container.at(&["livenessProbe"])) {
                (Some(startup), _) => startup_too_short(&pod, &container, startup, findings),
                (None, Some(liveness)) => liveness_too_short(&pod, &container, liveness, findings),
                (None, None) => {}
            }
        }
    }
}

fn startup_too_short(
    pod: &Pod<'_>,
    container: &Container<'_>,
    probe: &Value,
    findings: &mut Findings<'_>,
) {
    let patience = patience(probe);
    if patience >= LOADING {
        return;
    }
    let period = probe.get("periodSeconds").and_then(Value::as_u64).unwrap_or(10).max(1);
    let path = container.join(&["startupProbe", "failureThreshold"]);
    let message = format!("the startup probe fails after {patience} s, before a model is loaded");
    findings.add_with(
        &pod.object,
        &path,
        message,
        vec![set(path.clone(), PATIENCE.div_ceil(period))],
    );
}

fn liveness_too_short(
    pod: &Pod<'_>,
    container: &Container<'_>,
    probe: &Value,
    findings: &mut Findings<'_>,
) {
    let patience = patience(probe);
    if patience >= LOADING {
        return;
    }
    // Keep the check, allow more time.
    let asked = ["httpGet", "tcpSocket", "exec", "grpc"];
    let question = probe
        .as_object()
        .and_then(|probe| probe.iter().find(|(key, _)| asked.contains(&key.as_str())));
    let fix = question.map(|(key, value)| {
        let probe = Map::from_iter([
            (key.clone(), value.clone()),
            ("periodSeconds".to_owned(), json!(10)),
            ("failureThreshold".to_owned(), json!(PATIENCE / 10)),
        ]);
        set(container.join(&["startupProbe"]), Value::Object(probe))
    });
    let message = format!(
        "the liveness probe kills the server after {patience} s, and no startupProbe allows time for loading the \
         model"
    );
    findings.add_with(
        &pod.object,
        &container.join(&["livenessProbe"]),
        message,
        fix.into_iter().collect(),
    );
}

fn no_probe(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods().filter(|pod| is_server(&pod.object)) {
        for container in pod.containers() {
            let probed =
                ["startupProbe", "readinessProbe"].iter().any(|key| container.at(&[key]).is_some());
            // A server's port need not be declared.
            let serves = match list(container.value, &["ports"]) {
                [] if is_model_server(&container) => "serves a model",
                [] => continue,
                _ => "serves a port",
            };
            if container.gpus() > 0 && !probed {
                let name = container.name();
                let message =
                    format!("container `{name}` {serves} and has no startup or readiness probe");
                findings.add(&pod.object, &container.path, message);
            }
        }
    }
}

fn claim_of_one_node(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods().filter(|pod| is_server(&pod.object)) {
        let replicas = pod.object.replicas();
        let overlaps = replicas == 1 && pod.wants_gpu() && surges(&pod.object);
        if replicas < 2 && !overlaps {
            continue;
        }
        for (number, volume) in list(pod.spec, &["volumes"]).iter().enumerate() {
            let Some(name) = text(volume, &["persistentVolumeClaim", "claimName"]) else {
                continue;
            };
            let modes = modes(set, &pod, name);
            if modes.iter().any(|mode| mode.ends_with("Many")) || modes.is_empty() {
                continue;
            }
            let alone = replicas > 1 && modes.contains(&"ReadWriteOncePod");
            let severity = if alone { Severity::Error } else { Severity::Warning };
            let path =
                pod.join(&["volumes", &number.to_string(), "persistentVolumeClaim", "claimName"]);
            let modes = modes.join(", ");
            let message = if overlaps {
                format!(
                    "an update starts a second pod, and the claim `{name}` is {modes}: use `strategy: {{type: Recreate}}`"
                )
            } else {
                format!("{replicas} replicas mount the claim `{name}`, which is {modes}")
            };
            findings.add_as(severity, &pod.object, &path, message, Vec::new());
        }
    }
}

/// Access modes of a claim in the pod's namespace; empty if the claim is not part of the input.
fn modes<'a>(set: &Set<'a>, pod: &Pod<'a>, name: &str) -> Vec<&'a str> {
    let claim = set.objects.iter().find(|object| {
        object.is(&["PersistentVolumeClaim"])
            && object.name() == name
            && object.namespace() == pod.object.namespace()
    });
    let modes = claim.map(|claim| list(claim.value, &["spec", "accessModes"])).unwrap_or_default();
    modes.iter().filter_map(Value::as_str).collect()
}

/// True if an update starts a new pod before it stops the old one.
fn surges(object: &Object<'_>) -> bool {
    let surge = object.at(&["spec", "strategy", "rollingUpdate", "maxSurge"]);
    let none = surge.is_some_and(|surge| {
        surge.as_u64() == Some(0) || surge.as_str().is_some_and(|text| matches!(text, "0" | "0%"))
    });
    object.is(&["Deployment"])
        && object.text(&["spec", "strategy", "type"]) != Some("Recreate")
        && !none
}

/// True for images of common model servers.
fn is_model_server(container: &Container<'_>) -> bool {
    let servers = [
        "vllm",
        "text-generation-inference",
        "tgi",
        "sglang",
        "tritonserver",
        "ollama",
        "text-embeddings-inference",
    ];
    let image = container.image().unwrap_or_default();
    let name = image.split(['@', ':']).next().unwrap_or_default().to_lowercase();
    name.split(['/', '-', '_']).any(|part| servers.contains(&part))
        || servers.iter().any(|server| server.contains('-') && name.contains(server))
}

fn no_model_cache(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods().filter(|pod| is_server(&pod.object)) {
        for container in pod.containers() {
            let kept = container.mounts().iter().any(|(mounted, _)| {
                pod.volume(mounted).is_some_and(|(_, volume)| {
                    text(volume, &["emptyDir", "medium"]) != Some("Memory")
                }) || claim_template(&pod.object, mounted)
            });
            if is_model_server(&container) && !kept {
                let message =
                    format!("container `{}` has no volume for its models", container.name());
                findings.add(&pod.object, &container.path, message);
            }
        }
    }
}

fn claim_template(object: &Object<'_>, name: &str) -> bool {
    let templates = list(object.value, &["spec", "volumeClaimTemplates"]);
    templates.iter().any(|template| text(template, &["metadata", "name"]) == Some(name))
}

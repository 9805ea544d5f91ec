//! Spot machines.

use serde_json::{Value, json};

use crate::cloud::Cloud;
use crate::lint::object::{Container, Pod, list, text};
use crate::lint::{Findings, Rule, Set, Severity, append};

pub(super) static AF110: Rule = rule! {
    "AF110" "spot-without-checkpoint" Warning;
    title: "Training on spot machines without checkpoints",
    why: "The cloud reclaims a spot machine with minutes of notice. A job without checkpoints restarts from the \
          beginning each time, and can cost more than it saves.",
    advice: "Write checkpoints to a volume or a bucket that outlives the machine, resume from them, and name them in \
             the command or the environment (`--checkpoint-dir /workspace/checkpoints`).",
    check: without_checkpoint,
};

pub(super) static AF111: Rule = rule! {
    "AF111" "no-spot-toleration" Warning fixable true;
    title: "The pod selects spot machines but does not tolerate their taint",
    why: "Spot nodes have a taint on AKS, and in clusters set up according to common manuals (`spot`). A selector \
          alone selects nodes that repel the pod. On GKE only auto-provisioned and manually tainted pools have the \
          taint, and Autopilot adds the toleration: the finding is informational there.",
    advice: "Add a toleration for the taint of the selected nodes.",
    check: no_toleration,
};

/// Another label of GKE's spot nodes.
const GKE_PROVISIONING: &str = "cloud.google.com/gke-provisioning";

/// Label that selects spot nodes, and their certain taint.
fn spot(pod: &Pod<'_>) -> Option<(&'static str, Option<&'static str>)> {
    let clouds = Cloud::ALL.into_iter().map(|cloud| (cloud.spot().label, cloud.spot()));
    let other = ((GKE_PROVISIONING, "spot"), Cloud::Gke.spot());
    let ((label, _), spot) =
        clouds.chain([other]).find(|((label, value), _)| pod.required(label) == [*value])?;
    Some((label, spot.tainted.then_some(spot.taint.0)))
}

/// Words that indicate saved progress.
const KEPT: [&str; 7] = ["checkpoint", "ckpt", "resume", "s3://", "gs://", "abfs", "wasb"];

/// True if a claim is mounted at a usual path for results.
fn has_workspace(pod: &Pod<'_>, container: &Container<'_>) -> bool {
    container.mounts().iter().any(|(name, path)| {
        let claimed = pod
            .volume(name)
            .is_some_and(|(_, volume)| volume.get("persistentVolumeClaim").is_some());
        claimed && ["workspace", "output", "result"].iter().any(|word| path.contains(word))
    })
}

fn without_checkpoint(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods().filter(|pod| pod.object.is(&["Job", "CronJob", "Pod", "GPUWorkload"]))
    {
        let Some((label, _)) = spot(&pod) else { continue };
        if pod.containers().iter().any(|container| {
            let environment = container.environment();
            let mut words = container.command_line().to_lowercase();
            for (name, value, _) in environment {
                words.push_str(
                    &format!(" {name}={}", value.and_then(Value::as_str).unwrap_or_default())
                        .to_lowercase(),
                );
            }
            for (name, path) in container.mounts() {
                words.push_str(&format!(" {name} {path}").to_lowercase());
            }
            KEPT.iter().any(|word| words.contains(word)) || has_workspace(&pod, container)
        }) {
            continue;
        }
        let message = "runs on spot machines without a sign of checkpoints";
        findings.add(&pod.object, &pod.join(&["nodeSelector", label]), message);
    }
}

fn no_toleration(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        let Some((label, Some(taint))) = spot(&pod) else { continue };
        let tolerated = list(pod.spec, &["tolerations"]).iter().any(|toleration| {
            let key = text(toleration, &["key"]).unwrap_or_default();
            key == taint || (key.is_empty() && text(toleration, &["operator"]) == Some("Exists"))
        });
        if tolerated {
            continue;
        }
        let value = json!({"key": taint, "operator": "Exists", "effect": "NoSchedule"});
        let fix = vec![append(pod.join(&["tolerations"]), value)];
        let google = taint == Cloud::Gke.spot().taint.0;
        let (severity, which) = if google {
            (Severity::Info, "the taint of some of them:")
        } else {
            (Severity::Warning, "their taint")
        };
        let message =
            format!("selects spot machines by {label} but does not tolerate {which} `{taint}`");
        findings.add_as(severity, &pod.object, &pod.join(&["nodeSelector", label]), message, fix);
    }
}

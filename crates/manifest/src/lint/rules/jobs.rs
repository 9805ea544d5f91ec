//! Lifecycle of jobs.

use serde_json::Value;

use crate::lint::object::{Path, join};
use crate::lint::{Findings, Rule, Set, Severity, set};
use crate::yaml::at;

pub(super) static AF201: Rule = rule! {
    "AF201" "job-restart-policy" Error fixable true;
    title: "Missing or invalid restartPolicy of a job",
    why: "The default, `Always`, is invalid for a Job: the API server rejects it.",
    advice: "Set `restartPolicy: OnFailure`, or `Never` to keep the pods of failed attempts for their logs.",
    check: job_restart_policy,
};

pub(super) static AF202: Rule = rule! {
    "AF202" "template-labels" Error fixable true;
    title: "The template does not match the selector",
    why: "A Deployment finds its pods by its selector. The API server rejects a Deployment whose selector does not \
          match its own template.",
    advice: "Add the labels of the selector to the template.",
    check: template_labels,
};

pub(super) static AF203: Rule = rule! {
    "AF203" "workload-restart-policy" Error fixable true;
    title: "The pods of a GPUWorkload never finish",
    why: "A pod with `restartPolicy: Always` never succeeds: the workload stays Running and keeps its GPUs. The \
          default is `Never`; an explicit value has the same meaning in other tools.",
    advice: "Set `restartPolicy: Never` or `OnFailure`.",
    check: workload_restart_policy,
};

pub(super) static AF204: Rule = rule! {
    "AF204" "no-deadline" Warning;
    title: "A GPU job has no deadline",
    why: "A hanging training run holds its GPUs until an operator deletes it.",
    advice: "Set `activeDeadlineSeconds`: 86400 is a day. In a GPUWorkload, `estimatedDuration` is for planning, \
             and the deadline is part of the pod template.",
    check: no_deadline,
};

pub(super) static AF205: Rule = rule! {
    "AF205" "no-ttl" Warning fixable true;
    title: "Finished jobs are never deleted",
    why: "Finished Jobs and their pods accumulate and slow down the API server.",
    advice: "Set `ttlSecondsAfterFinished`: 3600 keeps logs for an hour.",
    check: no_ttl,
};

pub(super) static AF206: Rule = rule! {
    "AF206" "no-backoff-limit" Info fixable true;
    title: "A failing job is retried six times",
    why: "The default `backoffLimit` is six retries. An error in the script then costs seven times the GPU hours.",
    advice: "Set `backoffLimit`; 3 is enough for node failures.",
    check: no_backoff,
};

fn job_restart_policy(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods().filter(|pod| pod.object.is(&["Job", "CronJob"])) {
        let message = match pod.at(&["restartPolicy"]).and_then(Value::as_str) {
            Some("OnFailure" | "Never") => continue,
            None => "restartPolicy is missing; the API server rejects the job".to_owned(),
            Some(other) => format!("restartPolicy is `{other}`; a job takes OnFailure or Never"),
        };
        let path = pod.join(&["restartPolicy"]);
        findings.add_with(&pod.object, &path, message, vec![self::set(path.clone(), "OnFailure")]);
    }
}

fn template_labels(set: &Set<'_>, findings: &mut Findings<'_>) {
    let kinds = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"];
    for object in set.objects.iter().filter(|object| object.is(&kinds)) {
        let Some(Value::Object(wanted)) = object.at(&["spec", "selector", "matchLabels"]) else {
            continue;
        };
        let labels = ["spec", "template", "metadata", "labels"];
        let has = |key: &str| object.at(&labels).and_then(|labels| labels.get(key));
        let lacking: Vec<_> =
            wanted.iter().filter(|(key, value)| has(key) != Some(value)).collect();
        if lacking.is_empty() || object.at(&["spec", "template"]).is_none() {
            continue;
        }
        let path = object.join(&labels);
        let fix =
            lacking.iter().map(|(key, value)| self::set(join(&path, &[key]), (*value).clone()));
        let names: Vec<_> = lacking.iter().map(|(key, _)| format!("`{key}`")).collect();
        let message = format!(
            "the template lacks the selector's label {}; the API server rejects the object",
            names.join(", ")
        );
        findings.add_with(object, &path, message, fix.collect());
    }
}

fn workload_restart_policy(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods().filter(|pod| pod.object.is(&["GPUWorkload"])) {
        let (severity, message) = match pod.at(&["restartPolicy"]).and_then(Value::as_str) {
            Some("OnFailure" | "Never") => continue,
            None => (Severity::Info, "restartPolicy is missing and defaults to `Never`"),
            Some(_) => (
                Severity::Error,
                "with this restartPolicy the workload never succeeds and keeps its GPUs",
            ),
        };
        let path = pod.join(&["restartPolicy"]);
        let fix = vec![self::set(path.clone(), "Never")];
        findings.add_as(severity, &pod.object, &path, message, fix);
    }
}

/// Jobs with GPUs: object, the path of the job's spec.
fn gpu_jobs(set: &Set<'_>, mut look: impl FnMut(&crate::lint::object::Pod<'_>, Path, &Value)) {
    for pod in set.gpu_pods() {
        let Some(path) = pod.object.job_spec() else { continue };
        let inside: Vec<_> = path[pod.object.path.len()..].to_vec();
        let Some(spec) = at(pod.object.value, &inside) else { continue };
        look(&pod, path, spec);
    }
}

fn no_deadline(set: &Set<'_>, findings: &mut Findings<'_>) {
    gpu_jobs(set, |pod, path, spec| {
        let limited = spec.get("activeDeadlineSeconds").is_some()
            || pod.at(&["activeDeadlineSeconds"]).is_some();
        if !limited {
            let message = "GPUs without activeDeadlineSeconds: a hanging job holds them forever";
            findings.add(&pod.object, &path, message);
        }
    });
}

fn no_ttl(set: &Set<'_>, findings: &mut Findings<'_>) {
    gpu_jobs(set, |pod, path, spec| {
        // A CronJob deletes old jobs according to its history limits.
        if pod.object.is(&["Job"]) && spec.get("ttlSecondsAfterFinished").is_none() {
            let fix = vec![self::set(join(&path, &["ttlSecondsAfterFinished"]), 3600)];
            findings.add_with(
                &pod.object,
                &path,
                "ttlSecondsAfterFinished is missing: the finished job is never deleted",
                fix,
            );
        }
    });
}

fn no_backoff(set: &Set<'_>, findings: &mut Findings<'_>) {
    gpu_jobs(set, |pod, path, spec| {
        // A limit per index replaces the limit of the job.
        let limited =
            ["backoffLimit", "backoffLimitPerIndex"].iter().any(|key| spec.get(key).is_some());
        if !limited {
            let fix = vec![self::set(join(&path, &["backoffLimit"]), 3)];
            findings.add_with(
                &pod.object,
                &path,
                "backoffLimit is missing: a failing job is retried six times",
                fix,
            );
        }
    });
}

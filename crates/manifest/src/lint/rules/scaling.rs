//! Schedules that scale GPU nodes.

use serde_json::{Value, json};

use crate::lint::object::{Container, Pod};
use crate::lint::{Findings, Object, Operation, Rule, Set};

pub(super) static AF601: Rule = rule! {
    "AF601" "never-scaled-down" Warning fixable true;
    title: "GPU nodes are scaled up on a schedule but never down",
    why: "A schedule that only adds nodes leaves them running through the night and saves nothing.",
    advice: "Add a second CronJob that scales the same pool down in the evening.",
    check: never_down,
};

pub(super) static AF602: Rule = rule! {
    "AF602" "kubectl-scales-no-nodes" Error;
    title: "`kubectl scale` cannot scale nodes",
    why: "Kubernetes has no scalable object for node pools. The job fails at each run.",
    advice: "Scale the pool with the cloud's command line (`aws eks update-nodegroup-config`, `gcloud container \
             clusters resize`, `az aks nodepool scale`), or change the limits of a Karpenter NodePool; `agentaflow \
             generate scaler` generates both forms.",
    check: no_such_scale,
};

/// Scale command: target and count.
#[derive(Debug, PartialEq, Eq)]
struct ScaleCommand {
    target: String,
    size: u64,
    /// Index of the word with the count.
    word: usize,
    /// Text before the count in that word.
    prefix: String,
}

const SIZES: [&str; 6] =
    ["--replicas", "--num-nodes", "--node-count", "--desired-capacity", "--nodes", "desiredSize"];

fn scaled(container: &Container<'_>) -> Option<ScaleCommand> {
    let words = words(container);
    let verbs = ["scale", "resize", "update-nodegroup-config", "set-desired-capacity"];
    if !words.iter().any(|word| verbs.contains(&word.as_str())) {
        return None;
    }
    let (word, prefix, size) = words.iter().enumerate().find_map(|(number, word)| {
        SIZES.iter().find_map(|name| {
            if word == name {
                return Some((number + 1, String::new(), words.get(number + 1)?.parse().ok()?));
            }
            let at = word.find(&format!("{name}="))? + name.len() + 1;
            let digits: String = word[at..].chars().take_while(char::is_ascii_digit).collect();
            Some((number, word[..at].to_owned(), digits.parse().ok()?))
        })
    })?;
    let target = words
        .iter()
        .enumerate()
        .filter(|(number, other)| *number != word && !SIZES.contains(&other.as_str()));
    let target = target.map(|(_, word)| word.as_str()).collect::<Vec<_>>().join(" ");
    Some(ScaleCommand { target, size, word, prefix })
}

fn words(container: &Container<'_>) -> Vec<String> {
    container.command_line().split_whitespace().map(str::to_owned).collect()
}

fn never_down(set: &Set<'_>, findings: &mut Findings<'_>) {
    let mut schedules: Vec<(&Object<'_>, Container<'_>, ScaleCommand)> = Vec::new();
    for object in set.objects.iter().filter(|object| object.is(&["CronJob"])) {
        for container in object.pods().iter().flat_map(Pod::containers) {
            if let Some(scaled) = scaled(&container) {
                schedules.push((object, container, scaled));
            }
        }
    }
    for (object, container, up) in &schedules {
        // Two schedules with different sizes: the smaller size is the scale-down, to any number.
        let paired = schedules
            .iter()
            .any(|(_, _, other)| other.target == up.target && other.size != up.size);
        if up.size == 0 || paired {
            continue;
        }
        let message = format!("scales to {}, and no CronJob scales down again", up.size);
        let fix = opposite(object, container, up).map(|value| Operation::Document { value });
        findings.add_with(
            object,
            &object.join(&["spec", "schedule"]),
            message,
            fix.into_iter().collect(),
        );
    }
}

/// Matching `CronJob` that scales down to zero in the evening.
fn opposite(object: &Object<'_>, container: &Container<'_>, up: &ScaleCommand) -> Option<Value> {
    let mut value = object.value.clone();
    let mut fields: Vec<String> =
        object.text(&["spec", "schedule"])?.split_whitespace().map(str::to_owned).collect();
    let hour: u64 = fields.get(1)?.parse().ok()?;
    fields[1] = if hour < 13 { hour + 10 } else { 23 }.to_string();
    if hour >= 23 || fields.len() != 5 {
        return None;
    }
    *value.pointer_mut("/spec/schedule")? = json!(fields.join(" "));
    *value.pointer_mut("/metadata/name")? =
        json!(format!("{}-down", object.text(&["metadata", "name"])?));
    let inside = container.path.get(object.path.len()..)?.join("/");
    let mut before = 0;
    for key in ["command", "args"] {
        let Some(list) =
            value.pointer_mut(&format!("/{inside}/{key}")).and_then(Value::as_array_mut)
        else {
            continue;
        };
        for word in list {
            let text = word.as_str()?.to_owned();
            // A word with spaces is a script: no safe fix.
            if text.split_whitespace().count() != 1 {
                return None;
            }
            if before == up.word {
                *word = json!(format!("{}0", up.prefix));
            }
            before += 1;
        }
    }
    (value != *object.value).then_some(value)
}

fn no_such_scale(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        for container in pod.all_containers() {
            let words = words(&container);
            let after =
                words.iter().position(|word| word.ends_with("kubectl")).map(|at| &words[at..]);
            let Some(words) = after else { continue };
            let scale = words.iter().position(|word| word == "scale").map(|at| &words[at + 1..]);
            let target = scale.and_then(|rest| rest.iter().find(|word| !word.starts_with('-')));
            let kind = target
                .map(|target| target.split(['/', '.']).next().unwrap_or_default().to_lowercase());
            if let Some(kind) = kind.filter(|kind| {
                matches!(
                    kind.as_str(),
                    "nodepool" | "nodepools" | "node" | "nodes" | "nodegroup" | "nodegroups"
                )
            }) {
                let message = format!(
                    "kubectl cannot scale a {kind}: Kubernetes has no such scalable object"
                );
                findings.add(&pod.object, &container.join(&["command"]), message);
            }
        }
    }
}

//! Random pods with every field that scheduling reads; each field is rare, so that most pods have few.

use serde_json::{Map, Value, json};

use crate::dice::Dice;
use crate::nodes::{EFFECTS, Keys, TAINTS};
use crate::volumes::CLAIMS;

/// Objects that random pods may name.
pub(crate) struct Field {
    pub(crate) keys: Keys,
    pub(crate) nodes: Vec<String>,
    /// The claims are in the first namespace.
    pub(crate) namespaces: Vec<String>,
    pub(crate) runtime_class: String,
}

/// A random pod without a name, and its namespace.
pub(crate) fn pod(dice: &mut Dice, field: &Field) -> (String, Value) {
    let mut spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 600,
        "containers": containers(dice, "main", 1, 3),
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            spec[name] = value;
        }
    };
    set("initContainers", dice.chance(25).then(|| init_containers(dice)));
    set("resources", dice.chance(10).then(|| whole(dice)));
    set("runtimeClassName", dice.chance(10).then(|| json!(field.runtime_class)));
    set("hostNetwork", dice.chance(4).then_some(Value::Bool(true)));
    set("nodeSelector", dice.chance(15).then(|| json!({"disk": dice.pick(&["ssd", "hdd", ""])})));
    set("tolerations", dice.chance(40).then(|| tolerations(dice)));
    set("affinity", affinity(dice, field));
    set("topologySpreadConstraints", dice.chance(25).then(|| spread(dice, field)));
    set("schedulingGates", dice.chance(2).then(|| json!([{"name": "example.com/later"}])));
    let mut namespace = dice.pick(&field.namespaces);
    if dice.chance(10) {
        namespace.clone_from(&field.namespaces[0]);
        set("volumes", Some(volumes(dice)));
    }
    (namespace, json!({"metadata": {"labels": labels(dice)}, "spec": spec}))
}

fn labels(dice: &mut Dice) -> Value {
    let mut labels = Map::new();
    for (key, values) in [("app", ["a", "b", "c"]), ("layer", ["x", "y", ""])] {
        if dice.chance(75) {
            labels.insert(key.to_owned(), json!(dice.pick(&values)));
        }
    }
    labels.into()
}

fn containers(dice: &mut Dice, name: &str, least: usize, most: usize) -> Value {
    let count = if dice.chance(70) { least } else { dice.between(least, most) };
    (0..count).map(|number| container(dice, &format!("{name}-{number}"))).collect()
}

fn container(dice: &mut Dice, name: &str) -> Value {
    let mut container =
        json!({"name": name, "image": "registry.example/main:1", "resources": resources(dice)});
    if dice.chance(12) {
        let mut port = json!({"containerPort": dice.pick(&[8080, 9090])});
        port["hostPort"] = port["containerPort"].clone();
        if dice.chance(60) {
            port["hostIP"] = json!(dice.pick(&["0.0.0.0", "127.0.0.1", "10.0.0.1", "::", ""]));
        }
        if dice.chance(40) {
            port["protocol"] = json!(dice.pick(&["TCP", "UDP"]));
        }
        container["ports"] = json!([port]);
    }
    if dice.chance(5) {
        let codes = json!({"operator": "In", "values": [42]});
        container["restartPolicy"] = json!("Never");
        container["restartPolicyRules"] =
            json!([{"action": "RestartAllContainers", "exitCodes": codes}]);
    }
    container
}

fn init_containers(dice: &mut Dice) -> Value {
    let mut all = containers(dice, "init", 1, 3);
    for container in all.as_array_mut().expect("an array") {
        if dice.chance(50) {
            container.as_object_mut().expect("an object").remove("restartPolicyRules");
            container["restartPolicy"] = json!("Always");
        }
    }
    all
}

/// Requests, limits, or both. Most memory amounts are whole MiB.
fn resources(dice: &mut Dice) -> Value {
    let (mut requests, mut limits) = (Map::new(), Map::new());
    let mut put = |name: &str, amount: String, how: usize| {
        if how != 1 {
            requests.insert(name.to_owned(), json!(amount));
        }
        if how != 0 {
            limits.insert(name.to_owned(), json!(amount));
        }
    };
    if dice.chance(75) {
        let how = dice.below(3);
        put("cpu", format!("{}m", dice.between(1, 10) * 250), how);
    }
    if dice.chance(60) {
        let how = dice.below(3);
        put("memory", format!("{}Mi", dice.between(1, 20) * 256), how);
    }
    if dice.chance(20) {
        let how = dice.below(3);
        put("ephemeral-storage", format!("{}Gi", dice.between(1, 20)), how);
    }
    for (name, most, percent) in [
        ("nvidia.com/gpu", 4, 25),
        ("nvidia.com/mig-1g.10gb", 3, 10),
        ("example.com/widget", 3, 10),
    ] {
        if dice.chance(percent) {
            let how = dice.between(1, 2);
            put(name, dice.between(0, most).to_string(), how);
        }
    }
    if dice.chance(5) {
        put("hugepages-2Mi", format!("{}Mi", 2 * dice.between(1, 40)), 2);
    }
    json!({"requests": requests, "limits": limits})
}

/// Pod-level resources.
fn whole(dice: &mut Dice) -> Value {
    let cpu = json!({"cpu": dice.between(1, 12).to_string()});
    let memory = json!({"memory": format!("{}Gi", dice.between(1, 40))});
    let both = json!({"cpu": cpu["cpu"], "memory": memory["memory"]});
    let part = dice.pick(&[cpu, memory, both]);
    match dice.below(3) {
        0 => json!({"requests": part}),
        1 => json!({"limits": part}),
        _ => json!({"requests": part, "limits": part}),
    }
}

fn tolerations(dice: &mut Dice) -> Value {
    let count = dice.between(1, 3);
    (0..count).map(|_| toleration(dice)).collect()
}

fn toleration(dice: &mut Dice) -> Value {
    let mut made = json!({});
    if dice.chance(10) {
        made["operator"] = json!("Exists");
    } else {
        let unschedulable = "node.kubernetes.io/unschedulable";
        made["key"] = json!(if dice.chance(20) { unschedulable } else { dice.pick(&TAINTS) });
        if dice.chance(50) {
            made["operator"] = json!("Exists");
        } else {
            made["value"] = json!(dice.pick(&["a", "b", ""]));
            if dice.chance(50) {
                made["operator"] = json!("Equal");
            }
        }
    }
    if dice.chance(50) {
        made["effect"] = json!(dice.pick(&EFFECTS));
    }
    made
}

fn affinity(dice: &mut Dice, field: &Field) -> Option<Value> {
    let mut affinity = Map::new();
    if dice.chance(25) {
        affinity.insert("nodeAffinity".to_owned(), node_affinity(dice, field));
    }
    if dice.chance(18) {
        affinity.insert("podAffinity".to_owned(), pod_affinity(dice, field));
    }
    if dice.chance(22) {
        affinity.insert("podAntiAffinity".to_owned(), pod_affinity(dice, field));
    }
    (!affinity.is_empty()).then(|| affinity.into())
}

fn node_affinity(dice: &mut Dice, field: &Field) -> Value {
    let mut made = json!({});
    if dice.chance(85) {
        let count = dice.between(1, 3);
        let terms: Value = (0..count).map(|_| node_term(dice, field)).collect();
        made["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({"nodeSelectorTerms": terms});
    }
    if dice.chance(30) {
        let preference = node_term(dice, field);
        made["preferredDuringSchedulingIgnoredDuringExecution"] =
            json!([{"weight": dice.between(1, 100), "preference": preference}]);
    }
    made
}

fn node_term(dice: &mut Dice, field: &Field) -> Value {
    let mut term = json!({});
    if dice.chance(85) {
        let count = dice.between(1, 2);
        term["matchExpressions"] = (0..count).map(|_| node_expression(dice, field)).collect();
    }
    if dice.chance(20) {
        let operator = dice.pick(&["In", "NotIn"]);
        let name = dice.pick(&field.nodes);
        term["matchFields"] =
            json!([{"key": "metadata.name", "operator": operator, "values": [name]}]);
    }
    term
}

fn node_expression(dice: &mut Dice, field: &Field) -> Value {
    let operator = dice.pick(&["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
    if ["Gt", "Lt"].contains(&operator) {
        let values = [dice.pick(&["0", "4", "7"])];
        return json!({"key": "size", "operator": operator, "values": values});
    }
    let zone = field.keys.zone.as_str();
    let rack = field.keys.rack.as_str();
    let (key, all) = dice.pick(&[
        (zone, ["a", "b", "c"]),
        (rack, ["r0", "r1", "r2"]),
        ("disk", ["ssd", "hdd", ""]),
        ("size", ["1", "5", "large"]),
    ]);
    if ["In", "NotIn"].contains(&operator) {
        return json!({"key": key, "operator": operator, "values": dice.some(&all)});
    }
    json!({"key": key, "operator": operator})
}

fn pod_affinity(dice: &mut Dice, field: &Field) -> Value {
    let mut made = json!({});
    if dice.chance(85) {
        let count = if dice.chance(80) { 1 } else { 2 };
        made["requiredDuringSchedulingIgnoredDuringExecution"] =
            (0..count).map(|_| pod_term(dice, field)).collect();
    }
    if dice.chance(25) {
        let term = pod_term(dice, field);
        made["preferredDuringSchedulingIgnoredDuringExecution"] =
            json!([{"weight": dice.between(1, 100), "podAffinityTerm": term}]);
    }
    made
}

fn pod_term(dice: &mut Dice, field: &Field) -> Value {
    let mut term = json!({"topologyKey": dice.pick(&field.keys.all())});
    if dice.chance(95) {
        term["labelSelector"] = selector(dice);
    }
    if dice.chance(25) {
        term["namespaces"] = json!(dice.some(&field.namespaces));
    }
    if dice.chance(25) {
        let red = json!({"matchLabels": {"team": "red"}});
        let colored = json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]});
        term["namespaceSelector"] = dice.pick(&[json!({}), red, colored]);
    }
    if dice.chance(12) {
        term["matchLabelKeys"] = json!([dice.pick(&["app", "layer", "absent"])]);
    }
    if dice.chance(8) {
        term["mismatchLabelKeys"] = json!([dice.pick(&["app", "layer", "absent"])]);
    }
    term
}

fn selector(dice: &mut Dice) -> Value {
    let mut made = json!({});
    if dice.chance(60) {
        made["matchLabels"] = json!({"app": dice.pick(&["a", "b", "c"])});
    }
    if dice.chance(40) {
        let operator = dice.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
        let mut expression = json!({"key": "layer", "operator": operator});
        if ["In", "NotIn"].contains(&operator) {
            expression["values"] = json!(dice.some(&["x", "y", ""]));
        }
        made["matchExpressions"] = json!([expression]);
    }
    made
}

fn spread(dice: &mut Dice, field: &Field) -> Value {
    let mut keys = field.keys.all().to_vec();
    let count = if dice.chance(65) { 1 } else { 2 };
    let constraints = (0..count).map(|_| {
        let key = keys.remove(dice.below(keys.len()));
        constraint(dice, key)
    });
    constraints.collect()
}

fn constraint(dice: &mut Dice, key: &str) -> Value {
    let mut made = json!({
        "topologyKey": key,
        "maxSkew": dice.between(1, 3),
        "whenUnsatisfiable": if dice.chance(85) { "DoNotSchedule" } else { "ScheduleAnyway" },
    });
    if dice.chance(92) {
        made["labelSelector"] = selector(dice);
    }
    if made["whenUnsatisfiable"] == "DoNotSchedule" && dice.chance(25) {
        made["minDomains"] = json!(dice.between(1, 5));
    }
    for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        if dice.chance(35) {
            made[policy] = json!(dice.pick(&["Honor", "Ignore"]));
        }
    }
    if dice.chance(12) {
        made["matchLabelKeys"] = json!([dice.pick(&["app", "layer", "absent"])]);
    }
    made
}

fn volumes(dice: &mut Dice) -> Value {
    let count = if dice.chance(80) { 1 } else { 2 };
    let volume = |number: usize| {
        let claim = dice.pick(&CLAIMS);
        json!({"name": format!("v{number}"), "persistentVolumeClaim": {"claimName": claim}})
    };
    (0..count).map(volume).collect()
}

//! Remaining storage capacity.

use serde_json::{Value, json};

use super::check;
use super::volumes::{asking, local, using, zones};

#[test]
fn a_volume_is_made_only_where_enough_storage_is_left() {
    let in_zone = |zone: &str, capacity: Value, largest: Value| {
        json!({"storageClassName": "wait", "capacity": capacity, "maximumVolumeSize": largest,
            "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": zone}}})
    };
    let a = |capacity, largest| in_zone("a", json!(capacity), largest);
    let but = |mut output: Value, field: &str, value: Value| {
        output[field] = value;
        output
    };
    let nowhere = "claim `c` waits for storage: nowhere is enough of it left";
    let table = [
        (true, a("2Gi", Value::Null), "a"),
        (true, a("2047Mi", Value::Null), nowhere),
        (true, a("9Gi", json!("1Gi")), nowhere),
        (true, a("1Gi", json!("2Gi")), "a"),
        (true, in_zone("a", Value::Null, Value::Null), nowhere),
        (true, in_zone("a", json!("much"), Value::Null), nowhere),
        (true, but(a("2Gi", Value::Null), "storageClassName", json!("now")), nowhere),
        (true, but(a("2Gi", Value::Null), "nodeTopology", Value::Null), nowhere),
        (true, but(a("2Gi", Value::Null), "nodeTopology", json!({})), "a b old plain"),
        (
            true,
            but(
                a("2Gi", Value::Null),
                "nodeTopology",
                json!({"matchExpressions": [{"key": "host", "operator": "NotIn", "values": ["b"]}]}),
            ),
            "a old plain",
        ),
        (false, a("1Gi", Value::Null), "a b old plain"),
    ];
    for (tells, output, expected) in table {
        let cluster = zones()
            .with_claim("c", json!({}), asking("wait", "2Gi"))
            .with_driver("csi.example", tells)
            .with_capacity("a", output);
        check(&cluster, using(["c"]), expected);
    }
    // Each topology counts separately, existing volumes count as well, and a claim without a size is not checked.
    let mut there = local("plain", "5Gi");
    there["storageClassName"] = "wait".into();
    let sizeless = json!({"storageClassName": "wait", "accessModes": ["ReadWriteOnce"]});
    let cluster = zones()
        .with_driver("csi.example", true)
        .with_capacity("a", a("2Gi", Value::Null))
        .with_capacity("b", in_zone("b", json!("5Gi"), Value::Null))
        .with_claim("small", json!({}), asking("wait", "1Gi"))
        .with_claim("large", json!({}), asking("wait", "4Gi"))
        .with_claim("sizeless", json!({}), sizeless);
    check(&cluster, using(["small"]), "a b");
    check(&cluster, using(["large"]), "b");
    check(&cluster, using(["small", "large"]), "b");
    check(&cluster, using(["sizeless"]), "a b old plain");
    let cluster = cluster.with_volume("there", json!({}), there);
    check(&cluster, using(["large"]), "b plain");
}

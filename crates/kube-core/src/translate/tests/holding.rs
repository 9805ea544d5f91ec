//! Volumes and disks with a limited number of users.

use serde_json::{Value, json};

use super::volumes::{asking, done, using, zones};
use super::{check, nodes, pod};

#[test]
fn a_volume_for_one_pod_is_used_by_one_pod_in_the_cluster() {
    let spec = json!({"volumeName": "v", "accessModes": ["ReadWriteOncePod"]});
    let free =
        || zones().with_claim("c", done(), spec.clone()).with_volume("v", json!({}), json!({}));
    check(&free(), using(["c"]), "a b old plain");
    let taken = free().with_pod("old", json!({}), using(["c"])["spec"].clone());
    check(&taken, using(["c"]), "no: Token");
    check(&taken.in_namespace("other"), using(["c"]), "a b old plain");
}

#[test]
fn a_node_attaches_no_more_volumes_than_its_driver_can() {
    let csi = |handle: &str| json!({"csi": {"driver": "csi.example", "volumeHandle": handle}});
    let bound = |volume: &str| json!({"volumeName": volume});
    let cluster = zones()
        .with_claim("c1", done(), bound("v1"))
        .with_claim("c2", done(), bound("v2"))
        .with_claim("same", done(), bound("v1-again"))
        .with_claim("new", json!({}), asking("wait", "1Gi"))
        .with_claim("other", done(), bound("v-other"))
        .with_volume("v1", json!({}), csi("h1"))
        .with_volume("v1-again", json!({}), csi("h1"))
        .with_volume("v2", json!({}), csi("h2"))
        .with_volume(
            "v-other",
            json!({}),
            json!({"csi": {"driver": "free.example", "volumeHandle": "h"}}),
        );
    check(&cluster, using(["c1", "c2"]), "a b old plain");
    let limited = cluster
        .with_csi("a", json!([{"name": "csi.example", "allocatable": {"count": 1}}]))
        .with_csi(
            "b",
            json!([{"name": "csi.example", "allocatable": {"count": 2}}, {"name": "free.example"}]),
        )
        .with_csi("old", json!([{"name": "csi.example", "allocatable": {}}]));
    check(&limited, using(["c1"]), "a b old plain");
    check(&limited, using(["c1", "c2"]), "b old plain");
    check(&limited, using(["c1", "same"]), "a b old plain");
    check(&limited, using(["c1", "new"]), "b old plain");
    check(&limited, using(["other", "c1"]), "a b old plain");
    let busy = limited.with_pod("b", json!({}), using(["c1"])["spec"].clone());
    check(&busy, using(["c2", "new"]), "old plain");
    let inline = pod(json!({"volumes": [{"name": "i", "csi": {"driver": "csi.example"}}]}));
    let full = busy.with_pod("a", json!({}), using(["c2"])["spec"].clone());
    check(&full, inline, "a b old plain");
    assert_eq!(full.volumes.limited_drivers().collect::<Vec<_>>(), ["csi.example"]);
}

#[test]
fn a_disk_that_is_written_is_mounted_once_on_a_node() {
    let iscsi = |iqn: &str, read_only: bool| json!({"iscsi": {"iqn": iqn, "lun": 1, "readOnly": read_only}});
    let gce = |name: &str, read_only: bool| json!({"gcePersistentDisk": {"pdName": name, "readOnly": read_only}});
    let aws =
        |read_only: bool| json!({"awsElasticBlockStore": {"volumeID": "d", "readOnly": read_only}});
    let rbd = |monitors: Value, image: &str| json!({"rbd": {"monitors": monitors, "image": image}});
    let table = [
        (iscsi("d", false), iscsi("d", false), "no: Token"),
        (iscsi("d", true), iscsi("d", false), "no: Token"),
        (iscsi("d", false), iscsi("d", true), "no: Token"),
        (iscsi("d", true), iscsi("d", true), "n1"),
        (iscsi("d", false), iscsi("e", false), "n1"),
        (gce("d", false), gce("d", true), "no: Token"),
        (gce("d", true), gce("d", true), "n1"),
        (gce("d", false), iscsi("d", false), "n1"),
        (aws(true), aws(true), "no: Token"),
        (rbd(json!(["m1", "m2"]), "i"), rbd(json!(["m2", "m3"]), "i"), "no: Token"),
        (rbd(json!(["m1"]), "i"), rbd(json!(["m2"]), "i"), "n1"),
        (rbd(json!(["m1"]), "i"), rbd(json!(["m1"]), "j"), "n1"),
    ];
    for (theirs, ours, expected) in table {
        let spec = |volume: Value| json!({"volumes": [volume]});
        let cluster = nodes([("n1", json!({}))]).with_pod("n1", json!({}), spec(theirs));
        check(&cluster, pod(spec(ours)), expected);
    }
}

//! Random claims of CSI drivers: attach limits of nodes, remaining capacity, and provisioning for the first consumer.
//!
//! The test is the provisioner: after kube-scheduler has selected a node for a claim, it creates the volume, or deletes pod and
//! claim again.

use agentaflow_kube_core::slim::{PersistentVolumeClaim, Pod};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::judge::{Sight, owner};
use crate::nodes::Keys;
use crate::support::{NodePlan, PodPlan, Share, wait_for};
use crate::{TRIES, Verdict, disagreement, number, verdict};

const NODES: usize = 6;
/// Claims with a volume from the beginning.
const DISKS: usize = 24;
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_scheduler_and_the_engine_agree_on_volumes_of_csi_drivers() {
    let seed = number("AGENTAFLOW_TEST_SEED").unwrap_or(1);
    let is_full = std::env::var_os("AGENTAFLOW_TEST_FULL").is_some();
    let turns = if is_full { 240 } else { 60 };
    let mut hunt = Hunt::begin(Dice(seed)).await;
    for turn in 0..turns {
        hunt.turn(turn).await;
    }
    let Hunt { selected, unschedulable, provisioned, disagreements: found, .. } = hunt;
    println!("selected {selected}, unschedulable {unschedulable}, provisioned {provisioned}");
    assert!(found.is_empty(), "seed {seed}: {} disagreements\n{}", found.len(), found.join("\n"));
    let least = turns / 6;
    assert!(selected >= least, "too few pods had a place to mean anything");
    assert!(unschedulable >= least, "too few pods had no place to mean anything");
    assert!(provisioned >= turns / 12, "too few volumes were provisioned to mean anything");
}

struct Hunt {
    share: Share,
    dice: Dice,
    keys: Keys,
    nodes: Vec<String>,
    made: u32,
    /// Bound pods that stay, with their disks.
    kept: Vec<(String, Vec<usize>)>,
    selected: u32,
    unschedulable: u32,
    provisioned: u32,
    disagreements: Vec<String>,
}

/// Driver that limits the volumes of a node.
fn limited(share: &Share) -> String {
    format!("limited-{}.example.com", share.id)
}

/// Driver that reports its remaining capacity.
fn measured(share: &Share) -> String {
    format!("measured-{}.example.com", share.id)
}

fn class(share: &Share, name: &str) -> String {
    format!("{}-{name}", share.id)
}

impl Hunt {
    async fn begin(mut dice: Dice) -> Self {
        let share = Share::new().await;
        let keys = Keys::of(&share);
        let mut nodes = Vec::new();
        for number in 0..NODES {
            let (short, zone) = (format!("n{number}"), ["a", "b", "c"][number % 3]);
            let name = share.node_name(&short);
            let plan = NodePlan::plain().label(&keys.host, &name).label(&keys.zone, zone);
            share.node(&short, &plan.amount("pods", "8")).await;
            limit_volumes(&share, &mut dice, &name).await;
            nodes.push(name);
        }
        for (driver, capacity) in [(limited(&share), false), (measured(&share), true)] {
            let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                "metadata": {"name": driver}, "spec": {"storageCapacity": capacity}});
            share.apply_object(object).await;
        }
        let in_a = json!([{"matchLabelExpressions": [{"key": keys.zone, "values": ["a"]}]}]);
        for (name, driver, topology) in [
            ("anywhere", limited(&share), Value::Null),
            ("in-a", limited(&share), in_a),
            ("measured", measured(&share), Value::Null),
        ] {
            let mut object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": class(&share, name)}, "provisioner": driver,
                "volumeBindingMode": "WaitForFirstConsumer"});
            if !topology.is_null() {
                object["allowedTopologies"] = topology;
            }
            share.apply_object(object).await;
        }
        disks(&share, &mut dice, &keys).await;
        let mut hunt = Self {
            share,
            dice,
            keys,
            nodes,
            made: 0,
            kept: Vec::new(),
            selected: 0,
            unschedulable: 0,
            provisioned: 0,
            disagreements: Vec::new(),
        };
        for topology in 0..4 {
            hunt.report_capacity(topology).await;
        }
        hunt
    }

    async fn turn(&mut self, turn: u32) {
        if self.dice.chance(25) {
            let topology = self.dice.below(4);
            self.report_capacity(topology).await;
        }
        if !self.kept.is_empty() && self.dice.chance(30) {
            let (name, _) = self.kept.remove(self.dice.below(self.kept.len()));
            self.remove_pod(&name).await;
        }
        let wanted = self.claims();
        let mut trouble = None;
        for _ in 0..TRIES {
            self.made += 1;
            let (name, claims) = self.create_claims(&wanted).await;
            let before = Sight::take(&self.share).await;
            let created = self.create_pod(&name, &claims).await;
            let verdict = self.verdict(&name, &claims).await;
            trouble = disagreement(&before, &created, &verdict);
            let settled = trouble.is_none();
            match &verdict {
                Verdict::Bound(node) if settled && self.dice.chance(60) => {
                    self.provision(&claims, node).await;
                    self.share.bound(&name).await;
                    let disks = wanted.iter().filter_map(Wanted::disk).collect();
                    self.kept.push((name, disks));
                }
                _ => self.remove_pod(&name).await,
            }
            if settled {
                self.selected += u32::from(matches!(verdict, Verdict::Bound(_)));
                self.unschedulable += u32::from(matches!(verdict, Verdict::Unschedulable(_)));
                return;
            }
        }
        let trouble = trouble.unwrap_or_default();
        self.disagreements.push(format!("turn {turn}, claims {wanted:?}\n{trouble}\n"));
    }

    /// One to three claims: of free disks, or of a class and a size. A disk of several pods on a node counts once for
    /// kube-scheduler and once for each pod in the engine.
    fn claims(&mut self) -> Vec<Wanted> {
        let used = |disk: &usize| self.kept.iter().any(|(_, disks)| disks.contains(disk));
        let free: Vec<usize> = (0..DISKS).filter(|disk| !used(disk)).collect();
        let dice = &mut self.dice;
        let count = dice.between(1, 3);
        let claim = |_| match dice.below(5) {
            0 | 1 => Wanted::Disk(dice.pick(&free)),
            2 => Wanted::New("anywhere", 1),
            3 => Wanted::New("in-a", 1),
            _ => Wanted::New("measured", dice.between(1, 6)),
        };
        (0..count).map(claim).collect()
    }

    /// Creates new claims; returns the name of the pod and the names of its claims.
    async fn create_claims(&self, wanted: &[Wanted]) -> (String, Vec<String>) {
        let pod = format!("p{}", self.made);
        let mut names = Vec::new();
        for (index, one) in wanted.iter().enumerate() {
            let name = match one {
                Wanted::Disk(number) => format!("disk-{number}"),
                Wanted::New(kind, size) => {
                    let name = format!("{pod}-{index}");
                    let class = class(&self.share, kind);
                    claim(&self.share, &name, &class, "ReadWriteOnce", *size).await;
                    name
                }
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        (pod, names)
    }

    async fn create_pod(&self, name: &str, claims: &[String]) -> Pod {
        let volume = |(index, claim): (usize, &String)| json!({"name": format!("v{index}"), "persistentVolumeClaim": {"claimName": claim}});
        let volumes: Value = claims.iter().enumerate().map(volume).collect();
        let (key, value) = owner(&self.share);
        let plan = PodPlan::new(name).spec("volumes", volumes);
        let plan = plan.label(&key, value.as_str().unwrap_or_default());
        self.share.create_pod(&plan).await;
        self.share.api::<Pod>().get(name).await.expect("the pod")
    }

    /// The result of kube-scheduler: a selected node counts, because the pod is bound only after its volumes.
    async fn verdict(&self, name: &str, claims: &[String]) -> Verdict {
        let (pods, all) = (self.share.api::<Pod>(), self.share.api::<PersistentVolumeClaim>());
        wait_for("kube-scheduler decides", async || {
            let pod = pods.get(name).await.map_err(|error| error.to_string())?;
            if let Some(verdict) = verdict(&pod) {
                return Ok(verdict);
            }
            for claim in claims {
                let claim = all.get(claim).await.map_err(|error| error.to_string())?;
                let annotations = claim.metadata.annotations.unwrap_or_default();
                let is_new = claim.spec.volume_name.is_none();
                if let Some(node) = annotations.get(SELECTED_NODE).filter(|_| is_new) {
                    return Ok(Verdict::Bound(node.clone()));
                }
            }
            Err("undecided".to_owned())
        })
        .await
    }

    /// Creates the volumes of unbound claims on a node.
    async fn provision(&mut self, claims: &[String], node: &str) {
        let all = self.share.api::<PersistentVolumeClaim>();
        for name in claims {
            let claim = all.get(name).await.expect("the claim");
            if claim.spec.volume_name.is_some() {
                continue;
            }
            let class = claim.spec.storage_class_name.clone().unwrap_or_default();
            let is_measured = class.ends_with("measured");
            let driver = if is_measured { measured(&self.share) } else { limited(&self.share) };
            let size = claim.spec.resources.as_ref().and_then(|all| all.requests.clone());
            let reference = json!({"namespace": self.share.namespace, "name": name,
                "uid": claim.metadata.uid});
            let spec = json!({"storageClassName": class, "capacity": size, "claimRef": reference,
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": driver, "volumeHandle": name}});
            let place = Some((self.keys.host.as_str(), json!([node])));
            volume(&self.share, name, spec, place).await;
            self.provisioned += 1;
        }
    }

    async fn remove_pod(&self, name: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.share.api::<Pod>().delete(name, &now).await.expect("the pod is deleted");
    }

    /// Replaces the remaining capacity of one topology: three zones and the first node.
    async fn report_capacity(&mut self, topology: usize) {
        let (key, value) = match topology {
            0..3 => (self.keys.zone.as_str(), ["a", "b", "c"][topology]),
            _ => (self.keys.host.as_str(), self.nodes[0].as_str()),
        };
        let labels = json!({key: value});
        let capacity = format!("{}Gi", self.dice.between(0, 6));
        let mut object = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": format!("capacity-{topology}")},
            "storageClassName": class(&self.share, "measured"),
            "capacity": capacity,
            "nodeTopology": {"matchLabels": labels},
        });
        if self.dice.chance(30) {
            object["maximumVolumeSize"] = json!("2Gi");
        }
        self.share.apply_object(object).await;
    }
}

/// A claim of a random pod.
#[derive(Debug)]
enum Wanted {
    Disk(usize),
    /// Class, and size in GiB.
    New(&'static str, usize),
}

impl Wanted {
    fn disk(&self) -> Option<usize> {
        match self {
            Self::Disk(number) => Some(*number),
            Self::New(..) => None,
        }
    }
}

/// Zero to three volumes of the limited driver; sometimes the driver has no limit, or is not on the node.
async fn limit_volumes(share: &Share, dice: &mut Dice, node: &str) {
    let driver = |name: String, limit: Option<usize>| {
        let mut driver = json!({"name": name, "nodeID": node, "topologyKeys": []});
        if let Some(limit) = limit {
            driver["allocatable"] = json!({"count": limit});
        }
        driver
    };
    let mut drivers = vec![driver(measured(share), None)];
    if dice.chance(85) {
        let limit = dice.chance(85).then(|| dice.between(0, 3));
        drivers.push(driver(limited(share), limit));
    }
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": node}, "spec": {"drivers": drivers}});
    share.apply_object(object).await;
}

/// Volumes of the limited driver with their claims: some in one zone.
async fn disks(share: &Share, dice: &mut Dice, keys: &Keys) {
    let class = class(share, "anywhere");
    for number in 0..DISKS {
        let name = format!("disk-{number}");
        let place = dice.chance(50).then(|| (keys.zone.as_str(), json!([dice.pick(&["a", "b"])])));
        let spec = json!({"storageClassName": class, "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "claimRef": {"namespace": share.namespace, "name": name},
            "csi": {"driver": limited(share), "volumeHandle": name}});
        volume(share, &name, spec, place).await;
        claim(share, &name, &class, "ReadWriteMany", 1).await;
    }
    let claims = share.api::<PersistentVolumeClaim>();
    wait_for("the disks are bound", async || {
        let all = claims.list(&kube::api::ListParams::default()).await;
        let all = all.map_err(|error| error.to_string())?.items;
        let is_bound = |one: &&PersistentVolumeClaim| one.status.phase.as_deref() == Some("Bound");
        let bound = all.iter().filter(is_bound).count();
        if bound == DISKS { Ok(()) } else { Err(format!("{bound} of {DISKS}")) }
    })
    .await;
}

async fn claim(share: &Share, name: &str, class: &str, mode: &str, size: usize) {
    let (key, value) = owner(share);
    let object = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {key: value}},
        "spec": {
            "storageClassName": class,
            "accessModes": [mode],
            "resources": {"requests": {"storage": format!("{size}Gi")}},
        },
    });
    share.apply_object(object).await;
}

async fn volume(share: &Share, name: &str, mut spec: Value, place: Option<(&str, Value)>) {
    if let Some((key, values)) = place {
        let terms =
            json!([{"matchExpressions": [{"key": key, "operator": "In", "values": values}]}]);
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    }
    let name = format!("{}-{name}", share.id);
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec,
    });
    share.apply_object(object).await;
}

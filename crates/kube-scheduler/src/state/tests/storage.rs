//! Claims of a binding in the fake API server: the executor, a provisioner of zonal volumes, and the volume controller.

use agentaflow_kube_core::translate::{self, SELECTED_NODE};
use serde_json::{Value, json};

use super::fake_server::{Kind, Server, read};
use crate::state::{Bind, ClaimAction, Key};

/// Zone label of nodes.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// Node affinity to this label value.
pub(super) fn only_on(label: &str, value: &Value) -> Value {
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": label, "operator": "In", "values": [value]}]}]}})
}

impl Server {
    /// Binds the claims of a pod as [`bind::claims`](crate::driver) does.
    pub(super) fn bind_claims(&mut self, bind: &Bind) -> Result<(), String> {
        if bind.claims.is_empty() {
            return Ok(());
        }
        for (claim, act) in &bind.claims {
            let found = self.get(Kind::Claim, claim).ok_or("the claim is gone")?.clone();
            let volume = match act {
                _ if found["spec"]["volumeName"].is_string() => continue,
                ClaimAction::Volume(volume) => volume.clone(),
                ClaimAction::Provision(node) => self.make_volume(claim, &found, node)?,
            };
            self.give(&volume, claim)?;
        }
        let node = self.get(Kind::Node, &Key::new("", &bind.node)).ok_or("the node is gone")?;
        let labels = translate::labels(Some(&read(&node["metadata"]["labels"])));
        for (claim, _) in &bind.claims {
            let name = self.volume_of(claim).unwrap_or_default();
            let volume = self.get(Kind::Volume, &Key::new("", name)).ok_or("no volume")?;
            if !translate::reaches(&read(volume), &bind.node, &labels) {
                return Err("the node does not reach its volume".to_owned());
            }
        }
        Ok(())
    }

    /// The volume of a claim.
    pub(super) fn volume_of(&self, claim: &Key) -> Option<&str> {
        self.get(Kind::Claim, claim)?["spec"]["volumeName"].as_str()
    }

    fn make_volume(&mut self, claim: &Key, found: &Value, node: &str) -> Result<String, String> {
        let chosen = found["metadata"]["annotations"][SELECTED_NODE].as_str();
        if chosen.is_some_and(|chosen| chosen != node) {
            return Err("its volume is being made for another node".to_owned());
        }
        let zone = self.get(Kind::Node, &Key::new("", node)).ok_or("the node is gone")?;
        let zone = zone["metadata"]["labels"][ZONE].clone();
        let name = format!("made-{}", claim.name);
        self.put(
            Kind::Volume,
            json!({"metadata": {"name": name}, "spec": {"nodeAffinity": only_on(ZONE, &zone),
                "storageClassName": found["spec"]["storageClassName"]}}),
        );
        self.change(Kind::Claim, claim, |claim| {
            claim["metadata"]["annotations"][SELECTED_NODE] = json!(node);
        });
        Ok(name)
    }

    fn give(&mut self, volume: &str, claim: &Key) -> Result<(), String> {
        let key = Key::new("", volume);
        let found = self.get(Kind::Volume, &key).ok_or("the volume is gone")?;
        let holder = found["spec"]["claimRef"]["name"].as_str();
        if holder.is_some_and(|holder| *holder != *claim.name) {
            return Err("the volume was given to another claim".to_owned());
        }
        self.change(Kind::Volume, &key, |found| {
            found["spec"]["claimRef"] =
                json!({"namespace": &*claim.namespace, "name": &*claim.name});
            found["status"]["phase"] = json!("Bound");
        });
        self.change(Kind::Claim, claim, |found| {
            found["spec"]["volumeName"] = json!(volume);
            found["status"]["phase"] = json!("Bound");
            found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        });
        Ok(())
    }
}

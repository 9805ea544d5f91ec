//! Disks that pods use without a claim, as tokens: a disk mounted for writing is exclusive on its node.

use agentaflow_engine::{TokenAccess, TokenName};
use std::collections::BTreeMap;

use crate::slim::{InlineDisk, Pod, Volume};

pub(super) fn tokens(pod: &Pod) -> BTreeMap<TokenName, TokenAccess> {
    let mut tokens = BTreeMap::new();
    for volume in pod.spec.volumes.iter().flatten() {
        for (name, usage) in disks(volume) {
            // One writer makes the use exclusive.
            let known = tokens.entry(TokenName::from(name)).or_insert(usage);
            *known = (*known).min(usage);
        }
    }
    tokens
}

fn disks(volume: &Volume) -> Vec<(String, TokenAccess)> {
    let usage = |disk: &InlineDisk| match disk.read_only {
        Some(true) => TokenAccess::Shared,
        _ => TokenAccess::Exclusive,
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut disks = Vec::new();
    if let Some(disk) = &volume.iscsi {
        disks.push((format!("disk/iscsi/{}", text(&disk.iqn)), usage(disk)));
    }
    if let Some(disk) = &volume.gce_persistent_disk {
        disks.push((format!("disk/gce/{}", text(&disk.pd_name)), usage(disk)));
    }
    if let Some(disk) = &volume.aws_elastic_block_store {
        disks.push((format!("disk/aws/{}", text(&disk.volume_id)), TokenAccess::Exclusive));
    }
    if let Some(disk) = &volume.rbd {
        let pool = disk.pool.as_deref().unwrap_or("rbd");
        // Clusters with a common monitor are one cluster.
        for monitor in disk.monitors.iter().flatten() {
            disks.push((format!("disk/rbd/{monitor}/{pool}/{}", text(&disk.image)), usage(disk)));
        }
    }
    disks
}

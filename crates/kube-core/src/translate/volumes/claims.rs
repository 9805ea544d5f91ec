//! Node requirements of a pod's claims.

use agentaflow_engine::labels::{NameExpr, NameOp, NodeTerm};
use agentaflow_engine::{ResourceName, TokenAccess, TokenName};
use std::collections::{BTreeMap, BTreeSet};

use super::super::Obstacle;
use super::super::places::{Places, TooMany};
use super::super::terms::namespace;
use super::{Volumes, counted, matching, together};
use crate::slim::{PersistentVolumeClaim, Pod, StorageClass};

/// Access mode of volumes for a single pod.
const ONE_POD: &str = "ReadWriteOncePod";

/// Claim with delayed binding: its volume is chosen for the node and must be bound before the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimToBind {
    pub namespace: String,
    pub name: String,
    pub how: ClaimBinding,
    /// Counted volumes: static volumes of which it takes one on its node.
    pub takes: Vec<ResourceName>,
}

/// Source of a claim's volume once the node is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimBinding {
    /// An existing volume ([`Volumes::volume_for`]) is preferred; otherwise a provisioner creates one after the claim
    /// gets the annotation [`SELECTED_NODE`](super::SELECTED_NODE).
    Provision,
    /// Existing volumes only.
    Static,
}

/// Node requirements of a pod's claims.
#[derive(Debug)]
pub(in super::super) struct PodClaims {
    /// Nodes of all its volumes.
    pub(in super::super) places: Places,
    /// Claims that wait for the node.
    pub(in super::super) binds: Vec<ClaimToBind>,
    /// Claims that only one pod may use.
    pub(in super::super) tokens: BTreeMap<TokenName, TokenAccess>,
    /// Volumes to be attached, by driver.
    pub(in super::super) attached: BTreeMap<ResourceName, u64>,
}

/// Claims of a pod; the second part is true for ephemeral claims of this pod.
pub(in super::super) fn claim_names(pod: &Pod) -> BTreeSet<(String, bool)> {
    let owner = pod.metadata.name.as_deref().unwrap_or_default();
    let name = |volume: &crate::slim::Volume| match &volume.persistent_volume_claim {
        Some(source) => Some((source.claim_name.clone(), false)),
        None => volume.ephemeral.map(|_| (format!("{owner}-{}", volume.name), true)),
    };
    pod.spec.volumes.iter().flatten().filter_map(name).collect()
}

/// Requirements of an unscheduled pod.
pub(in super::super) fn of_pod(pod: &Pod, volumes: &Volumes) -> Result<PodClaims, Obstacle> {
    let mut places = Places::ANYWHERE;
    let mut binds = Vec::new();
    let mut found = Vec::new();
    let mut to_match = Vec::new();
    let too_many = |TooMany| {
        let reason = "its volumes are in too many different places".to_owned();
        Obstacle::Unsupported { field: "spec.volumes", reason }
    };
    for (name, own) in claim_names(pod) {
        let claim = usable(pod, volumes, &name, own)?;
        let (reachable, how) = reach(volumes, claim, &name)?;
        places = places.and(reachable).map_err(too_many)?;
        to_match.extend(how.filter(|how| *how == ClaimBinding::Static).map(|_| claim));
        let counts = |how| how == ClaimBinding::Static && !volumes.has_own(claim);
        let bind = |how| ClaimToBind {
            namespace: namespace(pod).to_owned(),
            name: name.clone(),
            how,
            takes: if counts(how) { counted::asked(claim) } else { Vec::new() },
        };
        binds.extend(how.map(bind));
        found.push(claim);
    }
    if to_match.len() > 1 {
        places = places.and(together::places(volumes, &to_match)).map_err(too_many)?;
    }
    let (tokens, attached) = held(&found, volumes);
    Ok(PodClaims { places, binds, tokens, attached })
}

/// Claims held by a running pod; unknown claims do not count.
pub(in super::super) fn taken_by(
    pod: &Pod,
    volumes: &Volumes,
) -> (BTreeMap<TokenName, TokenAccess>, BTreeMap<ResourceName, u64>) {
    let names = claim_names(pod);
    let known = names.iter().filter_map(|(name, _)| volumes.claim(namespace(pod), name));
    held(&known.collect::<Vec<_>>(), volumes)
}

/// The claim; an error if the pod may not use it.
fn usable<'a>(
    pod: &Pod,
    volumes: &'a Volumes,
    name: &str,
    own: bool,
) -> Result<&'a PersistentVolumeClaim, Obstacle> {
    let not_yet = |reason: &str| Obstacle::NotYet { reason: format!("claim `{name}` {reason}") };
    let claim = volumes.claim(namespace(pod), name).ok_or_else(|| not_yet("does not exist"))?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(not_yet("is being deleted"));
    }
    if claim.status.phase.as_deref() == Some("Lost") {
        return Err(not_yet("has lost its volume"));
    }
    if own && !is_owned(claim, pod) {
        return Err(not_yet("was not made for this pod, though its name is taken for it"));
    }
    Ok(claim)
}

fn is_owned(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    pod.metadata.uid.is_some()
        && controllers.any(|owner| Some(owner.uid.as_str()) == pod.metadata.uid.as_deref())
}

/// Nodes on which a claim is usable, and the binding left to do.
fn reach(
    volumes: &Volumes,
    claim: &PersistentVolumeClaim,
    name: &str,
) -> Result<(Places, Option<ClaimBinding>), Obstacle> {
    let not_yet = |reason: String| Obstacle::NotYet { reason: format!("claim `{name}` {reason}") };
    if let Some(volume) = super::bound_volume(claim) {
        if !super::is_bound(claim) {
            return Err(not_yet(format!("waits for its volume `{volume}`")));
        }
        let found = volumes.volume(volume);
        let found = found
            .ok_or_else(|| not_yet(format!("has the volume `{volume}`, which does not exist")))?;
        let reachable = matching::reachable(found)
            .map_err(|why| not_yet(format!("cannot be placed: {why}")))?;
        let both = reachable.and(matching::in_zone(found));
        let both = both.map_err(|TooMany| not_yet("has a volume in too many places".to_owned()))?;
        return Ok((both, None));
    }
    let class =
        volumes.class(super::class_of_claim(claim)).filter(|class| waits_for_consumer(class));
    let class = class.ok_or_else(|| not_yet("waits for its volume to be bound".to_owned()))?;
    let how =
        if matching::provisions(class) { ClaimBinding::Provision } else { ClaimBinding::Static };
    let places = to_be_bound(volumes, claim, class)
        .map_err(|TooMany| not_yet("could have its volume in too many places".to_owned()))?;
    match how {
        _ if places != Places::NOWHERE => Ok((places, Some(how))),
        ClaimBinding::Static => Err(not_yet(
            "waits for a volume: none matches, and no provisioner creates one".to_owned(),
        )),
        // New nodes may add storage.
        ClaimBinding::Provision => {
            let reason = format!("claim `{name}` waits for storage: nowhere is enough of it left");
            Err(Obstacle::NoStorage { reason })
        }
    }
}

/// Nodes on which an unbound claim can get a volume.
fn to_be_bound(
    volumes: &Volumes,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<Places, TooMany> {
    if let Some(node) = super::selected_node(claim) {
        // A volume is being provisioned there; the provisioner removes the annotation on failure.
        let names = vec![NameExpr::new(NameOp::In, [node])];
        return Ok(Places::any_of(vec![NodeTerm { exprs: Vec::new(), names }]));
    }
    let reachable = |volume| matching::reachable(volume).unwrap_or(Places::NOWHERE);
    let there = matching::candidates(volumes, claim).into_iter().map(reachable);
    let made = matching::provisionable(class).and(volumes.capacities.places(class, claim))?;
    Ok(Places::union(there.chain([made])))
}

fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

fn held(
    claims: &[&PersistentVolumeClaim],
    volumes: &Volumes,
) -> (BTreeMap<TokenName, TokenAccess>, BTreeMap<ResourceName, u64>) {
    let mut tokens = BTreeMap::new();
    let mut attached: BTreeMap<ResourceName, u64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for claim in claims {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        if claim.spec.access_modes.iter().flatten().any(|mode| mode == ONE_POD) {
            tokens.insert(format!("claim/{namespace}/{name}").into(), TokenAccess::OneTask);
        }
        let Some((driver, handle)) = driver(claim, volumes) else { continue };
        if volumes.is_limited(driver) && seen.insert((driver, handle)) {
            *attached.entry(super::attachments(driver)).or_default() += 1;
        }
    }
    (tokens, attached)
}

/// Driver of a claim and the key of its volume; for an unbound claim, the driver of its class.
fn driver<'a>(
    claim: &'a PersistentVolumeClaim,
    volumes: &'a Volumes,
) -> Option<(&'a str, &'a str)> {
    if let Some(volume) = super::bound_volume(claim).and_then(|name| volumes.volume(name)) {
        let csi = volume.spec.csi.as_ref()?;
        return Some((&csi.driver, &csi.volume_handle));
    }
    let class = volumes.class(super::class_of_claim(claim))?;
    Some((&class.provisioner, claim.metadata.name.as_deref()?))
}

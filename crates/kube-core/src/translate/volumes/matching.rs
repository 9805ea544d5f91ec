//! Matching of volumes, claims and nodes.

use agentaflow_engine::labels::{Expr, NodeTerm, Op};
use agentaflow_units::Amount;
use k8s_openapi::api::core::v1::TopologySelectorTerm;

use super::super::places::Places;
use super::super::selector::{labels, node_terms, selector};
use super::{Volumes, class_of_claim};
use crate::slim::{PersistentVolume, PersistentVolumeClaim, StorageClass};

/// Location labels of volumes, and the current node label that replaces an old one.
const ZONES: [(&str, Option<&str>); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", Some("topology.kubernetes.io/zone")),
    ("failure-domain.beta.kubernetes.io/region", Some("topology.kubernetes.io/region")),
    ("topology.kubernetes.io/zone", None),
    ("topology.kubernetes.io/region", None),
];

/// Provisioner of classes with static volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Candidate volumes for an unbound claim: the pre-bound one, else all free matches.
pub(super) fn candidates<'a>(
    volumes: &'a Volumes,
    claim: &PersistentVolumeClaim,
) -> Vec<&'a PersistentVolume> {
    if claim.spec.selector.as_ref().is_some_and(|wanted| selector(wanted).is_err()) {
        return Vec::new();
    }
    let of_class = || volumes.of_class(class_of_claim(claim));
    if let Some(own) = of_class().find(|volume| is_set_aside(volume, claim)) {
        return vec![own];
    }
    of_class().filter(|volume| is_free(volume) && serves(volume, claim)).collect()
}

/// True if a volume is pre-bound to this claim and usable.
pub(super) fn is_set_aside(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    is_reserved_for(volume, claim) && is_large_and_alike(volume, claim)
}

pub(super) fn is_free(volume: &PersistentVolume) -> bool {
    volume.spec.claim_ref.is_none()
        && volume.status.phase.as_deref() == Some("Available")
        && volume.metadata.deletion_timestamp.is_none()
}

/// True if a free volume matches a claim.
pub(super) fn serves(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let wanted = claim.spec.selector.as_ref().map(selector).transpose();
    let picked = wanted.is_ok_and(|wanted| {
        wanted.is_none_or(|wanted| wanted.matches(&labels(volume.metadata.labels.as_ref())))
    });
    picked && serves_modes(volume, claim) && is_large_and_alike(volume, claim)
}

/// Nodes with access to a volume.
pub(super) fn reachable(volume: &PersistentVolume) -> Result<Places, String> {
    let affinity =
        volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    affinity.map_or(Ok(Places::ANYWHERE), |terms| Ok(Places::any_of(node_terms(terms)?)))
}

/// Nodes in the zone of a volume, by its labels. A node without zone labels is in every zone.
pub(super) fn in_zone(volume: &PersistentVolume) -> Places {
    let mut inside = Places::ANYWHERE;
    for (key, newer) in ZONES {
        let label = volume.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        let Some(values) = label.and_then(|label| zones(label)) else { continue };
        let mut terms =
            vec![NodeTerm { exprs: vec![Expr::new(key, Op::In, values.clone())], names: vec![] }];
        if let Some(newer) = newer {
            let exprs =
                vec![Expr::new(key, Op::DoesNotExist, [""; 0]), Expr::new(newer, Op::In, values)];
            terms.push(NodeTerm { exprs, names: vec![] });
        }
        // Four labels give at most sixteen alternatives.
        inside = inside.and(Places::any_of(terms)).unwrap_or(Places::NOWHERE);
    }
    if inside == Places::ANYWHERE {
        return inside;
    }
    let exprs = ZONES.map(|(key, _)| Expr::new(key, Op::DoesNotExist, [""; 0]));
    let nowhere = Places::any_of(vec![NodeTerm { exprs: exprs.into(), names: vec![] }]);
    Places::union([inside, nowhere])
}

/// Nodes for which a class can provision; none for static classes.
pub(super) fn provisionable(class: &StorageClass) -> Places {
    if !provisions(class) {
        return Places::NOWHERE;
    }
    match class.allowed_topologies.as_deref() {
        None | Some([]) => Places::ANYWHERE,
        Some(terms) => Places::any_of(terms.iter().map(topology).collect()),
    }
}

/// True for dynamic provisioning.
pub(super) fn provisions(class: &StorageClass) -> bool {
    !class.provisioner.is_empty() && class.provisioner != NO_PROVISIONER
}

/// Size of a volume; 0 if invalid.
pub(super) fn size(volume: &PersistentVolume) -> Amount {
    let size = volume.spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
    size.and_then(|size| Amount::parse(&size.0).ok()).unwrap_or_default()
}

/// True if a volume is pre-bound to this claim.
fn is_reserved_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reserved) = &volume.spec.claim_ref else { return false };
    let uid = reserved.uid.as_deref().filter(|uid| !uid.is_empty());
    reserved.name == claim.metadata.name
        && reserved.namespace == claim.metadata.namespace
        && uid.is_none_or(|uid| claim.metadata.uid.as_deref() == Some(uid))
}

/// Conditions that also apply to a pre-bound volume.
fn is_large_and_alike(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let requests = claim.spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let asked = requests.and_then(|requests| requests.get("storage"));
    let Ok(asked) = asked.map_or(Ok(Amount::default()), |asked| Amount::parse(&asked.0)) else {
        return false;
    };
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let attributes = |class: &Option<String>| class.clone().unwrap_or_default();
    size(volume) >= asked
        && mode(&volume.spec.volume_mode) == mode(&claim.spec.volume_mode)
        && attributes(&volume.spec.volume_attributes_class_name)
            == attributes(&claim.spec.volume_attributes_class_name)
        && volume.metadata.deletion_timestamp.is_none()
}

fn serves_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered: Vec<_> = volume.spec.access_modes.iter().flatten().collect();
    claim.spec.access_modes.iter().flatten().all(|mode| offered.contains(&mode))
}

fn topology(term: &TopologySelectorTerm) -> NodeTerm {
    let exprs = term.match_label_expressions.iter().flatten().map(|wanted| {
        Expr::new(wanted.key.as_str(), Op::In, wanted.values.iter().map(String::as_str))
    });
    NodeTerm { exprs: exprs.collect(), names: Vec::new() }
}

/// Zones of a label, separated by two underscores.
fn zones(label: &str) -> Option<Vec<&str>> {
    let zones: Vec<_> = label.split("__").map(str::trim).collect();
    zones.iter().all(|zone| !zone.is_empty()).then_some(zones)
}

//! The pods of a unit as its templates describe them, and the gang that a pod of a unit belongs to.

use agentaflow_engine::WorkloadId;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::unit::{OptIn, PodSet};

use super::membership::{Lookup, MAX_GANG, Membership, Traits};
use super::parked::Parked;
use super::unit_table::{PodUnit, Unit};

/// The pods of a job that this scheduler places.
pub(super) struct UnitPods {
    pub(super) count: u32,
    pub(super) traits: Traits,
    /// Templates with their number of pods.
    pub(super) sets: Vec<(u32, Pod)>,
}

impl Lookup<'_> {
    /// The gang of a pod that belongs to a unit.
    pub(super) fn unit_membership(&self, pod: &Pod) -> Result<Option<Membership>, Parked> {
        if let Some((id, min_members)) = self.units.worker_group(pod) {
            let traits = self.traits(pod, &self.annotations(pod))?;
            let (workload, detached_from) = (None, None);
            return Ok(Some(Membership { id, workload, detached_from, min_members, traits }));
        }
        let PodUnit::Of(id) = self.units.of_pod(pod) else { return Ok(None) };
        let Some(pods) = self.unit_pods(id)? else { return Ok(None) };
        Ok(Some(Membership {
            id: id.clone(),
            workload: None,
            detached_from: None,
            min_members: pods.count,
            traits: pods.traits,
        }))
    }

    /// Pods of a unit; none if the job is not a unit of this scheduler.
    pub(super) fn unit_pods(&self, id: &WorkloadId) -> Result<Option<UnitPods>, Parked> {
        let Some(unit) = self.units.root(id) else { return Ok(None) };
        let spec = self.units.spec(unit);
        let own = self.opt_in().own_sets(&unit.object, &spec);
        let Some(first) = own.first().filter(|_| spec.exception.is_none()) else {
            return Ok(None);
        };
        let count = own.iter().fold(0_u32, |sum, set| sum.saturating_add(set.count));
        if count > MAX_GANG {
            let why = format!("{count} pods, more than {MAX_GANG} that can start together");
            return Err(Parked::InvalidSpec(why));
        }
        let first = self.template_pod(unit, first);
        let annotations = first.metadata.annotations.clone().unwrap_or_default();
        let mut traits = self.traits(&first, &annotations)?;
        traits.submitted = unit.created().unwrap_or(traits.submitted);
        let sets = own.iter().map(|set| (set.count, self.template_pod(unit, set))).collect();
        Ok(Some(UnitPods { count, traits, sets }))
    }

    /// A spec that cannot be a unit although it is opted in.
    pub(super) fn unit_exception(&self, unit: &Unit) -> Option<String> {
        let spec = self.units.spec(unit);
        let own = self.opt_in().own_sets(&unit.object, &spec);
        spec.exception.clone().filter(|_| !own.is_empty())
    }

    /// Only templates with the scheduler's name: the webhook adds it to a new job that is opted in. A job that existed
    /// before its namespace was opted in runs on with its scheduler.
    pub(super) fn opt_in(&self) -> OptIn<'_> {
        let scheduler = &self.settings.scheduler_name;
        OptIn { scheduler, admission: false, namespace: false, kueue: self.settings.kueue }
    }

    /// The pod that the controller creates from a template, as far as scheduling reads it.
    fn template_pod(&self, unit: &Unit, set: &PodSet) -> Pod {
        let mut pod = set.template.clone();
        let meta = &unit.object.metadata;
        pod.metadata.namespace = Some(unit.key.namespace.to_string());
        pod.metadata.creation_timestamp.clone_from(&meta.creation_timestamp);
        let labels = pod.metadata.labels.get_or_insert_default();
        for name in [names::QUEUE, names::KUEUE_QUEUE] {
            if let Some(queue) = meta.labels.as_ref().and_then(|labels| labels.get(name)) {
                labels.entry(name.to_owned()).or_insert_with(|| queue.clone());
            }
        }
        let annotations = pod.metadata.annotations.get_or_insert_default();
        for (name, value) in meta.annotations.iter().flatten() {
            if names::INHERITED.contains(&name.as_str()) {
                annotations.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        let annotations = annotations.clone();
        self.admit(&mut pod, &annotations);
        // The claim of an ephemeral volume is created with its pod.
        if let Some(volumes) = &mut pod.spec.volumes {
            volumes.retain(|volume| volume.ephemeral.is_none());
        }
        pod
    }
}

//! GPU usage of pods: processes on GPUs → control groups → pods. Pure except [`pod_of_process`].

use std::collections::BTreeMap;
use std::path::Path;

use agentaflow_gpu::{DeviceProcess, ProcessLoad};

use super::cgroup;
use super::observation::{Allocation, PodName};

/// GPU usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// MiB.
    pub(super) memory: u64,
    /// Percent; none if the driver does not report it.
    pub(super) utilization: Option<u32>,
}

/// Usage by pod and by GPU or MIG slice.
pub(super) type PodUse = BTreeMap<(PodName, String), Use>;

/// UID of the pod of a host process; `None` if the process ended or belongs to no pod.
pub(super) fn pod_of_process(proc: &Path, pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
    cgroup::pod_uid(&text)
}

/// Sums the usage of processes by pod.
pub(super) fn by_pod(
    processes: &[DeviceProcess],
    loads: &[ProcessLoad],
    pod_of: impl Fn(u32) -> Option<String>,
    pods: &BTreeMap<String, PodName>,
) -> PodUse {
    let mut used = PodUse::new();
    let owner = |pid| pods.get(&pod_of(pid)?).cloned();
    for process in processes {
        let Some(pod) = owner(process.pid) else { continue };
        let each = used.entry((pod, process.uuid.clone())).or_default();
        each.memory = each.memory.saturating_add(process.memory);
    }
    for load in loads {
        let Some(pod) = owner(load.pid) else { continue };
        let each = used.entry((pod, load.uuid.clone())).or_default();
        let sum = each.utilization.unwrap_or(0).saturating_add(load.utilization);
        each.utilization = Some(sum.min(100));
    }
    used
}

/// Devices of pods derived from their processes, for kubelets that do not report them.
pub(super) fn holders(used: &PodUse) -> Vec<Allocation> {
    let each = used.keys().map(|(pod, id)| Allocation { pod: pod.clone(), ids: vec![id.clone()] });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodName {
        PodName { namespace: "ml".into(), name: name.into() }
    }

    #[test]
    fn processes_of_pods_are_counted_and_processes_of_the_host_are_not() {
        let process = |pid, uuid: &str, memory| DeviceProcess { uuid: uuid.into(), pid, memory };
        let processes = [
            process(1, "GPU-a", 100),
            process(2, "GPU-a", 50),
            process(3, "GPU-a", 7),
            process(4, "GPU-b", 9),
        ];
        let load = |pid, utilization| ProcessLoad { uuid: "GPU-a".into(), pid, utilization };
        let pod_of = |pid| match pid {
            1 | 2 => Some("uid-1".to_owned()),
            3 => Some("uid-without-pod".to_owned()),
            _ => None,
        };
        let pods = BTreeMap::from([("uid-1".to_owned(), pod("train"))]);
        let used = by_pod(&processes, &[load(1, 60), load(2, 70), load(4, 9)], pod_of, &pods);
        let expected = Use { memory: 150, utilization: Some(100) };
        assert_eq!(used, PodUse::from([((pod("train"), "GPU-a".to_owned()), expected)]));
        assert_eq!(holders(&used), [Allocation { pod: pod("train"), ids: vec!["GPU-a".into()] }]);
    }

    #[test]
    fn an_ended_process_has_no_owner() {
        let proc = tempfile::tempdir().unwrap();
        let uid = "2b801b7a-5c2d-4b1e-9f0e-7a3d1c5e9b42";
        std::fs::create_dir(proc.path().join("7")).unwrap();
        std::fs::write(proc.path().join("7/cgroup"), format!("0::/kubepods/pod{uid}/x\n")).unwrap();
        assert_eq!(pod_of_process(proc.path(), 7).as_deref(), Some(uid));
        assert_eq!(pod_of_process(proc.path(), 8), None);
    }
}

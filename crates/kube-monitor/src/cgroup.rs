//! Finds the pod of a process from its control groups. Pure.
//!
//! The kubelet names the group of a pod after its UID: `…/kubepods/burstable/pod<uid>/<container>` with the cgroupfs
//! driver, `…/kubepods-burstable-pod<uid with underscores>.slice/cri-containerd-<container>.scope` with systemd. The
//! runtime determines only the suffix, and nested clusters add a prefix.

/// The UID of the pod, from the text of `/proc/<pid>/cgroup` (versions 1, 2 and both at once).
pub(super) fn pod_uid(text: &str) -> Option<String> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(pod_of_path)
}

/// Outermost pod of a path: the pods of a nested cluster are unknown to this one.
fn pod_of_path(path: &str) -> Option<String> {
    let mut inside = false;
    for part in path.split('/') {
        inside |= part.starts_with("kubepods") || part.starts_with("kubelet-kubepods");
        if !inside {
            continue;
        }
        if let Some(uid) = uid_of_part(part) {
            return Some(uid);
        }
    }
    None
}

/// `pod<uid>` or `kubepods[-class]-pod<uid>.slice`.
fn uid_of_part(part: &str) -> Option<String> {
    // `<slice>:cri-containerd:<container>`, if runtime and kubelet use different drivers.
    let part = part.split_once(':').map_or(part, |(slice, _)| slice);
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match part.strip_prefix("pod") {
        Some(uid) => uid,
        None => part.split_once("-pod")?.1,
    };
    let uid = uid.replace('_', "-");
    // A UID of the API server is 8-4-4-4-12; static pods have 32 digits without dashes.
    let digits = uid.chars().filter(char::is_ascii_hexdigit).count();
    let clean = uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    (clean && digits == 32).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2b801b7a-5c2d-4b1e-9f0e-7a3d1c5e9b42";
    const UNDERSCORED: &str = "2b801b7a_5c2d_4b1e_9f0e_7a3d1c5e9b42";
    const STATIC: &str = "d39a2f7a7e4b6c0f8a1b2c3d4e5f6071";

    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(pod_uid(text).as_deref(), expected, "{text}");
    }

    #[test]
    fn a_process_is_found_in_its_pod_under_every_cgroup_driver() {
        let container = "4c6ad5ce0e2e4d5c8c4b8b4c1e5f6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5";
        for path in [
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{container}.scope"
            ),
            format!(
                "0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{container}.scope/container"
            ),
            format!("0::/kubepods/besteffort/pod{UID}/{container}"),
            format!("0::/kubepods/pod{UID}/{container}"),
            format!("12:devices:/kubepods/burstable/pod{UID}/{container}"),
            format!(
                "11:memory:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/docker-{container}.scope"
            ),
            format!(
                "3:cpu,cpuacct:/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{container}"
            ),
            format!(
                "1:name=systemd:/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UNDERSCORED}.slice/x"
            ),
            format!(
                "0::/docker/{container}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/x"
            ),
        ] {
            check(&path, Some(UID));
        }
        check(&format!("0::/kubepods/burstable/pod{STATIC}/x"), Some(STATIC));
    }

    #[test]
    fn a_process_of_the_host_belongs_to_no_pod() {
        for text in [
            "",
            "0::/",
            "0::/user.slice/user-1000.slice/session-1.scope",
            "0::/system.slice/docker-abc.scope",
            "0::/kubepods/besteffort",
            "0::/kubepods/podnot-a-uid/x",
            "0::/../../podman/pod2b801b7a-5c2d-4b1e-9f0e-7a3d1c5e9b42/x",
            "no colons at all",
        ] {
            check(text, None);
        }
    }
}

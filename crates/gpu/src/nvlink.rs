//! NVLink topology.

use std::collections::BTreeMap;

/// NVLink group of each GPU; none for a GPU without a peer.
///
/// `gpus` holds each GPU's PCI address and the remote addresses of its active links. A remote end is another GPU or a
/// switch; GPUs that reach the same switch are connected, so a host with an NVSwitch is one group.
pub(crate) fn groups(gpus: &[(String, Vec<String>)]) -> Vec<Option<u32>> {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for (bus, remotes) in gpus {
        for end in std::iter::once(bus).chain(remotes) {
            let next = ends.len();
            ends.entry(canonical(end)).or_insert(next);
        }
    }
    let mut parent: Vec<usize> = (0..ends.len()).collect();
    for (bus, remotes) in gpus {
        for remote in remotes {
            let (a, b) =
                (root(&parent, ends[&canonical(bus)]), root(&parent, ends[&canonical(remote)]));
            parent[a.max(b)] = a.min(b);
        }
    }
    let roots: Vec<usize> =
        gpus.iter().map(|(bus, _)| root(&parent, ends[&canonical(bus)])).collect();
    number(&roots)
}

/// Numbers groups of two and more by their first GPU.
fn number(roots: &[usize]) -> Vec<Option<u32>> {
    let mut numbers: Vec<usize> = Vec::new();
    roots
        .iter()
        .map(|root| {
            if roots.iter().filter(|other| *other == root).count() < 2 {
                return None;
            }
            let known = numbers.iter().position(|n| n == root).unwrap_or_else(|| {
                numbers.push(*root);
                numbers.len() - 1
            });
            Some(known as u32)
        })
        .collect()
}

fn root(parent: &[usize], mut node: usize) -> usize {
    while parent[node] != node {
        node = parent[node];
    }
    node
}

/// One spelling of a PCI address: NVML and the kernel write the domain with eight and with four digits.
pub(crate) fn canonical(bus: &str) -> String {
    let bus = bus.trim().to_ascii_lowercase();
    match bus.split_once(':') {
        Some((domain, rest)) if rest.contains(':') => {
            format!("{:0>4}:{rest}", domain.trim_start_matches('0'))
        }
        _ => bus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(gpus: &[(&str, &[&str])], expected: &[Option<u32>]) {
        let gpus: Vec<_> = gpus
            .iter()
            .map(|(bus, ends)| ((*bus).to_owned(), ends.iter().map(|e| (*e).to_owned()).collect()))
            .collect();
        assert_eq!(groups(&gpus), expected, "{gpus:?}");
    }

    #[test]
    fn gpus_without_links_are_in_no_group() {
        check(&[], &[]);
        check(&[("0:1:0.0", &[]), ("0:2:0.0", &[])], &[None, None]);
    }

    #[test]
    fn pairs_joined_by_bridges_are_groups_of_their_own() {
        let (a, b, c, d) =
            ("00000000:01:00.0", "00000000:02:00.0", "00000000:C1:00.0", "00000000:C2:00.0");
        check(
            &[(a, &["0000:02:00.0"]), (b, &["0000:01:00.0"]), (c, &["0000:c2:00.0"]), (d, &[])],
            &[Some(0), Some(0), Some(1), Some(1)],
        );
    }

    #[test]
    fn gpus_that_reach_the_same_switch_are_one_group() {
        check(
            &[
                ("0:1:0.0", &["0:f0:0.0", "0:f1:0.0"]),
                ("0:2:0.0", &["0:f1:0.0"]),
                ("0:3:0.0", &["0:f0:0.0"]),
            ],
            &[Some(0), Some(0), Some(0)],
        );
    }

    #[test]
    fn a_single_gpu_on_a_switch_has_no_links() {
        check(&[("0:1:0.0", &["0:f0:0.0"]), ("0:2:0.0", &[])], &[None, None]);
    }

    #[test]
    fn a_ring_is_one_group() {
        check(
            &[("0:1:0.0", &["0:2:0.0"]), ("0:2:0.0", &["0:3:0.0"]), ("0:3:0.0", &["0:1:0.0"])],
            &[Some(0), Some(0), Some(0)],
        );
    }
}

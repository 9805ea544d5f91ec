use super::*;

fn choose(cloud: Cloud, gpu: &str, gpus: u32, memory_mib: u64) -> Option<String> {
    let need = MachineRequirements {
        gpu: gpu_named(gpu).unwrap(),
        gpus,
        slices: None,
        cpu_milli: 0,
        memory_mib,
        spot: false,
    };
    let catalogue = Catalogue::built_in().unwrap();
    catalogue.choose(cloud, &need).map(|instance| instance.name.clone())
}

#[test]
fn the_cheapest_sufficient_machine_is_chosen() {
    for (cloud, gpu, gpus, memory, expected) in [
        (Cloud::Eks, "a100", 8, 0, Some("p4d.24xlarge")),
        (Cloud::Eks, "a100", 1, 0, Some("p4d.24xlarge")),
        (Cloud::Eks, "a100-80", 8, 0, Some("p4de.24xlarge")),
        (Cloud::Eks, "v100", 1, 0, Some("p3.2xlarge")),
        (Cloud::Eks, "v100", 2, 0, Some("p3.8xlarge")),
        (Cloud::Eks, "t4", 1, 16 << 10, Some("g4dn.2xlarge")),
        (Cloud::Eks, "h200", 8, 0, Some("p5en.48xlarge")),
        (Cloud::Gke, "a100", 8, 0, Some("a2-highgpu-8g")),
        (Cloud::Gke, "a100", 1, 100 << 10, Some("a2-ultragpu-1g")),
        (Cloud::Aks, "a100", 1, 0, Some("Standard_NC24ads_A100_v4")),
        (Cloud::Aks, "a100", 8, 0, Some("Standard_ND96asr_v4")),
        // Not sold on demand with fewer.
        (Cloud::Gke, "h100", 1, 0, Some("a3-highgpu-8g")),
        (Cloud::Gke, "l4", 1, 40 << 10, Some("g2-standard-12")),
        (Cloud::Eks, "b200", 8, 0, Some("p6-b200.48xlarge")),
        (Cloud::Gke, "b200", 8, 0, Some("a4-highgpu-8g")),
        // Retired.
        (Cloud::Aks, "v100", 1, 0, None),
        (Cloud::Eks, "a100", 9, 0, None),
        (Cloud::Gke, "a30", 1, 0, None),
    ] {
        let found = choose(cloud, gpu, gpus, memory);
        assert_eq!(found.as_deref(), expected, "{gpus} {gpu} on {cloud:?} with {memory} MiB");
    }
}

#[test]
fn every_price_has_a_day_and_no_instance_is_listed_twice() {
    let catalogue = Catalogue::built_in().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for instance in catalogue.instances() {
        assert!(instance.as_of.is_some(), "{}", instance.name);
        assert!(seen.insert((instance.cloud, &instance.name, &instance.gpu)), "{}", instance.name);
        let (cpu, memory) = instance.allocatable();
        assert!(cpu > 0 && cpu < u64::from(instance.vcpus) * 1000);
        assert!(memory > 0 && memory < u64::from(instance.memory_gib) * 1024);
    }
}

#[test]
fn machines_reserve_resources() {
    let catalogue = Catalogue::built_in().unwrap();
    // 4 vCPU and 16 GiB: a pod that requests all of them never fits.
    let small = catalogue.named("g4dn.xlarge", None).unwrap();
    assert_eq!(small.allocatable(), (3920, 16_384 - 327 - 255 - 11 * 29 - 100));
    let google = catalogue.named("g2-standard-4", None).unwrap();
    assert_eq!(google.allocatable(), (3920, 16_384 - 4 * 256 - 4 * 205 - 8 * 103 - 100));
    let azure = catalogue.named("Standard_NC4as_T4_v3", None).unwrap();
    assert_eq!(azure.allocatable(), (3860, 28_672 - 573 - 650 - 100));
}

#[test]
fn user_catalogues_override_the_built_in_one() {
    let own = "as-of: 2026-01-31\ninstances:\n- {cloud: eks, name: p4d.24xlarge, gpu: A100, gpus: 8, vcpus: 96, \
               memory-gib: 1152, on-demand: 20}\n- {cloud: eks, name: own, gpu: a30, gpus: 2, vcpus: 8, memory-gib: 64}";
    let built_in = Catalogue::built_in().unwrap();
    let count = built_in.instances().len();
    let both = Catalogue::parse(own).unwrap().over(built_in);
    assert_eq!(both.instances().len(), count + 1);
    let changed = both.named("p4d.24xlarge", Some(Cloud::Eks)).unwrap();
    assert_eq!(
        changed.describe(false),
        "p4d.24xlarge: 8 × A100 40 GB, 96 vCPU, 1152 GiB, $20.00 per hour on demand (list price of 2026-01-31)"
    );
    assert_eq!(
        both.named("own", None).unwrap().describe(true),
        "own: 2 × A30 24 GB, 8 vCPU, 64 GiB, unknown price"
    );
}

#[test]
fn invalid_catalogues_have_lines() {
    for (entry, words) in [
        (
            "{cloud: eks, name: x, gpu: zx81, gpus: 1, vcpus: 1, memory-gib: 1}",
            "unknown GPU model `zx81`",
        ),
        ("{cloud: nvidia, name: x, gpu: t4, gpus: 1, vcpus: 1, memory-gib: 1}", "eks, gke or aks"),
        ("{cloud: eks, name: x, gpu: t4, gpus: 0, vcpus: 1, memory-gib: 1}", "must be 1 to 64"),
        ("{cloud: eks, name: x y, gpu: t4, gpus: 1, vcpus: 1, memory-gib: 1}", "the cloud's name"),
        ("{cloud: eks, name: x, gpu: t4, gpus: 1, vcpus: 1, memory-gib: 0}", "memory-gib"),
        (
            "{cloud: eks, name: x, gpu: t4, gpus: 1, vcpus: 1, memory-gib: 1, spot: -1}",
            "a number of dollars",
        ),
        (
            "{cloud: eks, name: x, gpu: t4, gpus: 1, vcpus: 1, memory-gib: 1, spot: .nan}",
            "line 2, column 68: instances[0].spot: ",
        ),
        (
            "{cloud: eks, nam: x}",
            "line 2, column 16: instances[0].nam: unknown field `nam` (did you mean `name`?)",
        ),
        (
            "{cloud: eks, name: x, gpu: t4, gpus: 1, vcpus: 1, memory-gib: 1, spot: 1}",
            "needs its date",
        ),
        ("{cloud: eks, name: x, colour: red}", "colour"),
        ("7", "line"),
    ] {
        let problem = Catalogue::parse(&format!("instances:\n- {entry}")).unwrap_err().to_string();
        assert!(problem.contains(words), "{entry}: {problem}");
    }
}

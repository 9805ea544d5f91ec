use super::*;

fn parse(text: &str) -> Vec<(&str, u32)> {
    let parts = text.split(' ').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap()).map(|(p, n)| (p, n.parse().unwrap())).collect()
}

fn output(gpu: &str, asked: &str) -> String {
    match geometry(gpu).and_then(|geometry| check(geometry, parse(asked))) {
        Ok(layout) => layout.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn possible_layouts_are_accepted() {
    for (gpu, asked, expected) in [
        ("a100", "1g.5gb=7", "7 × 1g.5gb"),
        ("a100", "nvidia.com/mig-3g.20gb=2", "2 × 3g.20gb"),
        ("a100", "3g.20gb=1 2g.10gb=1 1g.5gb=2", "1 × 3g.20gb + 1 × 2g.10gb + 2 × 1g.5gb"),
        ("a100", "4g.20gb=1 3g.20gb=1", "1 × 4g.20gb + 1 × 3g.20gb"),
        ("a100-80", "1g.20gb=4", "4 × 1g.20gb"),
        ("NVIDIA-A30", "2g.12gb=1 1g.6gb=2", "1 × 2g.12gb + 2 × 1g.6gb"),
        ("h100", "1g.10gb=7", "7 × 1g.10gb"),
        ("H100-96", "7g.96gb=1", "1 × 7g.96gb"),
        ("h200", "1g.18gb=7", "7 × 1g.18gb"),
        ("h200", "3g.71gb=2", "2 × 3g.71gb"),
        ("a100", "1g.5gb=3 1g.5gb=4", "7 × 1g.5gb"),
        ("a100", "1g.5gb.me=1 1g.5gb=6", "1 × 1g.5gb+me + 6 × 1g.5gb"),
    ] {
        assert_eq!(output(gpu, asked), expected, "{gpu} {asked}");
    }
}

#[test]
fn impossible_layouts_name_the_nearest_one() {
    for (gpu, asked, nearest) in [
        ("a100", "1g.5gb=8", "7 × 1g.5gb"),
        ("a100", "3g.20gb=3", "2 × 3g.20gb"),
        ("a100", "7g.40gb=1 1g.5gb=1", "1 × 7g.40gb"),
        ("a100", "2g.10gb=4", "3 × 2g.10gb"),
        ("a100", "3g.20gb=2 1g.5gb=1", "2 × 3g.20gb"),
        ("a30", "1g.6gb=5", "4 × 1g.6gb"),
        ("h200", "1g.18gb=4294967295", "7 × 1g.18gb"),
        ("h100", "1g.10gb=0", "1 × 1g.10gb"),
    ] {
        let output = output(gpu, asked);
        assert!(output.ends_with(&format!("the nearest possible layout is {nearest}")), "{output}");
    }
}

#[test]
fn unknown_profiles_list_the_known_ones() {
    assert_eq!(
        output("a30", "1g.5gb=1"),
        "an A30-24 has no profile `1g.5gb`: use 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"
    );
    let output = output("t4", "1g.5gb=1");
    let words = "no MIG geometry is known for `t4`: use A30-24, A100-40";
    assert!(output.starts_with(words), "{output}");
}

#[test]
fn the_nearest_layout_can_always_be_had() {
    for geometry in &GEOMETRIES {
        let all = layouts(geometry);
        assert!(all.len() > 10, "{}: {}", geometry.name, all.len());
        for profile in geometry.profiles {
            for count in [0, 2, 5, 9] {
                let asked = Layout(BTreeMap::from([(profile.name, count)]));
                let nearest = nearest(geometry, &asked, all.clone()).unwrap();
                assert!(all.contains(&nearest), "{}: {nearest}", geometry.name);
                let kept = nearest.0.get(profile.name).is_some_and(|kept| *kept <= count);
                assert!(kept || count == 0, "{}: {nearest} instead of {asked}", geometry.name);
            }
        }
    }
}

#[test]
fn a_slice_is_explained() {
    assert_eq!(
        explain("1g.5gb", |_| true).as_deref(),
        Some("1 of 7 compute slices and 4.8 GiB of an A100-40")
    );
    assert_eq!(
        explain("1g.10gb", |geometry| geometry.name.starts_with("H100")).as_deref(),
        Some("1 of 7 compute slices and 9.8 GiB of an H100-80")
    );
    assert_eq!(explain("9g.5gb", |_| true), None);
    assert_eq!(resource("1g.5gb+me"), "nvidia.com/mig-1g.5gb.me");
}

#[test]
fn slices_are_counted_in_gpus() {
    for (gpu, profile, count, expected) in [
        ("a100", "3g.20gb", 20, Ok(10)),
        ("a100", "1g.5gb", 7, Ok(1)),
        ("a100", "1g.5gb", 8, Ok(2)),
        ("a100", "1g.5gb+me", 2, Ok(2)),
        ("a100", "1g.10gb", 4, Ok(1)),
        ("a100-80", "1g.10gb", 7, Ok(1)),
        ("a30", "1g.6gb", 5, Ok(2)),
        ("h100", "1g.5gb", 1, Err("an H100-80 has no profile `1g.5gb`: use 1g.10gb")),
        ("t4", "1g.5gb", 1, Err("no MIG geometry is known for `t4`")),
    ] {
        let gpus = Slices { profile, count }.gpus(gpu_named(gpu).unwrap());
        match (gpus, expected) {
            (Err(error), Err(words)) => assert!(error.to_string().starts_with(words), "{error}"),
            (gpus, expected) => assert_eq!(gpus.ok(), expected.ok(), "{gpu} {profile} {count}"),
        }
    }
    // Equal to the largest layout of that profile alone.
    for gpu in &crate::cloud::GPUS {
        let Some(geometry) = rules(gpu) else { continue };
        for profile in geometry.profiles {
            let all = layouts(geometry);
            let most = all.iter().filter_map(|layout| layout.0.get(profile.name)).max().unwrap();
            let slices = |count| Slices { profile: profile.name, count };
            let name = (gpu.name, profile.name);
            assert_eq!(
                (slices(*most).gpus(gpu), slices(most + 1).gpus(gpu)),
                (Ok(1), Ok(2)),
                "{name:?}"
            );
        }
    }
}

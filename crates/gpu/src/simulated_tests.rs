//! Readings of simulated GPUs.

use super::*;

fn gpus(count: u32, model: &str, memory: Option<u64>) -> Result<Simulated, GpuError> {
    Simulated::new(&SimulatedSpec { count, model: model.into(), memory, seed: 7 })
}

fn load(gpus: &Simulated, index: usize, milli: u32, memory: u64) -> (String, u32, u64) {
    (gpus.devices[index].uuid.clone(), milli, memory)
}

#[test]
fn devices_are_as_asked_for_and_say_that_they_are_simulated() {
    let gpus = gpus(4, " A100 ", Some(81_920)).unwrap();
    let devices = gpus.devices().unwrap();
    assert_eq!(devices.len(), 4);
    let machine = devices[0].uuid.strip_suffix("-0").unwrap();
    assert_eq!(machine.len(), "SIM-".len() + 8);
    assert!(machine[4..].chars().all(|c| c.is_ascii_hexdigit()));
    for (index, gpu) in devices.iter().enumerate() {
        assert_eq!(gpu.uuid, format!("{machine}-{index}"));
        assert_eq!((&*gpu.name, gpu.memory, gpu.simulated), ("A100", 81_920, true));
        assert_eq!((gpu.nvlink_group, gpu.power_limit), (Some(0), Some(400.0)));
    }
    assert_eq!(gpus.host().source, "simulated");
    assert!(gpus.processes().unwrap().is_empty());
}

#[test]
fn machines_of_another_seed_have_other_identifiers() {
    let of = |seed| {
        let spec = SimulatedSpec { seed, ..SimulatedSpec::default() };
        Simulated::new(&spec).unwrap().devices[0].uuid.clone()
    };
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
}

#[test]
fn invalid_specifications_are_errors() {
    for (count, model, memory, message) in [
        (0, "H200", None, "use 1 to 64"),
        (65, "H200", None, "simulate 65 GPUs"),
        (1, "Voodoo 2", None, "`Voodoo 2`: give its memory in MiB"),
        (1, "", None, "1 to 100 characters"),
        (1, "a,b", Some(8_192), "without commas"),
        (1, "H200\n", Some(8_192), ""),
        (1, "H200", Some(12), "use 512 to 4194304 MiB"),
        (1, "H200", Some(u64::MAX), "use 512 to 4194304 MiB"),
    ] {
        match gpus(count, model, memory) {
            Ok(_) => assert!(message.is_empty(), "{model:?} was taken"),
            Err(error) => {
                assert!(error.to_string().contains(message) && !message.is_empty(), "{error}");
            }
        }
    }
}

#[test]
fn an_unknown_model_with_memory_is_fine() {
    let gpus = gpus(1, "Voodoo 2", Some(8_192)).unwrap();
    assert_eq!((&*gpus.devices[0].name, gpus.devices[0].memory), ("Voodoo 2", 8_192));
}

#[test]
fn an_idle_gpu_reads_idle() {
    let gpus = gpus(2, "H200", None).unwrap();
    for sample in [0.0, 13.7, 86_400.0].into_iter().flat_map(|at| gpus.sample_at(at)) {
        assert_eq!((sample.utilization, sample.memory_used), (Some(0), Some(0)));
        assert_eq!(sample.sm_clock, Some(345));
        assert!((26..=31).contains(&sample.temperature.unwrap()), "{sample:?}");
        assert!((70.0..80.0).contains(&sample.power.unwrap()), "{sample:?}");
        assert!(sample.throttled.is_empty() && sample.fault.is_none());
    }
}

#[test]
fn load_is_seen_at_once_and_heat_comes_slowly() {
    let gpus = gpus(2, "H200", None).unwrap();
    gpus.set_load_at(&[load(&gpus, 1, 1_000, 100_000)], 10.0);
    let temperature = |at: f64| gpus.sample_at(at)[1].temperature.unwrap();
    let (cold, warm, hot) = (temperature(10.0), temperature(40.0), temperature(600.0));
    assert!(cold < warm && warm < hot && hot > 60 && hot < 85, "{cold} {warm} {hot}");
    let now = gpus.sample_at(11.0);
    assert!(now[1].utilization.unwrap() >= 85 && now[1].power.unwrap() > 500.0, "{now:?}");
    assert_eq!((now[1].memory_used, now[0].memory_used), (Some(100_000), Some(0)));
    assert_eq!(now[0].utilization, Some(0));
    gpus.set_load_at(&[], 600.0);
    assert_eq!(temperature(600.0), hot);
    assert!(temperature(630.0) < hot && temperature(3_000.0) == cold);
    assert_eq!(gpus.sample_at(601.0)[1].utilization, Some(0));
}

#[test]
fn tasks_that_share_a_gpu_add_up_but_never_beyond_it() {
    let gpus = gpus(1, "T4", None).unwrap();
    gpus.set_load_at(&[load(&gpus, 0, 250, 4_000), load(&gpus, 0, 250, 4_000)], 0.0);
    let half = &gpus.sample_at(5.0)[0];
    assert!((40..=50).contains(&half.utilization.unwrap()), "{half:?}");
    assert_eq!(half.memory_used, Some(8_000));
    let huge = load(&gpus, 0, u32::MAX, u64::MAX);
    gpus.set_load_at(&[huge.clone(), huge, ("SIM-other".into(), 1, 1)], 6.0);
    for at in 6..200 {
        let full = &gpus.sample_at(f64::from(at))[0];
        assert!(full.utilization.unwrap() <= 100, "{full:?}");
        assert!(full.power.unwrap() <= 70.0, "{full:?}");
        assert_eq!(full.memory_free, Some(0));
    }
}

#[test]
fn readings_depend_on_seed_load_and_time_and_not_on_how_often_one_looks() {
    let (one, two) = (gpus(3, "L4", None).unwrap(), gpus(3, "L4", None).unwrap());
    for gpus in [&one, &two] {
        gpus.set_load_at(&[load(gpus, 0, 500, 1_000)], 3.0);
    }
    for at in 0..500 {
        one.sample_at(f64::from(at) / 5.0);
        one.set_load_at(&[load(&one, 0, 500, 1_000)], 4.0 + f64::from(at));
    }
    assert_eq!(one.sample_at(123.4), two.sample_at(123.4));
    assert_ne!(one.sample_at(123.4), one.sample_at(140.4));
}

#[test]
fn a_clock_that_goes_back_does_no_harm() {
    let gpus = gpus(1, "L4", None).unwrap();
    gpus.set_load_at(&[load(&gpus, 0, 500, 1_000)], 30.0);
    assert_eq!(gpus.sample_at(-5.0)[0].memory_used, Some(1_000));
}

#[test]
fn simulated_gpus_can_be_named_in_one_word() {
    for (text, count, model) in [
        ("8xA100", 8, "A100"),
        (" 2 x NVIDIA H100 ", 2, "NVIDIA H100"),
        ("4", 4, DEFAULT_MODEL),
        ("L40S", 1, "L40S"),
        ("RTX 4090", 1, "RTX 4090"),
    ] {
        let spec: SimulatedSpec = text.parse().unwrap();
        assert_eq!((spec.count, &*spec.model), (count, model), "{text}");
        Simulated::new(&spec).unwrap();
    }
    for text in ["", "8x", "99999999999xA100"] {
        let output = text.parse::<SimulatedSpec>().and_then(|spec| Simulated::new(&spec));
        assert!(matches!(output, Err(GpuError::Simulation(_))), "{text}");
    }
}

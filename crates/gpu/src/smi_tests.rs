//! Output of `nvidia-smi`.

use super::*;

const H200: &str = "0, GPU-3b0e1f6c-3b1a-0a6f-8a48-2a7b1b9e6d11, NVIDIA H200, 143771, 1024, 142180, \
    00000000:01:00.0, 700.00, 580.159.04, 37, 31, 121.53, 1980, 3201\n";

const T4_AND_GEFORCE: &str = "\
0, GPU-11111111-2222-3333-4444-555555555555, Tesla T4, 15360, 0, 14930, 00000000:00:1E.0, 70.00, 535.183.01, 0, 29, 9.61, 300, 405
1, GPU-66666666-7777-8888-9999-000000000000, NVIDIA GeForce GT 1030, 2048, 12, 1990, 00000000:00:1F.0, [Not Supported], 535.183.01, [N/A], 41, [N/A], [Unknown Error], N/A
";

#[test]
fn a_gpu_and_its_readings_are_read() {
    let rows = rows(H200).unwrap();
    assert_eq!(rows.len(), 1);
    let Row { device, sample, driver } = &rows[0];
    assert_eq!(driver.as_deref(), Some("580.159.04"));
    assert_eq!((device.index, &*device.name, device.memory), (0, "NVIDIA H200", 143_771));
    assert_eq!(device.pci_bus_id.as_deref(), Some("00000000:01:00.0"));
    assert_eq!(device.power_limit, Some(700.0));
    let expected = Sample {
        uuid: "GPU-3b0e1f6c-3b1a-0a6f-8a48-2a7b1b9e6d11".into(),
        utilization: Some(37),
        memory_used: Some(1_024),
        memory_free: Some(142_180),
        temperature: Some(31),
        power: Some(121.53),
        sm_clock: Some(1_980),
        memory_clock: Some(3_201),
        ..Sample::default()
    };
    assert_eq!(*sample, expected);
}

#[test]
fn unsupported_readings_are_absent() {
    let rows = rows(T4_AND_GEFORCE).unwrap();
    let (device, sample) = (&rows[1].device, &rows[1].sample);
    assert_eq!(device.power_limit, None);
    assert_eq!((sample.utilization, sample.power), (None, None));
    assert_eq!((sample.sm_clock, sample.memory_clock), (None, None));
    assert_eq!((sample.temperature, sample.memory_used), (Some(41), Some(12)));
    assert_eq!(sample.fault, None);
}

#[test]
fn extra_readings_go_to_the_gpu_that_they_name() {
    let mut rows = rows(T4_AND_GEFORCE).unwrap();
    add_extra(
        &mut rows,
        "GPU-66666666-7777-8888-9999-000000000000, [N/A], [Not Supported], [N/A], [N/A]\n\
         GPU-other, 9, 0x4, Enabled\n\
         \n\
         GPU-11111111-2222-3333-4444-555555555555, 2, 0x0000000000000024, Disabled, 17\n",
    );
    assert_eq!(rows[0].sample.ecc_errors, Some(2));
    assert_eq!(rows[0].sample.corrected_ecc_errors, Some(17));
    assert_eq!(rows[0].sample.throttled, ["power cap", "thermal"]);
    assert_eq!(rows[0].device.mig, None);
    assert_eq!((rows[1].sample.ecc_errors, rows[1].sample.throttled.len()), (None, 0));
}

#[test]
fn a_lost_gpu_has_a_fault() {
    let text = "0, GPU-1, NVIDIA A100-SXM4-40GB, 40960, [GPU is lost], [GPU is lost], \
        00000000:07:00.0, [GPU is lost], 535.1, [GPU is lost], [GPU is lost], [GPU is lost], 0, 0";
    let fault = rows(text).unwrap()[0].sample.fault.clone().unwrap();
    assert!(fault.starts_with("nvidia-smi reports: GPU is lost"), "{fault}");
}

#[test]
fn a_line_that_names_no_gpu_is_an_error_with_the_line() {
    for text in [
        "Unable to determine the device handle for GPU0000:07:00.0: GPU is lost.",
        "0, , NVIDIA H200, 1",
        "x, GPU-1, name",
        ",,,,,,,,,,,,,",
    ] {
        let error = rows(text).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(rows("\n\n").unwrap(), []);
}

#[test]
fn processes_are_read_and_lines_that_name_none_are_passed_over() {
    let text =
        "GPU-1, 4242, 5120\nGPU-1, 4243, [N/A]\nMIG-2, 7, 12\n\nNo running processes found\n";
    let process = |uuid: &str, pid, memory| DeviceProcess { uuid: uuid.to_owned(), pid, memory };
    assert_eq!(
        processes(text),
        [process("GPU-1", 4242, 5120), process("GPU-1", 4243, 0), process("MIG-2", 7, 12)]
    );
}

#[test]
fn mig_slices_are_read_from_the_list() {
    let text = "\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-1111)
  MIG 1g.5gb      Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
";
    let found = slices(text);
    assert_eq!(found.len(), 1);
    let slice = |uuid: &str, profile: &str, memory| MigDevice {
        uuid: uuid.to_owned(),
        profile: profile.to_owned(),
        start: 0,
        memory,
    };
    assert_eq!(
        found["GPU-aaaa"],
        [slice("MIG-1111", "3g.20gb", 20_480), slice("MIG-2222", "1g.5gb", 5_120)]
    );
}

#[test]
fn the_version_of_cuda_is_in_the_head_of_the_table() {
    let head = "| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04     CUDA Version: 13.0     |";
    assert_eq!(cuda(head).as_deref(), Some("13.0"));
    assert_eq!(cuda("| CUDA Version: N/A |"), None);
    assert_eq!(cuda("CUDA Version:"), None);
    assert_eq!(cuda(""), None);
}

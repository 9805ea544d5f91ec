//! Device files of NVIDIA's driver that a process job may not open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::guardian::device_rule::DeviceRule;

/// Major number of `/dev/nvidia0`.
const NVIDIA_MAJOR: u32 = 195;

/// Rules for a job with these GPUs, by UUID. A job without GPUs gets no device file of the driver. A job with whole or
/// shared GPUs gets all files except the files of other GPUs. A job with a MIG slice, or with an unknown GPU, gets all
/// files: its slices are divided by capabilities of the driver, not by `/dev/nvidia0`.
pub(crate) fn denied(gpus: &[String]) -> Vec<DeviceRule> {
    if gpus.is_empty() {
        let devices = fs::read_to_string("/proc/devices").unwrap_or_default();
        let majors = gpu_majors(&devices).into_iter();
        return majors.map(|major| DeviceRule { major, minor: None }).collect();
    }
    foreign(gpus, &minors(Path::new("/proc/driver/nvidia/gpus")))
}

/// Device files of the GPUs that a job does not have.
fn foreign(gpus: &[String], minors: &BTreeMap<String, u32>) -> Vec<DeviceRule> {
    if !gpus.iter().all(|uuid| minors.contains_key(uuid)) {
        return Vec::new();
    }
    let others = minors.iter().filter(|(uuid, _)| !gpus.contains(uuid));
    others.map(|(_, minor)| DeviceRule { major: NVIDIA_MAJOR, minor: Some(*minor) }).collect()
}

/// Minor numbers by UUID, from the driver's folder of GPUs.
fn minors(folder: &Path) -> BTreeMap<String, u32> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let texts = entries.flatten().map(|entry| entry.path().join("information"));
    texts.filter_map(|path| minor(&fs::read_to_string(path).ok()?)).collect()
}

fn minor(information: &str) -> Option<(String, u32)> {
    let field = |name: &str| {
        let line = information.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.trim_start_matches(':').trim())
    };
    Some((field("GPU UUID")?.to_owned(), field("Device Minor")?.parse().ok()?))
}

/// Major numbers of NVIDIA's character devices; 195 is fixed, the other numbers are assigned when the driver is loaded.
fn gpu_majors(devices: &str) -> BTreeSet<u32> {
    let characters = devices.lines().take_while(|line| !line.starts_with("Block"));
    let found = characters.filter_map(|line| {
        let (major, name) = line.trim().split_once(' ')?;
        name.starts_with("nvidia").then(|| major.parse().ok())?
    });
    found.chain([NVIDIA_MAJOR]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_device_numbers_of_the_driver_are_found() {
        let devices = "Character devices:\n  1 mem\n195 nvidia-frontend\n236 nvidia-uvm\n\nBlock devices:\n7 nvidia\n";
        assert_eq!(gpu_majors(devices), BTreeSet::from([195, 236]));
        assert_eq!(gpu_majors(""), BTreeSet::from([195]));
    }

    #[test]
    fn a_job_with_gpus_cannot_open_the_other_gpus() {
        let folder = tempfile::tempdir().unwrap();
        for (address, uuid, minor) in [("0000:65:00.0", "GPU-a", 1), ("0000:17:00.0", "GPU-b", 0)] {
            let gpu = folder.path().join(address);
            fs::create_dir(&gpu).unwrap();
            let text = format!(
                "Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
            );
            fs::write(gpu.join("information"), text).unwrap();
        }
        let minors = minors(folder.path());
        let denied = |gpus: &[&str]| {
            let gpus: Vec<String> = gpus.iter().map(|uuid| (*uuid).to_owned()).collect();
            foreign(&gpus, &minors).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(denied(&["GPU-a"]), ["c 195:0 rwm"]);
        assert_eq!(denied(&["GPU-b", "GPU-a"]), [""; 0]);
        // A MIG slice has no folder of its own.
        assert_eq!(denied(&["MIG-c"]), [""; 0]);
    }
}

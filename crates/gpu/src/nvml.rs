//! GPUs through NVML, the driver's library, loaded at run time. The program runs without it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Mutex, OnceLock, PoisonError};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::structs::device::FieldId;

use crate::activity::{Activity, ActivityWatch};
use crate::types::{
    Device, DeviceProcess, GpuError, GpuSource, Host, MigDevice, ProcessLoad, RemappedRows, Sample,
    UNREADABLE,
};
use crate::xid::XidWatch;
use crate::{command, mig, nvlink, throttle};

/// Library paths: the linker's search first, then the paths of containers, WSL and driver operators.
pub(crate) const LIBRARIES: [&str; 6] = [
    "libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
];

/// Upper bound of `NVLinks` on any GPU.
const MOST_LINKS: u32 = 36;

/// NVML fields: rows remapped after corrected and after uncorrected errors, and failure to remap a row.
const REMAPPED_ROWS: [FieldId; 3] = [FieldId(142), FieldId(143), FieldId(145)];

pub struct NvmlSource {
    nvml: Nvml,
    host: Host,
    /// Last known data of each GPU: a GPU that falls off the bus keeps its name.
    known: Mutex<BTreeMap<u32, Device>>,
    /// Set by `start_watches`.
    errors: OnceLock<XidWatch>,
    /// Set by `start_watches`.
    activity: OnceLock<ActivityWatch>,
    /// Driver time (microseconds) of the last process sample read, by GPU index.
    loads_until: Mutex<BTreeMap<u32, u64>>,
}

impl std::fmt::Debug for NvmlSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmlSource").field("host", &self.host).finish_non_exhaustive()
    }
}

impl NvmlSource {
    /// Loads the library and reads all GPUs once.
    pub fn open() -> Result<Self, GpuError> {
        Self::load().map_err(|error| match error {
            NvmlError::LibloadingError(_) => GpuError::NoDriver,
            error => GpuError::Broken(driver_message(&error)),
        })
    }

    fn load() -> Result<Self, NvmlError> {
        let nvml = load_library()?;
        let host = Host {
            driver: nvml.sys_driver_version().ok(),
            cuda: nvml.sys_cuda_driver_version().ok().map(cuda_version),
            source: "nvml",
        };
        let source = Self {
            nvml,
            host,
            known: Mutex::default(),
            errors: OnceLock::new(),
            activity: OnceLock::new(),
            loads_until: Mutex::default(),
        };
        source.probe()?;
        Ok(source)
    }

    /// Rejects drivers before 510, which lack required calls; `nvidia-smi` is used instead.
    fn probe(&self) -> Result<(), NvmlError> {
        for index in 0..self.nvml.device_count()? {
            if let Ok(device) = self.nvml.device_by_index(index)
                && let Err(error @ NvmlError::FailedToLoadSymbol(_)) = device.memory_info()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads all GPUs. A GPU that cannot be read keeps its last known data.
    fn read_devices(&self) -> Result<Vec<Device>, GpuError> {
        let count =
            self.nvml.device_count().map_err(|error| GpuError::Broken(driver_message(&error)))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut links = Vec::new();
        for index in 0..count.max(known.len() as u32) {
            match self.nvml.device_by_index(index).and_then(|handle| facts(&handle, index)) {
                Ok((device, ends)) => {
                    links.push((index, device.pci_bus_id.clone().unwrap_or_default(), ends));
                    known.insert(index, device);
                }
                Err(error) => {
                    tracing::warn!(index, error = %driver_message(&error), "cannot read a GPU");
                    known.entry(index).or_insert_with(|| unreadable(index));
                }
            }
        }
        let (indices, ends): (Vec<u32>, Vec<_>) =
            links.into_iter().map(|(index, bus, ends)| (index, (bus, ends))).unzip();
        for (index, group) in indices.iter().zip(nvlink::groups(&ends)) {
            if let Some(device) = known.get_mut(index) {
                device.nvlink_group = group;
            }
        }
        let mut devices: Vec<Device> = known.values().cloned().collect();
        place_slices(&mut devices);
        Ok(devices)
    }

    /// Identifiers by index, read once.
    fn uuids(&self) -> Result<Vec<(u32, String)>, GpuError> {
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if !known.is_empty() {
                return Ok(known.values().map(|gpu| (gpu.index, gpu.uuid.clone())).collect());
            }
        }
        Ok(self.read_devices()?.into_iter().map(|gpu| (gpu.index, gpu.uuid)).collect())
    }
}

impl GpuSource for NvmlSource {
    fn host(&self) -> Host {
        self.host.clone()
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        self.read_devices()
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        self.uuids()?
            .into_iter()
            .map(|(index, uuid)| {
                let xids = self.errors.get().map(|watch| watch.take(&uuid)).unwrap_or_default();
                let read = self.nvml.device_by_index(index).and_then(|gpu| sample(&gpu, &uuid));
                let Activity { engine, tensor } =
                    self.activity.get().map(|watch| watch.activity(&uuid)).unwrap_or_default();
                let sample = match read {
                    Ok(sample) => {
                        Sample { engine_activity: engine, tensor_activity: tensor, ..sample }
                    }
                    Err(error) if is_driver(&error) => {
                        return Err(GpuError::Broken(driver_message(&error)));
                    }
                    Err(error) => {
                        Sample { fault: Some(driver_message(&error)), uuid, ..Sample::default() }
                    }
                };
                Ok(Sample { xids, ..sample })
            })
            .collect()
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        let mut held: BTreeMap<(String, u32), u64> = BTreeMap::new();
        for (index, uuid) in self.uuids()? {
            // `sample` reports a GPU that does not respond.
            let Ok(gpu) = self.nvml.device_by_index(index) else { continue };
            for (uuid, process) in processes_of(&gpu, &uuid) {
                let memory = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => bytes >> 20,
                    UsedGpuMemory::Unavailable => 0,
                };
                let most = held.entry((uuid, process.pid)).or_default();
                // A process with a compute and a graphics context is in both lists, each with its total memory.
                *most = memory.max(*most);
            }
        }
        let process = |((uuid, pid), memory)| DeviceProcess { uuid, pid, memory };
        Ok(held.into_iter().map(process).collect())
    }

    fn process_loads(&self) -> Vec<ProcessLoad> {
        let mut until = self.loads_until.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loads = Vec::new();
        for (index, uuid) in self.uuids().unwrap_or_default() {
            let Ok(gpu) = self.nvml.device_by_index(index) else { continue };
            let since = until.get(&index).copied();
            // Not supported, or no new samples.
            let Ok(samples) = gpu.process_utilization_stats(since) else { continue };
            if let Some(last) = samples.iter().map(|sample| sample.timestamp).max() {
                until.insert(index, last);
            }
            let means = means(samples.iter().map(|sample| (sample.pid, sample.sm_util)));
            loads.extend(means.into_iter().map(|(pid, utilization)| ProcessLoad {
                uuid: uuid.clone(),
                pid,
                utilization,
            }));
        }
        loads
    }

    fn start_watches(&self) {
        self.errors.get_or_init(|| XidWatch::start(load_library));
        self.activity.get_or_init(|| ActivityWatch::start(load_library));
    }
}

/// Mean utilization of each process.
fn means(samples: impl Iterator<Item = (u32, u32)>) -> BTreeMap<u32, u32> {
    let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (pid, percent) in samples {
        let sum = sums.entry(pid).or_default();
        *sum = (sum.0 + u64::from(percent.min(100)), sum.1 + 1);
    }
    sums.into_iter().map(|(pid, (sum, count))| (pid, (sum / count.max(1)) as u32)).collect()
}

fn load_library() -> Result<Nvml, NvmlError> {
    let mut first = None;
    for name in LIBRARIES {
        match Nvml::builder().lib_path(OsStr::new(name)).init() {
            Err(error @ NvmlError::LibloadingError(_)) => first = first.or(Some(error)),
            other => return other,
        }
    }
    Err(first.unwrap_or(NvmlError::LibraryNotFound))
}

type Handle<'a> = nvml_wrapper::Device<'a>;

/// Constant properties, and the remote ends of the `NVLinks`.
fn facts(gpu: &Handle<'_>, index: u32) -> Result<(Device, Vec<String>), NvmlError> {
    let device = Device {
        index,
        uuid: gpu.uuid()?,
        name: gpu.name()?,
        memory: gpu.memory_info()?.total >> 20,
        pci_bus_id: gpu.pci_info().ok().map(|pci| pci.bus_id),
        nvlink_group: None,
        power_limit: gpu.enforced_power_limit().ok().map(watts),
        mig: gpu.mig_mode().ok().filter(|mode| mode.current == 1).map(|_| slices(gpu)),
        simulated: false,
    };
    Ok((device, link_ends(gpu)))
}

/// Placeholder for a GPU that has never been readable.
fn unreadable(index: u32) -> Device {
    let name = "unreadable NVIDIA GPU".to_owned();
    Device { index, uuid: format!("{UNREADABLE}{index}"), name, ..Device::default() }
}

fn link_ends(gpu: &Handle<'_>) -> Vec<String> {
    let mut ends = Vec::new();
    for link in 0..MOST_LINKS {
        let link = gpu.link_wrapper_for(link);
        match link.is_active() {
            // All links without a reported remote end share one fabric.
            Ok(true) => ends.push(link.remote_pci_info().map_or("fabric".into(), |pci| pci.bus_id)),
            Err(NvmlError::InvalidArg) => break,
            Ok(false) | Err(_) => {}
        }
    }
    ends
}

/// MIG slices; unused indices are skipped.
fn slices(gpu: &Handle<'_>) -> Vec<MigDevice> {
    slice_handles(gpu)
        .filter_map(|slice| {
            Some(MigDevice {
                uuid: slice.uuid().ok()?,
                profile: mig::profile(&slice.name().ok()?)?,
                start: 0,
                memory: slice.memory_info().ok()?.total >> 20,
            })
        })
        .collect()
}

fn slice_handles<'a>(gpu: &'a Handle<'a>) -> impl Iterator<Item = Handle<'a>> {
    let most = gpu.mig_device_count().unwrap_or(0);
    (0..most).filter_map(|index| gpu.mig_device_by_index(index).ok())
}

/// Reads the placements of slices from `nvidia-smi`, if slices exist.
fn place_slices(devices: &mut [Device]) {
    if !devices.iter().any(|gpu| gpu.mig.as_ref().is_some_and(|slices| !slices.is_empty())) {
        return;
    }
    let reported = command::find_smi()
        .and_then(|smi| command::run(&smi, &["mig", "-lgi"]).ok())
        .map(|text| mig::placements(&text))
        .unwrap_or_default();
    for gpu in devices {
        let reported = reported.get(&gpu.index).cloned().unwrap_or_default();
        if let Some(slices) = &mut gpu.mig {
            mig::place(slices, &reported, &gpu.name, gpu.memory);
        }
    }
}

/// Current readings; unsupported ones are absent. Every working GPU reports its memory: an error there is a fault.
fn sample(gpu: &Handle<'_>, uuid: &str) -> Result<Sample, NvmlError> {
    let memory = match gpu.memory_info() {
        Ok(memory) => Some(memory),
        Err(NvmlError::NotSupported | NvmlError::NoPermission) => None,
        Err(error) => return Err(error),
    };
    let rates = gpu.utilization_rates().ok();
    let rows = remapped_rows(gpu);
    Ok(Sample {
        uuid: uuid.to_owned(),
        utilization: rates.as_ref().map(|rates| rates.gpu),
        memory_utilization: rates.as_ref().map(|rates| rates.memory),
        engine_activity: None,
        tensor_activity: None,
        memory_used: memory.as_ref().map(|memory| memory.used >> 20),
        memory_free: memory.as_ref().map(|memory| memory.free >> 20),
        temperature: gpu.temperature(TemperatureSensor::Gpu).ok(),
        power: gpu.power_usage().ok().map(watts),
        energy: gpu.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1_000.0),
        sm_clock: gpu.clock_info(Clock::SM).ok(),
        memory_clock: gpu.clock_info(Clock::Memory).ok(),
        ecc_errors: gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
        corrected_ecc_errors: gpu
            .total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile)
            .ok(),
        remapped_rows: rows,
        throttled: gpu
            .current_throttle_reasons()
            .map(|reasons| throttle::reasons(reasons.bits()))
            .unwrap_or_default(),
        fault: rows.and_then(fault),
        xids: Vec::new(),
    })
}

fn remapped_rows(gpu: &Handle<'_>) -> Option<RemappedRows> {
    let values = gpu.field_values_for(&REMAPPED_ROWS).ok()?.into_iter();
    let numbers = values.map(|value| match value.ok()?.value.ok()? {
        SampleValue::U32(value) => Some(u64::from(value)),
        SampleValue::U64(value) => Some(value),
        _ => None,
    });
    let [corrected, uncorrected, failed] =
        numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()?;
    Some(RemappedRows { corrected, uncorrected, failed: failed != 0 })
}

/// Permanent fault that the GPU reports.
fn fault(rows: RemappedRows) -> Option<String> {
    let message = "memory rows failed and could not be remapped; replace the GPU";
    rows.failed.then(|| message.to_owned())
}

/// Processes with the identifier of their GPU or MIG slice.
fn processes_of(gpu: &Handle<'_>, uuid: &str) -> Vec<(String, ProcessInfo)> {
    if !gpu.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return list(gpu).into_iter().map(|process| (uuid.to_owned(), process)).collect();
    }
    slice_handles(gpu)
        .filter_map(|slice| Some((slice.uuid().ok()?, list(&slice))))
        .flat_map(|(uuid, list)| list.into_iter().map(move |process| (uuid.clone(), process)))
        .collect()
}

/// Compute, MPS and graphics processes.
fn list(gpu: &Handle<'_>) -> Vec<ProcessInfo> {
    let mut all = retry_growing_list(|| gpu.running_compute_processes());
    all.extend(retry_growing_list(|| gpu.mps_running_compute_processes()));
    all.extend(retry_growing_list(|| gpu.running_graphics_processes()));
    all
}

/// Retries if the list grows between counting and reading.
fn retry_growing_list(ask: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>) -> Vec<ProcessInfo> {
    for _ in 0..3 {
        match ask() {
            Err(NvmlError::InsufficientSize(_)) => {}
            other => return other.unwrap_or_default(),
        }
    }
    Vec::new()
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1_000.0
}

/// Version of an encoded number: 12020 is 12.2.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1_000, number % 1_000 / 10)
}

/// True if the driver as a whole fails, not one GPU.
fn is_driver(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::LibraryNotFound
    )
}

/// Message of the driver, with advice.
pub(crate) fn driver_message(error: &NvmlError) -> String {
    let advice = match error {
        NvmlError::DriverNotLoaded => {
            "load it with `modprobe nvidia` and see `dmesg` if that fails; in a container, start it with the \
             NVIDIA container toolkit"
        }
        NvmlError::LibRmVersionMismatch => {
            "the driver was updated while loaded: restart the machine or reload the kernel modules"
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => {
            "check the permissions of /dev/nvidiactl and /dev/nvidia0, and the device rules of the container"
        }
        NvmlError::GpuLost => {
            "restart the machine; if it happens again, check the card, its cables and `dmesg`"
        }
        NvmlError::ResetRequired => "stop its processes and reset it with `nvidia-smi --gpu-reset`",
        NvmlError::InsufficientPower => "check its power cables",
        NvmlError::IrqIssue => "see `dmesg`, and check the interrupt settings of the machine",
        NvmlError::CorruptedInfoROM => "replace the GPU",
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            "the driver is too old; update it to 510 or later"
        }
        _ => "see the output of `nvidia-smi` and `dmesg`",
    };
    format!("{error}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_versions_are_major_and_minor() {
        for (number, text) in [(13000, "13.0"), (12020, "12.2"), (11080, "11.8")] {
            assert_eq!(cuda_version(number), text);
        }
    }

    #[test]
    fn process_load_is_the_mean_of_its_samples() {
        let samples = [(7, 10), (8, 90), (7, 30), (8, 4_000_000_000)];
        assert_eq!(means(samples.into_iter()), BTreeMap::from([(7, 20), (8, 95)]));
    }

    #[test]
    fn a_lost_gpu_is_a_fault_of_that_gpu_and_a_mismatch_one_of_the_driver() {
        assert!(!is_driver(&NvmlError::GpuLost));
        assert!(is_driver(&NvmlError::LibRmVersionMismatch));
        assert!(driver_message(&NvmlError::GpuLost).contains("fell off the bus"));
        assert!(driver_message(&NvmlError::LibRmVersionMismatch).contains("restart"));
    }
}

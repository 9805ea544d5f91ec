//! GPUs through NVML, the driver's own library. It is loaded at run time: a machine without a driver needs nothing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Mutex, OnceLock, PoisonError};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::structs::device::FieldId;

use crate::types::{
    Device, DeviceProcess, GpuError, GpuSource, Host, MigDevice, ProcessLoad, Sample, UNREADABLE,
};
use crate::xid::XidWatch;
use crate::{command, mig, nvlink, throttle};

/// Names of the library: by the linker's own search, then where containers, WSL and driver operators put it.
pub(crate) const LIBRARIES: [&str; 6] = [
    "libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
];

/// No GPU has more links than this.
const MOST_LINKS: u32 = 36;

/// NVML's number for "rows of memory could not be replaced": such a GPU is to be exchanged.
const REMAPPING_FAILED: FieldId = FieldId(145);

/// GPUs through NVML.
pub struct NvmlSource {
    nvml: Nvml,
    host: Host,
    /// What was last known of each GPU, so that one that falls off the bus keeps its name.
    known: Mutex<BTreeMap<u32, Device>>,
    /// Errors that the driver reported, once somebody watches.
    errors: OnceLock<XidWatch>,
    /// Until when the loads of processes were read, by index, in the driver's microseconds.
    loads_until: Mutex<BTreeMap<u32, u64>>,
}

impl std::fmt::Debug for NvmlSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmlSource").field("host", &self.host).finish_non_exhaustive()
    }
}

impl NvmlSource {
    /// Loads the library and asks it once for everything.
    pub fn open() -> Result<Self, GpuError> {
        Self::load().map_err(|error| match error {
            NvmlError::LibloadingError(_) => GpuError::NoDriver,
            error => GpuError::Broken(words(&error)),
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
            loads_until: Mutex::default(),
        };
        source.probe()?;
        Ok(source)
    }

    /// Drivers before 510 lack calls that are needed here; `nvidia-smi` serves them instead.
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

    /// The GPUs as NVML tells them now; one that cannot be read keeps what was known of it.
    fn read_devices(&self) -> Result<Vec<Device>, GpuError> {
        let count = self.nvml.device_count().map_err(|error| GpuError::Broken(words(&error)))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut links = Vec::new();
        for index in 0..count.max(known.len() as u32) {
            match self.nvml.device_by_index(index).and_then(|handle| facts(&handle, index)) {
                Ok((device, ends)) => {
                    links.push((index, device.pci_bus_id.clone().unwrap_or_default(), ends));
                    known.insert(index, device);
                }
                Err(error) => {
                    tracing::warn!(index, error = %words(&error), "a GPU cannot be read");
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

    /// The identifiers of the GPUs by index, read once.
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
                let xid = self.errors.get().and_then(|watch| watch.take(&uuid));
                let read = self.nvml.device_by_index(index).and_then(|gpu| sample(&gpu, &uuid));
                read.map(|sample| Sample { xid, ..sample }).or_else(|error| {
                    let words = words(&error);
                    if is_driver(&error) {
                        return Err(GpuError::Broken(words));
                    }
                    Ok(Sample { fault: Some(words), uuid, xid, ..Sample::default() })
                })
            })
            .collect()
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        let mut held: BTreeMap<(String, u32), u64> = BTreeMap::new();
        for (index, uuid) in self.uuids()? {
            // A GPU that does not answer is told by `sample`; it has no processes to tell.
            let Ok(gpu) = self.nvml.device_by_index(index) else { continue };
            for (uuid, process) in processes_of(&gpu, &uuid) {
                let memory = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => bytes >> 20,
                    UsedGpuMemory::Unavailable => 0,
                };
                let most = held.entry((uuid, process.pid)).or_default();
                // A process that computes and draws is in both lists with all that it holds.
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
            // Not supported, or nothing new: nothing to tell.
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

    fn watch_errors(&self) {
        self.errors.get_or_init(|| XidWatch::start(load_library));
    }
}

/// The mean of what was sampled of each process.
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

/// What does not change, and the far ends of its links.
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

/// A GPU that is there but was never readable.
fn unreadable(index: u32) -> Device {
    let name = "unreadable NVIDIA GPU".to_owned();
    Device { index, uuid: format!("{UNREADABLE}{index}"), name, ..Device::default() }
}

fn link_ends(gpu: &Handle<'_>) -> Vec<String> {
    let mut ends = Vec::new();
    for link in 0..MOST_LINKS {
        let link = gpu.link_wrapper_for(link);
        match link.is_active() {
            // The far end of an active link that is not told is the fabric that all such links share.
            Ok(true) => ends.push(link.remote_pci_info().map_or("fabric".into(), |pci| pci.bus_id)),
            Err(NvmlError::InvalidArg) => break,
            Ok(false) | Err(_) => {}
        }
    }
    ends
}

/// Its MIG slices; numbers without one are passed over.
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

/// Asks `nvidia-smi` where the slices lie, only if there are any.
fn place_slices(devices: &mut [Device]) {
    if !devices.iter().any(|gpu| gpu.mig.as_ref().is_some_and(|slices| !slices.is_empty())) {
        return;
    }
    let told = command::find_smi()
        .and_then(|smi| command::run(&smi, &["mig", "-lgi"]).ok())
        .map(|text| mig::placements(&text))
        .unwrap_or_default();
    for gpu in devices {
        let told = told.get(&gpu.index).cloned().unwrap_or_default();
        if let Some(slices) = &mut gpu.mig {
            mig::place(slices, &told, &gpu.name, gpu.memory);
        }
    }
}

/// What it reads now. What it does not support is absent; memory is what every GPU that works can tell.
fn sample(gpu: &Handle<'_>, uuid: &str) -> Result<Sample, NvmlError> {
    let memory = match gpu.memory_info() {
        Ok(memory) => Some(memory),
        Err(NvmlError::NotSupported | NvmlError::NoPermission) => None,
        Err(error) => return Err(error),
    };
    Ok(Sample {
        uuid: uuid.to_owned(),
        utilization: gpu.utilization_rates().ok().map(|rates| rates.gpu),
        memory_used: memory.as_ref().map(|memory| memory.used >> 20),
        memory_free: memory.as_ref().map(|memory| memory.free >> 20),
        temperature: gpu.temperature(TemperatureSensor::Gpu).ok(),
        power: gpu.power_usage().ok().map(watts),
        sm_clock: gpu.clock_info(Clock::SM).ok(),
        memory_clock: gpu.clock_info(Clock::Memory).ok(),
        ecc_errors: gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
        throttled: gpu
            .current_throttle_reasons()
            .map(|reasons| throttle::words(reasons.bits()))
            .unwrap_or_default(),
        fault: fault(gpu),
        xid: None,
    })
}

/// What the GPU itself says is broken.
fn fault(gpu: &Handle<'_>) -> Option<String> {
    let value = gpu.field_values_for(&[REMAPPING_FAILED]).ok()?.pop()?.ok()?.value.ok()?;
    let failed = match value {
        SampleValue::U32(value) => value != 0,
        SampleValue::U64(value) => value != 0,
        _ => false,
    };
    failed.then(|| {
        "rows of its memory are broken and could not be replaced; the GPU should be exchanged"
            .into()
    })
}

/// Processes with the identifier of the GPU, or of the MIG slice that they are on.
fn processes_of(gpu: &Handle<'_>, uuid: &str) -> Vec<(String, ProcessInfo)> {
    if !gpu.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return list(gpu).into_iter().map(|process| (uuid.to_owned(), process)).collect();
    }
    slice_handles(gpu)
        .filter_map(|slice| Some((slice.uuid().ok()?, list(&slice))))
        .flat_map(|(uuid, list)| list.into_iter().map(move |process| (uuid.clone(), process)))
        .collect()
}

/// Processes that compute, that compute through MPS, and that draw.
fn list(gpu: &Handle<'_>) -> Vec<ProcessInfo> {
    let mut all = patiently(|| gpu.running_compute_processes());
    all.extend(patiently(|| gpu.mps_running_compute_processes()));
    all.extend(patiently(|| gpu.running_graphics_processes()));
    all
}

/// Asks again when the list grew between counting and reading.
fn patiently(ask: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>) -> Vec<ProcessInfo> {
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

/// 12020 is 12.2.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1_000, number % 1_000 / 10)
}

/// The driver as a whole fails, not one GPU.
fn is_driver(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::LibraryNotFound
    )
}

/// The driver's words, and what to do.
pub(crate) fn words(error: &NvmlError) -> String {
    let advice = match error {
        NvmlError::DriverNotLoaded => {
            "load it with `modprobe nvidia` and see `dmesg` if that fails; in a container, start it with the \
             NVIDIA container toolkit"
        }
        NvmlError::LibRmVersionMismatch => {
            "the driver was updated while it was loaded: restart the machine, or unload and load its modules"
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => {
            "check who may open /dev/nvidiactl and /dev/nvidia0, and the device rules of the container"
        }
        NvmlError::GpuLost => {
            "restart the machine; if it happens again, check the card, its cables and `dmesg`"
        }
        NvmlError::ResetRequired => "stop its processes and reset it with `nvidia-smi --gpu-reset`",
        NvmlError::InsufficientPower => "check its power cables",
        NvmlError::IrqIssue => "see `dmesg`, and check the interrupt settings of the machine",
        NvmlError::CorruptedInfoROM => "the GPU should be exchanged",
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            "the driver is too old for its library to be used; update it to 510 or later"
        }
        _ => "see what `nvidia-smi` and `dmesg` say",
    };
    format!("{error}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_cuda_are_written_as_people_do() {
        for (number, text) in [(13000, "13.0"), (12020, "12.2"), (11080, "11.8")] {
            assert_eq!(cuda_version(number), text);
        }
    }

    #[test]
    fn the_load_of_a_process_is_the_mean_of_its_samples() {
        let samples = [(7, 10), (8, 90), (7, 30), (8, 4_000_000_000)];
        assert_eq!(means(samples.into_iter()), BTreeMap::from([(7, 20), (8, 95)]));
    }

    #[test]
    fn a_lost_gpu_is_a_fault_of_that_gpu_and_a_mismatch_one_of_the_driver() {
        assert!(!is_driver(&NvmlError::GpuLost));
        assert!(is_driver(&NvmlError::LibRmVersionMismatch));
        assert!(words(&NvmlError::GpuLost).contains("fell off the bus"));
        assert!(words(&NvmlError::LibRmVersionMismatch).contains("restart"));
    }
}

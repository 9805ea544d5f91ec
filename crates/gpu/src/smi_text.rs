//! Parses output of `nvidia-smi`. Unparsable values are absent.

use std::collections::BTreeMap;

use crate::types::{Device, DeviceProcess, MigDevice, Sample};
use crate::{mig, throttle};

/// Fields that every `nvidia-smi` of the last ten years supports.
pub(crate) const BASIC: &str = "index,uuid,name,memory.total,memory.used,memory.free,pci.bus_id,power.limit,\
     driver_version,utilization.gpu,temperature.gpu,power.draw,clocks.sm,clocks.mem,utilization.memory";

/// Fields of newer versions, queried separately because an unknown field fails the whole query.
pub(crate) const EXTRA: &str = "uuid,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active,\
     mig.mode.current,ecc.errors.corrected.volatile.total";

/// Fields of the process query.
pub(crate) const APPS: &str = "gpu_uuid,pid,used_gpu_memory";

/// GPU, readings and driver version of one line.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) device: Device,
    pub(crate) sample: Sample,
    pub(crate) driver: Option<String>,
}

/// Parses the output of [`BASIC`]. A line without a GPU is an error that quotes the line.
pub(crate) fn rows(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| row(line).ok_or_else(|| unknown(line))).collect()
}

/// Adds the output of [`EXTRA`] to the rows.
pub(crate) fn add_extra(rows: &mut [Row], text: &str) {
    for line in text.lines() {
        let fields = fields(line);
        let Some(row) = rows.iter_mut().find(|row| fields.first() == Some(&&*row.device.uuid))
        else {
            continue;
        };
        row.sample.ecc_errors = number(&fields, 1);
        row.sample.corrected_ecc_errors = number(&fields, 4);
        row.sample.throttled =
            value(&fields, 2).map(bits).map(throttle::reasons).unwrap_or_default();
        row.device.mig = (value(&fields, 3) == Some("Enabled")).then(Vec::new);
    }
}

/// Parses the output of [`APPS`]; a process without reported memory counts as 0 MiB.
pub(crate) fn processes(text: &str) -> Vec<DeviceProcess> {
    let process = |line: &str| {
        let fields = fields(line);
        let uuid = value(&fields, 0)?.to_owned();
        Some(DeviceProcess {
            uuid,
            pid: number(&fields, 1)?,
            memory: number(&fields, 2).unwrap_or(0),
        })
    };
    text.lines().filter_map(process).collect()
}

/// MIG slices in the output of `nvidia-smi -L`, by GPU identifier.
pub(crate) fn slices(text: &str) -> BTreeMap<String, Vec<MigDevice>> {
    let mut found: BTreeMap<String, Vec<MigDevice>> = BTreeMap::new();
    let mut gpu = None;
    for line in text.lines() {
        let Some(uuid) = uuid_of(line) else { continue };
        if line.starts_with("GPU ") {
            gpu = Some(uuid);
        } else if let (Some(gpu), Some(profile)) = (&gpu, mig::profile(line)) {
            let memory = mig::profile_gib(&profile).unwrap_or(0) << 10;
            let slice = MigDevice { uuid, profile, start: 0, memory };
            found.entry(gpu.clone()).or_default().push(slice);
        }
    }
    found
}

/// CUDA version in the header of the table that `nvidia-smi` prints.
pub(crate) fn cuda(text: &str) -> Option<String> {
    let (_, after) = text.split_once("CUDA Version:")?;
    let version = after.split_whitespace().next()?;
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

fn row(line: &str) -> Option<Row> {
    let fields = fields(line);
    let uuid = value(&fields, 1).filter(|uuid| uuid.starts_with("GPU-"))?.to_owned();
    let device = Device {
        index: number(&fields, 0)?,
        uuid: uuid.clone(),
        name: value(&fields, 2)?.to_owned(),
        memory: number(&fields, 3).unwrap_or(0),
        pci_bus_id: value(&fields, 6).map(str::to_owned),
        power_limit: real(&fields, 7),
        ..Device::default()
    };
    let sample = Sample {
        uuid,
        memory_used: number(&fields, 4),
        memory_free: number(&fields, 5),
        utilization: number(&fields, 9),
        temperature: number(&fields, 10),
        power: real(&fields, 11),
        sm_clock: number(&fields, 12),
        memory_clock: number(&fields, 13),
        memory_utilization: number(&fields, 14),
        fault: fault(&fields),
        ..Sample::default()
    };
    Some(Row { device, sample, driver: value(&fields, 8).map(str::to_owned) })
}

/// A lost GPU has an error message in place of readings.
fn fault(fields: &[&str]) -> Option<String> {
    let lost = |field: &&&str| {
        let field = field.to_ascii_lowercase();
        field.contains("gpu is lost") || field.contains("requires reset")
    };
    let message = fields.iter().find(lost)?.trim_matches(['[', ']']);
    Some(format!(
        "nvidia-smi reports: {message}; restart the machine, or reset the GPU with `nvidia-smi --gpu-reset`"
    ))
}

fn fields(line: &str) -> Vec<&str> {
    line.split(',').map(str::trim).collect()
}

/// Field with a value: not `[N/A]`, `[Not Supported]`, `[Unknown Error]` or `N/A`.
fn value<'a>(fields: &[&'a str], at: usize) -> Option<&'a str> {
    let field = *fields.get(at)?;
    let has_value = !field.is_empty() && !field.starts_with('[') && field != "N/A";
    has_value.then_some(field)
}

fn number<T: std::str::FromStr>(fields: &[&str], at: usize) -> Option<T> {
    value(fields, at)?.parse().ok()
}

fn real(fields: &[&str], at: usize) -> Option<f64> {
    number::<f64>(fields, at).filter(|value| value.is_finite() && *value >= 0.0)
}

/// Parses `0x0000000000000004`.
fn bits(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
}

/// Identifier in `(UUID: …)`.
fn uuid_of(line: &str) -> Option<String> {
    let (_, after) = line.split_once("(UUID: ")?;
    Some(after.split(')').next()?.to_owned())
}

fn unknown(line: &str) -> String {
    let line: String = line.chars().take(200).collect();
    format!("nvidia-smi printed a line without a GPU: `{line}`")
}

#[cfg(test)]
#[path = "smi_tests.rs"]
mod tests;

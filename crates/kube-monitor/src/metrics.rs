//! Metrics of a node, from the last interval: series of deleted pods and devices end. Names of the scheduler's totals are
//! not used here, so that sums over all targets count each GPU once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use agentaflow_gpu::{EnergyMeter, GpuUse, Sample, XidCounts};
use agentaflow_kube_core::crd::{GpuDevice, GpuStatus};
use agentaflow_metrics::MetricType::{self, Counter, Gauge};
use agentaflow_metrics::{
    DeviceReading, Exposition, MetricSource, POD_NAMES, WorkloadReading, write_dcgm, write_devices,
    write_workloads,
};

use super::gpu_sampler::GpuReadings;
use super::line::StatusLine;
use super::observation::{PodDevices, PodName};
use super::observe::Report;
use super::usage::PodUse;

/// Limit of pods in the metrics: label values must not grow without bound.
const MOST_PODS: usize = 500;

#[derive(Debug, Default)]
pub(super) struct Metrics {
    last: Mutex<Snapshot>,
    /// Also export the names of `dcgm-exporter`.
    dcgm: bool,
}

/// Data of the last interval.
#[derive(Debug, Default)]
struct Snapshot {
    node: String,
    devices: Vec<DeviceReading>,
    pods: Vec<WorkloadReading>,
    line: StatusLine,
    holders: PodDevices,
    energy: EnergyMeter<PodName>,
    xids: XidCounts,
    failed_samples: u64,
    failed_writes: u64,
}

/// Inputs of one interval.
pub(super) struct Interval<'a> {
    /// None if the driver failed.
    pub(super) readings: Option<&'a GpuReadings>,
    pub(super) report: &'a Report,
    pub(super) used: &'a PodUse,
    pub(super) holders: &'a PodDevices,
}

impl Metrics {
    pub(super) fn new(node: &str, dcgm: bool) -> Self {
        let last = Snapshot { node: node.to_owned(), ..Snapshot::default() };
        Self { last: Mutex::new(last), dcgm }
    }

    pub(super) fn record(&self, interval: &Interval<'_>, now: Instant) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = samples(interval.readings);
        let uses = uses(interval);
        last.energy.observe(now, &samples, &uses);
        last.xids.observe(samples.values());
        last.devices = devices(&last.node, interval, &samples, &last.xids);
        last.pods = pods(&last.node, interval.used, &uses, &last.energy);
        last.line = interval.report.line.clone();
        last.holders = interval.holders.clone();
        last.failed_samples += u64::from(interval.readings.is_none());
    }

    /// Readings of the last interval.
    pub(super) fn devices(&self) -> Vec<DeviceReading> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).devices.clone()
    }

    pub(super) fn count_failed_write(&self) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).failed_writes += 1;
    }
}

impl MetricSource for Metrics {
    fn write(&self, text: &mut Exposition) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        node(&last, text);
        write_devices(&last.devices, text);
        write_workloads(POD_NAMES, &last.pods, text);
        allocations(&last, text);
        if self.dcgm {
            write_dcgm(&last.devices, text);
        }
    }
}

fn samples(readings: Option<&GpuReadings>) -> BTreeMap<String, Sample> {
    let devices = readings.map(|readings| readings.gpus.devices.as_slice()).unwrap_or_default();
    devices.iter().map(|(device, sample)| (device.uuid.clone(), sample.clone())).collect()
}

/// Pods by their devices: allocated ones, and ones with processes only.
fn uses(interval: &Interval<'_>) -> Vec<GpuUse<PodName>> {
    let mut all: BTreeMap<(PodName, String), (Option<u32>, u32)> = BTreeMap::new();
    for (pod, devices) in &interval.holders.pods {
        for (device, milli) in devices {
            all.insert((pod.clone(), device.clone()), (None, *milli));
        }
    }
    for (key, used) in interval.used {
        all.entry(key.clone()).or_default().0 = used.utilization;
    }
    let each = all.into_iter().take(MOST_PODS);
    each.map(|((workload, uuid), (utilization, milli))| GpuUse {
        workload,
        uuid,
        utilization,
        milli,
    })
    .collect()
}

fn devices(
    node: &str,
    interval: &Interval<'_>,
    samples: &BTreeMap<String, Sample>,
    xids: &XidCounts,
) -> Vec<DeviceReading> {
    let Interval { readings, report, holders, .. } = interval;
    let gpus = readings.map(|readings| readings.gpus.devices.as_slice()).unwrap_or_default();
    let processes = readings.map(|readings| readings.processes.as_slice()).unwrap_or_default();
    let reported = report.spec.gpu_devices.iter().zip(&report.status.gpu_status);
    let reading = |(device, status): (&GpuDevice, &GpuStatus)| {
        let gpu = gpus.iter().find(|(gpu, _)| gpu.uuid == device.id).map(|(gpu, _)| gpu);
        let sample = samples.get(&device.id).cloned().unwrap_or_default();
        let milli: u32 = holders.pods.values().filter_map(|devices| devices.get(&device.id)).sum();
        let mut pods = holders.pods.iter().filter(|(_, devices)| devices.contains_key(&device.id));
        let only = pods.next().filter(|_| pods.next().is_none()).map(|(pod, _)| pod);
        let count = processes.iter().filter(|process| process.uuid == device.id).count();
        DeviceReading {
            node: node.to_owned(),
            index: gpu.map_or(0, |gpu| gpu.index),
            uuid: device.id.clone(),
            model: device.name.clone(),
            driver: Some(device.driver_version.clone()).filter(|version| !version.is_empty()),
            pci_bus_id: Some(device.pci_bus_id.clone()).filter(|address| !address.is_empty()),
            utilization: gpu.map(|_| status.utilization),
            memory_utilization: sample.memory_utilization.map(f64::from),
            engine_activity: sample.engine_activity,
            tensor_activity: sample.tensor_activity,
            memory_used: gpu.map(|_| status.memory_used),
            memory_total: device.memory_total,
            temperature: gpu.map(|_| status.temperature),
            power: sample.power,
            power_limit: gpu.and_then(|gpu| gpu.power_limit),
            energy: sample.energy,
            sm_clock: sample.sm_clock,
            memory_clock: sample.memory_clock,
            ecc_errors: sample.ecc_errors,
            corrected_ecc_errors: sample.corrected_ecc_errors,
            remapped_rows: sample.remapped_rows.map(|rows| (rows.corrected, rows.uncorrected)),
            last_xid: xids.last(&device.id),
            xid_errors: xids.counts(&device.id),
            xid: report
                .line
                .devices
                .iter()
                .find(|line| line.id == device.id)
                .and_then(|line| line.xid),
            throttled: sample.throttled,
            processes: gpu.map(|_| count as u32),
            healthy: status.available,
            allocated: Some(f64::from(milli.min(1_000)) / 1_000.0),
            pod: only.map(|pod| (pod.namespace.clone(), pod.name.clone())),
        }
    };
    reported.map(reading).collect()
}

fn pods(
    node: &str,
    used: &PodUse,
    holders: &[GpuUse<PodName>],
    energy: &EnergyMeter<PodName>,
) -> Vec<WorkloadReading> {
    let reading = |entry: &GpuUse<PodName>| {
        let pod = &entry.workload;
        let own = used.get(&(pod.clone(), entry.uuid.clone()));
        WorkloadReading {
            workload: vec![("namespace", pod.namespace.clone()), ("pod", pod.name.clone())],
            node: node.to_owned(),
            uuid: entry.uuid.clone(),
            memory: own.map_or(0, |own| own.memory),
            utilization: entry.utilization.map(f64::from),
            energy: energy.joules(pod, &entry.uuid),
        }
    };
    holders.iter().map(reading).collect()
}

fn node(now: &Snapshot, text: &mut Exposition) {
    let (node, line) = (now.node.as_str(), &now.line);
    let units = f64::from(line.total) * f64::from(line.replicas.max(1));
    let above_goal = f64::from(u8::from(line.above_goal));
    let values: [(&str, MetricType, &str, f64); 7] = [
        ("agentaflow_node_gpus", Gauge, "GPUs of the node.", line.total.into()),
        ("agentaflow_node_gpus_healthy", Gauge, "Healthy GPUs of the node.", line.available.into()),
        (
            "agentaflow_gpu_units",
            Gauge,
            "Allocatable units; time slices on time-sliced GPUs.",
            units,
        ),
        (
            "agentaflow_gpu_utilization_goal",
            Gauge,
            "Target utilization in percent.",
            line.utilization_goal.into(),
        ),
        (
            "agentaflow_gpu_above_utilization_goal",
            Gauge,
            "1 if the mean utilization is above the target.",
            above_goal,
        ),
        (
            "agentaflow_monitor_failed_samples_total",
            Counter,
            "Failed samples of the GPUs.",
            now.failed_samples as f64,
        ),
        (
            "agentaflow_monitor_failed_writes_total",
            Counter,
            "Failed writes to the API server.",
            now.failed_writes as f64,
        ),
    ];
    for (name, kind, help, value) in values {
        text.series(name, kind, help, [([("node", node)], value)]);
    }
}

fn allocations(now: &Snapshot, text: &mut Exposition) {
    let node = &*now.node;
    let allocated = now.holders.pods.iter().take(MOST_PODS).map(|(pod, devices)| {
        let labels = [("node", node), ("namespace", &*pod.namespace), ("pod", &*pod.name)];
        (labels, f64::from(devices.values().sum::<u32>()) / 1_000.0)
    });
    text.series(
        "agentaflow_pod_gpus",
        Gauge,
        "GPUs allocated to a pod; a slice counts as its share.",
        allocated,
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agentaflow_gpu::{Device, DeviceProcess};

    use super::*;
    use crate::usage::Use;

    fn text_of(metrics: &Metrics) -> String {
        let mut text = Exposition::default();
        metrics.write(&mut text);
        text.into_text()
    }

    fn readings() -> GpuReadings {
        let device = Device {
            uuid: "GPU-a".into(),
            index: 1,
            power_limit: Some(700.0),
            ..Device::default()
        };
        let sample = Sample { uuid: "GPU-a".into(), power: Some(99.0), ..Sample::default() };
        let process = DeviceProcess { uuid: "GPU-a".into(), pid: 7, memory: 1 };
        let mut readings = GpuReadings { processes: vec![process], ..GpuReadings::default() };
        readings.gpus.devices = vec![(device, sample)];
        readings
    }

    fn report() -> Report {
        let device = GpuDevice {
            id: "GPU-a".into(),
            name: "NVIDIA \"A100\"".into(),
            memory_total: 2,
            ..GpuDevice::default()
        };
        let status = GpuStatus { utilization: 37.0, temperature: 41.0, ..GpuStatus::default() };
        let mut report = Report::default();
        report.spec.gpu_devices = vec![device];
        report.status.gpu_status = vec![status];
        report.line =
            StatusLine { total: 1, replicas: 4, utilization_goal: 80, ..StatusLine::default() };
        report
    }

    #[test]
    fn the_metrics_of_a_node_are_named_as_documented() {
        let metrics = Metrics::new("n1", true);
        let pod = PodName { namespace: "ml".into(), name: "train".into() };
        let used = [((pod.clone(), "GPU-a".into()), Use { memory: 1, utilization: None })].into();
        let holders = PodDevices { pods: [(pod, [("GPU-a".to_owned(), 250)].into())].into() };
        let (readings, report) = (readings(), report());
        let interval =
            Interval { readings: Some(&readings), report: &report, used: &used, holders: &holders };
        let start = Instant::now();
        metrics.record(&interval, start);
        metrics.record(&interval, start + Duration::from_secs(10));
        for _ in 0..3 {
            metrics.count_failed_write();
        }
        let text = text_of(&metrics);
        let gpu = "{node=\"n1\",gpu=\"GPU-a\",model=\"NVIDIA \\\"A100\\\"\"}";
        let pod = "{node=\"n1\",namespace=\"ml\",pod=\"train\",gpu=\"GPU-a\"}";
        for line in [
            "# TYPE agentaflow_node_gpus gauge".to_owned(),
            "agentaflow_node_gpus{node=\"n1\"} 1".to_owned(),
            "agentaflow_node_gpus_healthy{node=\"n1\"} 0".to_owned(),
            "agentaflow_gpu_units{node=\"n1\"} 4".to_owned(),
            "# TYPE agentaflow_monitor_failed_writes_total counter".to_owned(),
            "agentaflow_monitor_failed_writes_total{node=\"n1\"} 3".to_owned(),
            format!("agentaflow_device_utilization{gpu} 37"),
            format!("agentaflow_gpu_temperature_celsius{gpu} 41"),
            format!("agentaflow_gpu_power_watts{gpu} 99"),
            format!("agentaflow_gpu_power_limit_watts{gpu} 700"),
            format!("agentaflow_gpu_memory_total_bytes{gpu} 2097152"),
            format!("agentaflow_gpu_processes{gpu} 1"),
            format!("agentaflow_gpu_allocated{gpu} 0.25"),
            format!("agentaflow_pod_gpu_memory_bytes{pod} 1048576"),
            format!("agentaflow_pod_gpu_energy_joules_total{pod} 247.5"),
            "agentaflow_pod_gpus{node=\"n1\",namespace=\"ml\",pod=\"train\"} 0.25".to_owned(),
        ] {
            assert!(text.lines().any(|written| written == line), "`{line}` is not in\n{text}");
        }
        assert!(!text.contains("agentaflow_pod_gpu_utilization"), "unknown values are omitted");
        assert!(text.contains("kubernetes_node=\"n1\",namespace=\"ml\",pod=\"train\"} 37\n"));
    }

    #[test]
    fn a_failed_driver_leaves_no_old_reading() {
        let metrics = Metrics::new("n1", false);
        let (used, holders) = (PodUse::new(), PodDevices::default());
        let (readings, report) = (readings(), report());
        let interval = Interval { readings: None, report: &report, used: &used, holders: &holders };
        metrics.record(&Interval { readings: Some(&readings), ..interval }, Instant::now());
        metrics.record(&interval, Instant::now());
        let text = text_of(&metrics);
        assert!(
            text.contains("agentaflow_monitor_failed_samples_total{node=\"n1\"} 1\n"),
            "{text}"
        );
        assert!(!text.contains("agentaflow_gpu_power_watts"), "{text}");
        assert!(!text.contains("DCGM_"), "{text}");
    }
}

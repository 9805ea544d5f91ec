//! Metrics of a node, built from the last sample on each scrape: series of deleted pods and devices end. Names of the
//! scheduler's totals are not used here, so that sums over all targets count each GPU once.

use std::sync::{Mutex, PoisonError};

use agentaflow_kube_core::crd::{GpuDevice, GpuStatus};
use agentaflow_metrics::Exposition;
use agentaflow_metrics::MetricType::{self, Counter, Gauge};

use super::line::StatusLine;
use super::observation::PodDevices;
use super::usage::PodUse;

/// Limit of pods in the metrics: label values must not grow without bound.
const MOST_PODS: usize = 500;

/// Bytes.
const MIB: f64 = 1_048_576.0;

/// Data of the last interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) node: String,
    pub(super) devices: Vec<(GpuDevice, GpuStatus)>,
    pub(super) line: StatusLine,
    pub(super) used: PodUse,
    pub(super) holders: PodDevices,
    pub(super) failed_looks: u64,
    pub(super) failed_writes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Metrics(Mutex<Snapshot>);

impl Metrics {
    pub(super) fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Response to a scrape.
    pub(super) fn text(&self) -> String {
        let now = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = Exposition::default();
        node(&now, &mut text);
        devices(&now, &mut text);
        pods(&now, &mut text);
        text.into_text()
    }
}

/// Reads a value of a device.
type Reading = fn(&GpuDevice, &GpuStatus) -> f64;

fn node(now: &Snapshot, text: &mut Exposition) {
    let (node, line) = (now.node.as_str(), &now.line);
    let units = f64::from(line.total) * f64::from(line.replicas.max(1));
    let above_goal = f64::from(u8::from(line.above_goal));
    let values: [(&str, MetricType, &str, f64); 7] = [
        ("agentaflow_node_gpus", Gauge, "GPUs of the node", line.total.into()),
        ("agentaflow_node_gpus_healthy", Gauge, "Healthy GPUs of the node", line.available.into()),
        (
            "agentaflow_gpu_units",
            Gauge,
            "Allocatable units; time slices on time-sliced GPUs",
            units,
        ),
        (
            "agentaflow_gpu_utilization_goal",
            Gauge,
            "Target utilization in percent",
            line.utilization_goal.into(),
        ),
        (
            "agentaflow_gpu_above_utilization_goal",
            Gauge,
            "1 if the mean utilization is above the target",
            above_goal,
        ),
        (
            "agentaflow_monitor_failed_looks_total",
            Counter,
            "Failed samples of the GPUs",
            now.failed_looks as f64,
        ),
        (
            "agentaflow_monitor_failed_writes_total",
            Counter,
            "Failed writes to the API server",
            now.failed_writes as f64,
        ),
    ];
    for (name, kind, help, value) in values {
        text.series(name, kind, help, [([("node", node)], value)]);
    }
    let version = [([("version", env!("CARGO_PKG_VERSION"))], 1.0)];
    text.series("agentaflow_build_info", Gauge, "Version of the program", version);
}

fn devices(now: &Snapshot, text: &mut Exposition) {
    let readings: [(&str, &str, Reading); 7] = [
        ("agentaflow_device_utilization", "Percent of time with a running kernel", |_, status| {
            status.utilization
        }),
        ("agentaflow_gpu_healthy", "1 if the GPU is usable", |_, status| {
            f64::from(u8::from(status.available))
        }),
        ("agentaflow_gpu_temperature_celsius", "Temperature", |_, status| status.temperature),
        ("agentaflow_gpu_power_watts", "Power draw", |_, status| status.power_usage),
        ("agentaflow_gpu_memory_used_bytes", "Memory used by all processes", |_, status| {
            status.memory_used as f64 * MIB
        }),
        ("agentaflow_gpu_memory_total_bytes", "Memory", |device, _| {
            device.memory_total as f64 * MIB
        }),
        ("agentaflow_gpu_allocated", "1 if a pod has the GPU or a part of it", |_, status| {
            f64::from(u8::from(status.current_workload.is_some()))
        }),
    ];
    for (name, help, read) in readings {
        let series = now.devices.iter().map(|(device, status)| {
            let labels = [("node", &*now.node), ("gpu", &*device.id), ("model", &*device.name)];
            (labels, read(device, status))
        });
        text.series(name, Gauge, help, series);
    }
}

fn pods(now: &Snapshot, text: &mut Exposition) {
    let node = &*now.node;
    let used = || {
        now.used.iter().take(MOST_PODS).map(|((pod, gpu), used)| {
            let labels = [
                ("node", node),
                ("namespace", &*pod.namespace),
                ("pod", &*pod.name),
                ("gpu", gpu.as_str()),
            ];
            (labels, used)
        })
    };
    text.series(
        "agentaflow_pod_gpu_memory_bytes",
        Gauge,
        "GPU memory used by a pod",
        used().map(|(labels, used)| (labels, used.memory as f64 * MIB)),
    );
    text.series(
        "agentaflow_pod_gpu_utilization",
        Gauge,
        "Percent of a GPU used by a pod",
        used().filter_map(|(labels, used)| Some((labels, used.utilization?.into()))),
    );
    let allocated = now.holders.pods.iter().take(MOST_PODS).map(|(pod, devices)| {
        let labels = [("node", node), ("namespace", &*pod.namespace), ("pod", &*pod.name)];
        (labels, f64::from(devices.values().sum::<u32>()) / 1_000.0)
    });
    text.series(
        "agentaflow_pod_gpus",
        Gauge,
        "GPUs allocated to a pod; a slice counts as its share",
        allocated,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::PodName;
    use crate::usage::Use;

    #[test]
    fn the_metrics_of_a_node_are_named_as_documented() {
        let metrics = Metrics::default();
        let pod = PodName { namespace: "ml".into(), name: "train".into() };
        let device = GpuDevice {
            id: "GPU-a".into(),
            name: "NVIDIA \"A100\"".into(),
            memory_total: 2,
            ..GpuDevice::default()
        };
        let status = GpuStatus {
            utilization: 37.0,
            temperature: 41.0,
            power_usage: 99.0,
            ..GpuStatus::default()
        };
        metrics.update(|now| {
            now.node = "n1".into();
            now.devices = vec![(device, status)];
            now.line =
                StatusLine { total: 1, replicas: 4, utilization_goal: 80, ..StatusLine::default() };
            now.used.insert((pod.clone(), "GPU-a".into()), Use { memory: 1, utilization: None });
            now.holders.pods.insert(pod, [("GPU-a".to_owned(), 250)].into());
            now.failed_writes = 3;
        });
        let text = metrics.text();
        let gpu = "{node=\"n1\",gpu=\"GPU-a\",model=\"NVIDIA \\\"A100\\\"\"}";
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
            format!("agentaflow_gpu_memory_total_bytes{gpu} 2097152"),
            "agentaflow_pod_gpu_memory_bytes{node=\"n1\",namespace=\"ml\",pod=\"train\",gpu=\"GPU-a\"} 1048576".to_owned(),
            "agentaflow_pod_gpus{node=\"n1\",namespace=\"ml\",pod=\"train\"} 0.25".to_owned(),
        ] {
            assert!(text.lines().any(|written| written == line), "`{line}` is not in\n{text}");
        }
        assert!(text.contains("agentaflow_build_info{version="));
        assert!(!text.contains("agentaflow_pod_gpu_utilization"), "unknown values are omitted");
    }
}

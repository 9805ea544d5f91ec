//! Metrics of a node, made from the last turn when somebody asks: series of pods and devices that are gone end by
//! themselves.

use agentaflow_kube_core::crd::{GpuDevice, GpuStatus};
use std::fmt::Error;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::line::StatusLine;
use super::seen::Holders;
use super::usage::PodUse;

/// No node has more pods on its GPUs than this; a label must not grow without bound.
const MOST_PODS: usize = 500;

/// MiB in bytes.
const MIB: f64 = 1_048_576.0;

/// What the last turn found.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// The node.
    pub(super) node: String,
    /// Its devices and how they are.
    pub(super) devices: Vec<(GpuDevice, GpuStatus)>,
    /// All of them in one line.
    pub(super) line: StatusLine,
    /// What pods use.
    pub(super) used: PodUse,
    /// What pods were given.
    pub(super) holders: Holders,
    /// Looks at the GPUs that failed.
    pub(super) failed_looks: u64,
    /// Writes to the API server that failed.
    pub(super) failed_writes: u64,
}

/// The metrics of this node.
#[derive(Debug, Default)]
pub(super) struct Metrics(Mutex<Snapshot>);

impl Metrics {
    /// Changes what will be told.
    pub(super) fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let now = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        node(&now, &mut encoder)?;
        devices(&now, &mut encoder)?;
        pods(&now, &mut encoder)
    }
}

/// Reads a value off a device.
type Reading = fn(&GpuDevice, &GpuStatus) -> f64;

/// Labels and a value, for each.
type Series<'a> = Vec<(Vec<(&'static str, &'a str)>, f64)>;

fn node(now: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    let (node, line) = (now.node.as_str(), &now.line);
    let untyped = MetricType::Unknown;
    let mut one = |name: &str, help: &str, kind, value: f64| {
        write(encoder, name, help, kind, &vec![(vec![("node", node)], value)])
    };
    let units = f64::from(line.total) * f64::from(line.replicas.max(1));
    one("agentaflow_gpu_total", "GPUs of the node", untyped, line.total.into())?;
    one(
        "agentaflow_gpu_available",
        "GPUs that can be used",
        MetricType::Gauge,
        line.available.into(),
    )?;
    one(
        "agentaflow_gpu_units",
        "Units that pods can ask for; time slices where GPUs are sliced",
        MetricType::Gauge,
        units,
    )?;
    one(
        "agentaflow_gpu_utilization_goal",
        "Percent of utilisation to aim at",
        MetricType::Gauge,
        line.utilization_goal.into(),
    )?;
    one(
        "agentaflow_gpu_above_utilization_goal",
        "1 when the mean utilisation is above the goal",
        MetricType::Gauge,
        f64::from(u8::from(line.above_goal)),
    )?;
    one(
        "agentaflow_monitor_failed_looks",
        "Looks at the GPUs that failed",
        MetricType::Counter,
        now.failed_looks as f64,
    )?;
    one(
        "agentaflow_monitor_failed_writes",
        "Writes to the API server that failed",
        MetricType::Counter,
        now.failed_writes as f64,
    )?;
    let build = vec![(vec![("version", env!("CARGO_PKG_VERSION"))], 1.0)];
    write(encoder, "agentaflow_build_info", "The program", MetricType::Gauge, &build)
}

fn devices(now: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    let readings: [(&str, &str, Reading); 7] = [
        ("agentaflow_gpu_utilization", "Percent of time in which some kernel ran", |_, status| {
            status.utilization
        }),
        ("agentaflow_gpu_healthy", "1 when the GPU can be used", |_, status| {
            f64::from(u8::from(status.available))
        }),
        ("agentaflow_gpu_temperature_celsius", "Temperature", |_, status| status.temperature),
        ("agentaflow_gpu_power_watts", "Power that is drawn", |_, status| status.power_usage),
        ("agentaflow_gpu_memory_used_bytes", "Memory in use, by anybody", |_, status| {
            status.memory_used as f64 * MIB
        }),
        ("agentaflow_gpu_memory_total_bytes", "Memory", |device, _| {
            device.memory_total as f64 * MIB
        }),
        ("agentaflow_gpu_allocated", "1 when a pod has the GPU, or a part of it", |_, status| {
            f64::from(u8::from(status.current_workload.is_some()))
        }),
    ];
    for (name, help, read) in readings {
        let series = now.devices.iter().map(|(device, status)| {
            let labels = vec![("node", &*now.node), ("gpu", &*device.id), ("model", &*device.name)];
            (labels, read(device, status))
        });
        write(encoder, name, help, MetricType::Gauge, &series.collect())?;
    }
    Ok(())
}

fn pods(now: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    let used = || now.used.iter().take(MOST_PODS);
    let labels = |(pod, gpu): &'_ (super::seen::PodName, String)| -> [String; 3] {
        [pod.namespace.clone(), pod.name.clone(), gpu.clone()]
    };
    let keys: Vec<[String; 3]> = used().map(|(key, _)| labels(key)).collect();
    let series = |read: &dyn Fn(&super::usage::Use) -> Option<f64>| -> Series<'_> {
        let each = keys.iter().zip(used());
        let told = each.filter_map(|([namespace, pod, gpu], (_, used))| {
            let labels = vec![
                ("node", &*now.node),
                ("namespace", &**namespace),
                ("pod", &**pod),
                ("gpu", &**gpu),
            ];
            Some((labels, read(used)?))
        });
        told.collect()
    };
    let memory = series(&|used| Some(used.memory as f64 * MIB));
    write(
        encoder,
        "agentaflow_pod_gpu_memory_bytes",
        "GPU memory that a pod uses",
        MetricType::Gauge,
        &memory,
    )?;
    let busy = series(&|used| used.utilization.map(f64::from));
    write(
        encoder,
        "agentaflow_pod_gpu_utilization",
        "Percent of a GPU that a pod keeps busy",
        MetricType::Gauge,
        &busy,
    )?;
    let given = now.holders.pods.iter().take(MOST_PODS).map(|(pod, devices)| {
        let labels =
            vec![("node", &*now.node), ("namespace", &*pod.namespace), ("pod", &*pod.name)];
        (labels, f64::from(devices.values().sum::<u32>()) / 1_000.0)
    });
    write(
        encoder,
        "agentaflow_pod_gpus",
        "GPUs that a pod was given; a slice is its share",
        MetricType::Gauge,
        &given.collect(),
    )
}

/// Writes a metric with all its series; one without any is left out.
fn write(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    series: &Series<'_>,
) -> Result<(), Error> {
    if series.is_empty() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in series {
        let labels = Labels(labels);
        let mut one = metric.encode_family(&labels)?;
        match kind {
            MetricType::Counter => {
                one.encode_counter::<NoLabelSet, _, u64>(&(*value as u64), None)?;
            }
            _ => one.encode_gauge(value)?,
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Labels<'a>(&'a [(&'static str, &'a str)]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> Result<(), Error> {
        use prometheus_client::encoding::EncodeLabel as _;
        for label in self.0 {
            label.encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition;
    use crate::seen::PodName;
    use crate::usage::Use;
    use prometheus_client::registry::Registry;
    use std::sync::Arc;

    #[test]
    fn the_metrics_of_a_node_are_named_as_documented() {
        let metrics = Arc::new(Metrics::default());
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
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics));
        let text = exposition::text(&registry);
        let gpu = "{node=\"n1\",gpu=\"GPU-a\",model=\"NVIDIA \\\"A100\\\"\"}";
        for line in [
            "# TYPE agentaflow_gpu_total untyped".to_owned(),
            "agentaflow_gpu_total{node=\"n1\"} 1.0".to_owned(),
            "agentaflow_gpu_available{node=\"n1\"} 0.0".to_owned(),
            "agentaflow_gpu_units{node=\"n1\"} 4.0".to_owned(),
            "# TYPE agentaflow_monitor_failed_writes_total counter".to_owned(),
            "agentaflow_monitor_failed_writes_total{node=\"n1\"} 3".to_owned(),
            format!("agentaflow_gpu_utilization{gpu} 37.0"),
            format!("agentaflow_gpu_temperature_celsius{gpu} 41.0"),
            format!("agentaflow_gpu_power_watts{gpu} 99.0"),
            format!("agentaflow_gpu_memory_total_bytes{gpu} 2097152.0"),
            "agentaflow_pod_gpu_memory_bytes{node=\"n1\",namespace=\"ml\",pod=\"train\",gpu=\"GPU-a\"} 1048576.0".to_owned(),
            "agentaflow_pod_gpus{node=\"n1\",namespace=\"ml\",pod=\"train\"} 0.25".to_owned(),
        ] {
            assert!(text.lines().any(|written| written == line), "`{line}` is not in\n{text}");
        }
        assert!(text.contains("agentaflow_build_info{version="));
        assert!(!text.contains("agentaflow_pod_gpu_utilization"), "what is not known is not told");
        assert!(!text.contains("# EOF"));
    }
}

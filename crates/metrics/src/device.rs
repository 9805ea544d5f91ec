//! Series of single GPUs, and of workloads on them. Only programs on the node of a GPU export them; totals of the cluster
//! come from the scheduler, so that no sum over all targets counts a GPU twice.

use crate::exposition::{Exposition, MetricType};
use MetricType::{Counter, Gauge};

const MIB: f64 = 1_048_576.0;
const MEGAHERTZ: f64 = 1e6;

/// Readings of a GPU at one time. A value that the GPU does not report has no series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReading {
    pub node: String,
    pub index: u32,
    pub uuid: String,
    pub model: String,
    pub driver: Option<String>,
    pub pci_bus_id: Option<String>,
    /// Percent of time with a running kernel.
    pub utilization: Option<f64>,
    /// Percent of time with a memory access.
    pub memory_utilization: Option<f64>,
    /// Percent of time with an active compute or graphics engine.
    pub engine_activity: Option<f64>,
    /// Percent of time with active tensor cores.
    pub tensor_activity: Option<f64>,
    /// MiB.
    pub memory_used: Option<u64>,
    /// MiB.
    pub memory_total: u64,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
    /// Watts.
    pub power_limit: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy: Option<f64>,
    /// MHz.
    pub sm_clock: Option<u32>,
    /// MHz.
    pub memory_clock: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_errors: Option<u64>,
    /// Corrected memory errors since the driver was loaded.
    pub corrected_ecc_errors: Option<u64>,
    /// Rows of memory that were remapped after corrected, and after uncorrected errors.
    pub remapped_rows: Option<(u64, u64)>,
    /// Driver error (XID) that keeps the GPU out of use.
    pub xid: Option<u64>,
    /// Last driver error of any kind.
    pub last_xid: Option<u64>,
    /// Driver errors by XID since the program started; the XIDs are a bounded set.
    pub xid_errors: Vec<(String, u64)>,
    /// Active reasons: `power cap`, `thermal`, …
    pub throttled: Vec<String>,
    /// None if the program does not look at processes.
    pub processes: Option<u32>,
    pub healthy: bool,
    /// Allocated share, 0 to 1.
    pub allocated: Option<f64>,
    /// Namespace and name of the only pod that has the GPU.
    pub pod: Option<(String, String)>,
}

impl DeviceReading {
    fn labels(&self) -> [(&'static str, &str); 3] {
        [("node", &self.node), ("gpu", &self.uuid), ("model", &self.model)]
    }

    fn labels_with<'a>(
        &'a self,
        name: &'static str,
        value: &'a str,
    ) -> [(&'static str, &'a str); 4] {
        let [node, gpu, model] = self.labels();
        [node, gpu, model, (name, value)]
    }
}

/// Use of one GPU by one workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadReading {
    /// Labels that name the workload: `job_id`, or `namespace` and `pod`.
    pub workload: Vec<(&'static str, String)>,
    pub node: String,
    pub uuid: String,
    /// MiB.
    pub memory: u64,
    /// Percent of the time of the GPU; none if the driver does not report it.
    pub utilization: Option<f64>,
    /// Joules since the workload started on this node.
    pub energy: Option<f64>,
}

pub(crate) type Reading = fn(&DeviceReading) -> Option<f64>;

/// Writes the series of each GPU.
pub fn write_devices(devices: &[DeviceReading], text: &mut Exposition) {
    let readings: [(&str, MetricType, &str, Reading); 19] = [
        ("agentaflow_device_utilization", Gauge, "Percent of time with a running kernel.", |gpu| {
            gpu.utilization
        }),
        (
            "agentaflow_device_memory_utilization",
            Gauge,
            "Percent of time with a memory access.",
            |gpu| gpu.memory_utilization,
        ),
        (
            "agentaflow_device_engine_activity",
            Gauge,
            "Percent of time with an active compute or graphics engine.",
            |gpu| gpu.engine_activity,
        ),
        (
            "agentaflow_device_tensor_activity",
            Gauge,
            "Percent of time with active tensor cores.",
            |gpu| gpu.tensor_activity,
        ),
        ("agentaflow_gpu_healthy", Gauge, "1 if the GPU is usable.", |gpu| {
            Some(f64::from(u8::from(gpu.healthy)))
        }),
        ("agentaflow_gpu_temperature_celsius", Gauge, "Temperature.", |gpu| gpu.temperature),
        ("agentaflow_gpu_power_watts", Gauge, "Power draw.", |gpu| gpu.power),
        ("agentaflow_gpu_power_limit_watts", Gauge, "Power limit.", |gpu| gpu.power_limit),
        (
            "agentaflow_gpu_energy_joules_total",
            Counter,
            "Energy since the driver was loaded.",
            |gpu| gpu.energy,
        ),
        ("agentaflow_gpu_memory_used_bytes", Gauge, "Memory used by all processes.", |gpu| {
            gpu.memory_used.map(|mib| mib as f64 * MIB)
        }),
        ("agentaflow_gpu_memory_total_bytes", Gauge, "Memory.", |gpu| {
            Some(gpu.memory_total as f64 * MIB)
        }),
        ("agentaflow_gpu_sm_clock_hertz", Gauge, "Clock of the multiprocessors.", |gpu| {
            gpu.sm_clock.map(|mhz| f64::from(mhz) * MEGAHERTZ)
        }),
        ("agentaflow_gpu_memory_clock_hertz", Gauge, "Clock of the memory.", |gpu| {
            gpu.memory_clock.map(|mhz| f64::from(mhz) * MEGAHERTZ)
        }),
        (
            "agentaflow_gpu_ecc_uncorrected_errors_total",
            Counter,
            "Uncorrected memory errors since the driver was loaded.",
            |gpu| gpu.ecc_errors.map(|errors| errors as f64),
        ),
        (
            "agentaflow_gpu_ecc_corrected_errors_total",
            Counter,
            "Corrected memory errors since the driver was loaded.",
            |gpu| gpu.corrected_ecc_errors.map(|errors| errors as f64),
        ),
        (
            "agentaflow_gpu_xid",
            Gauge,
            "Driver error (XID) that keeps the GPU out of use, 0 without one.",
            |gpu| Some(gpu.xid.unwrap_or(0) as f64),
        ),
        ("agentaflow_gpu_processes", Gauge, "Processes on the GPU.", |gpu| {
            gpu.processes.map(f64::from)
        }),
        ("agentaflow_gpu_allocated", Gauge, "Allocated share of the GPU, 0 to 1.", |gpu| {
            gpu.allocated
        }),
        ("agentaflow_gpu_throttled", Gauge, "1 while a limit slows the GPU down.", |gpu| {
            Some(f64::from(u8::from(!gpu.throttled.is_empty())))
        }),
    ];
    for (name, kind, help, read) in readings {
        let series = devices.iter().filter_map(|gpu| Some((gpu.labels(), read(gpu)?)));
        text.series(name, kind, help, series);
    }
    write_labelled(devices, text);
}

/// Writes the series of a GPU with a label of their own.
fn write_labelled(devices: &[DeviceReading], text: &mut Exposition) {
    let reasons = devices.iter().flat_map(|gpu| {
        gpu.throttled.iter().map(|reason| (gpu.labels_with("reason", reason), 1.0))
    });
    text.series("agentaflow_gpu_throttle_reason", Gauge, "Active throttle reasons.", reasons);
    let rows = devices.iter().flat_map(|gpu| {
        let rows = gpu.remapped_rows.map(|(corrected, uncorrected)| {
            [("corrected", corrected), ("uncorrected", uncorrected)]
        });
        let rows = rows.into_iter().flatten();
        rows.map(|(errors, rows)| (gpu.labels_with("errors", errors), rows as f64))
    });
    let help = "Rows of memory that were remapped after errors.";
    text.series("agentaflow_gpu_remapped_rows", Gauge, help, rows);
    let errors = devices.iter().flat_map(|gpu| {
        gpu.xid_errors.iter().map(|(xid, count)| (gpu.labels_with("xid", xid), *count as f64))
    });
    let help = "Driver errors (XID) since the program started, those of applications included.";
    text.series("agentaflow_gpu_xid_errors_total", Counter, help, errors);
}

/// Names of the metrics of a kind of workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadNames {
    memory: &'static str,
    utilization: &'static str,
    energy: &'static str,
}

pub const JOB_NAMES: WorkloadNames = WorkloadNames {
    memory: "agentaflow_job_gpu_memory_bytes",
    utilization: "agentaflow_job_gpu_utilization",
    energy: "agentaflow_job_gpu_energy_joules_total",
};

pub const POD_NAMES: WorkloadNames = WorkloadNames {
    memory: "agentaflow_pod_gpu_memory_bytes",
    utilization: "agentaflow_pod_gpu_utilization",
    energy: "agentaflow_pod_gpu_energy_joules_total",
};

/// Writes the use of GPUs by workloads.
pub fn write_workloads(names: WorkloadNames, workloads: &[WorkloadReading], text: &mut Exposition) {
    let series = |read: fn(&WorkloadReading) -> Option<f64>| {
        workloads.iter().filter_map(move |workload| {
            let mut labels = vec![("node", workload.node.clone())];
            labels.extend(workload.workload.iter().cloned());
            labels.push(("gpu", workload.uuid.clone()));
            Some((labels, read(workload)?))
        })
    };
    text.series(
        names.memory,
        Gauge,
        "GPU memory used by the workload.",
        series(|workload| Some(workload.memory as f64 * MIB)),
    );
    text.series(
        names.utilization,
        Gauge,
        "Percent of a GPU used by the workload.",
        series(|workload| workload.utilization),
    );
    text.series(
        names.energy,
        Counter,
        "Energy of the workload; a shared GPU is divided by use of its multiprocessors.",
        series(|workload| workload.energy),
    );
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dcgm::write_dcgm;
    use crate::exposition::Format;

    pub(crate) fn gpu() -> DeviceReading {
        DeviceReading {
            node: "gpu-node-1".into(),
            index: 3,
            uuid: "GPU-a".into(),
            model: "NVIDIA H200".into(),
            utilization: Some(37.0),
            memory_used: Some(2),
            memory_total: 10,
            energy: Some(1.5),
            sm_clock: Some(1_980),
            throttled: vec!["power cap".into()],
            corrected_ecc_errors: Some(5),
            remapped_rows: Some((1, 2)),
            last_xid: Some(13),
            xid_errors: vec![("13".into(), 4)],
            healthy: true,
            ..DeviceReading::default()
        }
    }

    pub(crate) fn written(write: impl Fn(&mut Exposition)) -> String {
        let mut text = Exposition::new(Format::Text);
        write(&mut text);
        text.into_text()
    }

    #[test]
    fn a_reading_that_the_gpu_does_not_report_has_no_series() {
        let text = written(|text| write_devices(&[gpu()], text));
        let labels = "{node=\"gpu-node-1\",gpu=\"GPU-a\",model=\"NVIDIA H200\"";
        for line in [
            format!("agentaflow_device_utilization{labels}}} 37"),
            format!("agentaflow_gpu_memory_used_bytes{labels}}} 2097152"),
            format!("agentaflow_gpu_energy_joules_total{labels}}} 1.5"),
            format!("agentaflow_gpu_sm_clock_hertz{labels}}} 1980000000"),
            format!("agentaflow_gpu_throttle_reason{labels},reason=\"power cap\"}} 1"),
            format!("agentaflow_gpu_ecc_corrected_errors_total{labels}}} 5"),
            format!("agentaflow_gpu_remapped_rows{labels},errors=\"corrected\"}} 1"),
            format!("agentaflow_gpu_remapped_rows{labels},errors=\"uncorrected\"}} 2"),
            format!("agentaflow_gpu_xid_errors_total{labels},xid=\"13\"}} 4"),
            format!("agentaflow_gpu_xid{labels}}} 0"),
        ] {
            assert!(text.lines().any(|written| written == line), "`{line}` is not in\n{text}");
        }
        assert!(!text.contains("temperature"), "{text}");
    }

    #[test]
    fn the_series_of_1000_gpus_are_written_in_less_than_50_ms() {
        let devices: Vec<DeviceReading> = (0..1_000)
            .map(|number| DeviceReading {
                uuid: format!("GPU-{number:08}-0000-0000-0000-000000000000"),
                memory_utilization: Some(12.0),
                engine_activity: Some(37.5),
                tensor_activity: Some(12.5),
                temperature: Some(55.0),
                power: Some(512.25),
                power_limit: Some(700.0),
                memory_clock: Some(3_201),
                ecc_errors: Some(0),
                processes: Some(2),
                allocated: Some(1.0),
                ..gpu()
            })
            .collect();
        let scrape = || {
            let began = std::time::Instant::now();
            let text = written(|text| {
                write_devices(&devices, text);
                write_dcgm(&devices, text);
            });
            (began.elapsed(), text)
        };
        let (_, text) = scrape();
        assert_eq!(text.lines().filter(|line| line.contains("GPU-00000999-")).count(), 40);
        let fastest = (0..30).map(|_| scrape().0).min().unwrap();
        println!("the series of 1,000 GPUs took {fastest:?}");
        assert!(fastest.as_millis() < 50, "{fastest:?}");
    }

    #[test]
    fn workloads_are_labelled_by_their_owner_and_gpu() {
        let workload = WorkloadReading {
            workload: vec![("job_id", "7".into())],
            node: "n1".into(),
            uuid: "GPU-a".into(),
            memory: 1,
            utilization: None,
            energy: Some(12.0),
        };
        let text = written(|text| {
            write_workloads(JOB_NAMES, std::slice::from_ref(&workload), text);
        });
        let labels = "{node=\"n1\",job_id=\"7\",gpu=\"GPU-a\"}";
        assert!(text.contains(&format!("agentaflow_job_gpu_memory_bytes{labels} 1048576\n")));
        assert!(text.contains(&format!("agentaflow_job_gpu_energy_joules_total{labels} 12\n")));
        assert!(!text.contains("agentaflow_job_gpu_utilization"));
    }
}

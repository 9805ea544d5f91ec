//! GPUs and tasks as series of metrics.

use agentaflow_api::node::GpuStatus;
use agentaflow_gpu::Device;
use agentaflow_metrics::{DeviceReading, WorkloadReading};

use super::{GpuState, GpuWatch};

impl GpuWatch {
    /// Readings of all GPUs; the metrics of a GPU that cannot be read have no old values.
    pub(crate) fn device_readings(&self, node: &str) -> Vec<DeviceReading> {
        let driver = self.host().driver;
        let state = self.state();
        let readable = state.devices.iter().filter(|gpu| gpu.memory > 0);
        let reading = |gpu: &Device| DeviceReading {
            node: node.to_owned(),
            driver: driver.clone(),
            ..state.device_reading(gpu)
        };
        readable.map(reading).collect()
    }

    /// Use of GPUs by at most `limit` pairs of task and GPU.
    pub(crate) fn task_readings(&self, node: &str, limit: usize) -> Vec<WorkloadReading> {
        let state = self.state();
        let each = state.usage.uses().iter().take(limit).map(|entry| {
            let key = entry.workload;
            WorkloadReading {
                workload: vec![("job_id", key.job.0.to_string()), ("task", key.task.to_string())],
                node: node.to_owned(),
                memory: state.usage.memory(key, &entry.uuid),
                utilization: entry.utilization.map(f64::from),
                energy: state.usage.joules(key, &entry.uuid),
                uuid: entry.uuid.clone(),
            }
        });
        each.collect()
    }
}

impl GpuState {
    fn device_reading(&self, gpu: &Device) -> DeviceReading {
        let silent = self.silence(gpu).is_some();
        let sample = self.samples.get(&gpu.uuid).filter(|_| !silent).cloned().unwrap_or_default();
        let usable = matches!(self.status(gpu), GpuStatus::Available | GpuStatus::Busy);
        DeviceReading {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            model: gpu.name.clone(),
            pci_bus_id: gpu.pci_bus_id.clone(),
            utilization: sample.utilization.map(f64::from),
            memory_utilization: sample.memory_utilization.map(f64::from),
            engine_activity: sample.engine_activity,
            tensor_activity: sample.tensor_activity,
            memory_used: sample.memory_used,
            memory_total: gpu.memory,
            temperature: sample.temperature.map(f64::from),
            power: sample.power,
            power_limit: gpu.power_limit,
            energy: sample.energy,
            sm_clock: sample.sm_clock,
            memory_clock: sample.memory_clock,
            ecc_errors: sample.ecc_errors,
            corrected_ecc_errors: sample.corrected_ecc_errors,
            remapped_rows: sample.remapped_rows.map(|rows| (rows.corrected, rows.uncorrected)),
            xid: self.health.xid(&gpu.uuid),
            last_xid: self.xids.last(&gpu.uuid),
            xid_errors: self.xids.counts(&gpu.uuid),
            throttled: sample.throttled,
            processes: (!silent && !gpu.simulated).then(|| self.usage.processes(&gpu.uuid)),
            healthy: usable,
            allocated: Some(f64::from(self.usage.granted(&gpu.uuid)) / 1_000.0),
            ..DeviceReading::default()
        }
    }
}

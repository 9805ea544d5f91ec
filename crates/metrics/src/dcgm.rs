//! Series of single GPUs under the names, units and labels of NVIDIA's `dcgm-exporter`.

use crate::device::{DeviceReading, Reading};
use crate::exposition::{Exposition, MetricType};
use MetricType::{Gauge, Untyped};

/// Writes the series of each GPU under the names, units and labels of NVIDIA's `dcgm-exporter`.
pub fn write_dcgm(devices: &[DeviceReading], text: &mut Exposition) {
    // `dcgm-exporter` calls some of them counters although their names lack the suffix; untyped is neutral.
    let readings: [(&str, MetricType, &str, Reading); 17] = [
        ("DCGM_FI_DEV_GPU_UTIL", Gauge, "GPU utilization (in %).", |gpu| gpu.utilization),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", Gauge, "Memory utilization (in %).", |gpu| {
            gpu.memory_utilization
        }),
        ("DCGM_FI_DEV_FB_USED", Gauge, "Framebuffer memory used (in MiB).", |gpu| {
            gpu.memory_used.map(|mib| mib as f64)
        }),
        ("DCGM_FI_DEV_FB_FREE", Gauge, "Framebuffer memory free (in MiB).", |gpu| {
            gpu.memory_used.map(|mib| gpu.memory_total.saturating_sub(mib) as f64)
        }),
        ("DCGM_FI_DEV_GPU_TEMP", Gauge, "GPU temperature (in C).", |gpu| gpu.temperature),
        ("DCGM_FI_DEV_POWER_USAGE", Gauge, "Power draw (in W).", |gpu| gpu.power),
        ("DCGM_FI_DEV_POWER_MGMT_LIMIT", Gauge, "Power limit (in W).", |gpu| gpu.power_limit),
        (
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            Untyped,
            "Energy since the driver was loaded (in mJ).",
            |gpu| gpu.energy.map(|joules| joules * 1_000.0),
        ),
        ("DCGM_FI_DEV_SM_CLOCK", Gauge, "SM clock frequency (in MHz).", |gpu| {
            gpu.sm_clock.map(f64::from)
        }),
        ("DCGM_FI_DEV_MEM_CLOCK", Gauge, "Memory clock frequency (in MHz).", |gpu| {
            gpu.memory_clock.map(f64::from)
        }),
        ("DCGM_FI_DEV_XID_ERRORS", Gauge, "Value of the last XID error.", |gpu| {
            Some(gpu.last_xid.or(gpu.xid).unwrap_or(0) as f64)
        }),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Untyped, "Corrected volatile ECC errors.", |gpu| {
            gpu.corrected_ecc_errors.map(|errors| errors as f64)
        }),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Untyped, "Uncorrected volatile ECC errors.", |gpu| {
            gpu.ecc_errors.map(|errors| errors as f64)
        }),
        (
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
            Untyped,
            "Rows remapped after corrected errors.",
            |gpu| gpu.remapped_rows.map(|(corrected, _)| corrected as f64),
        ),
        (
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
            Untyped,
            "Rows remapped after uncorrected errors.",
            |gpu| gpu.remapped_rows.map(|(_, uncorrected)| uncorrected as f64),
        ),
        (
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            Gauge,
            "Ratio of time in which the graphics engine is active.",
            // GPUs before Hopper report the time with a running kernel only.
            |gpu| gpu.engine_activity.or(gpu.utilization).map(|percent| percent / 100.0),
        ),
        (
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            Gauge,
            "Ratio of cycles in which a tensor pipe is active.",
            |gpu| gpu.tensor_activity.map(|percent| percent / 100.0),
        ),
    ];
    let labels: Vec<_> = devices.iter().map(dcgm_labels).collect();
    for (name, kind, help, read) in readings {
        let series = devices.iter().zip(&labels);
        let series = series.filter_map(|(gpu, labels)| Some((labels.as_slice(), read(gpu)?)));
        text.series(name, kind, help, series);
    }
}

fn dcgm_labels(gpu: &DeviceReading) -> Vec<(&'static str, String)> {
    let mut labels = vec![
        ("gpu", gpu.index.to_string()),
        ("UUID", gpu.uuid.clone()),
        ("pci_bus_id", gpu.pci_bus_id.clone().unwrap_or_default()),
        ("device", format!("nvidia{}", gpu.index)),
        ("modelName", gpu.model.clone()),
        // Versions 3 and 4 of the exporter spell the label differently.
        ("Hostname", gpu.node.clone()),
        ("hostname", gpu.node.clone()),
        ("DCGM_FI_DRIVER_VERSION", gpu.driver.clone().unwrap_or_default()),
        ("kubernetes_node", gpu.node.clone()),
    ];
    if let Some((namespace, pod)) = &gpu.pod {
        labels.extend([("namespace", namespace.clone()), ("pod", pod.clone())]);
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::{gpu, written};

    #[test]
    fn dcgm_series_have_the_units_and_labels_of_its_exporter() {
        let text = written(|text| write_dcgm(&[gpu()], text));
        let labels = "{gpu=\"3\",UUID=\"GPU-a\",pci_bus_id=\"\",device=\"nvidia3\",modelName=\"NVIDIA H200\",\
            Hostname=\"gpu-node-1\",hostname=\"gpu-node-1\",DCGM_FI_DRIVER_VERSION=\"\",kubernetes_node=\"gpu-node-1\"}";
        for line in [
            format!("DCGM_FI_DEV_GPU_UTIL{labels} 37"),
            format!("DCGM_FI_DEV_FB_FREE{labels} 8"),
            format!("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{labels} 1500"),
            format!("DCGM_FI_DEV_XID_ERRORS{labels} 13"),
            format!("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{labels} 5"),
            format!("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{labels} 2"),
            format!("DCGM_FI_PROF_GR_ENGINE_ACTIVE{labels} 0.37"),
        ] {
            assert!(text.lines().any(|written| written == line), "`{line}` is not in\n{text}");
        }
    }
}

//! GPU metrics under OpenTelemetry's names for hardware, `hw.gpu.*`.

use std::time::Duration;

use agentaflow_api::units::Stamp;
use agentaflow_metrics::DeviceReading;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::attribute::{self, Attribute};
use crate::exporter::Exporter;
use crate::span::nanoseconds;

const INTERVAL: Duration = Duration::from_secs(30);
const MIB: f64 = 1_048_576.0;
const PERCENT: f64 = 100.0;
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u8 = 2;

/// Form of a metric.
#[derive(Clone, Copy, Debug)]
enum Form {
    Gauge,
    /// A sum over all GPUs has a meaning, and may fall.
    UpDownCounter,
    Counter,
}

struct Metric {
    name: &'static str,
    unit: &'static str,
    form: Form,
    read: fn(&DeviceReading) -> Option<f64>,
}

const METRICS: [Metric; 8] = [
    Metric {
        name: "hw.gpu.utilization",
        unit: "1",
        form: Form::Gauge,
        read: |gpu| gpu.utilization.map(|percent| percent / PERCENT),
    },
    Metric {
        name: "hw.gpu.memory.utilization",
        unit: "1",
        form: Form::Gauge,
        read: |gpu| {
            let used = gpu.memory_used.filter(|_| gpu.memory_total > 0)?;
            Some(used as f64 / gpu.memory_total as f64)
        },
    },
    Metric {
        name: "hw.gpu.memory.usage",
        unit: "By",
        form: Form::UpDownCounter,
        read: |gpu| gpu.memory_used.map(|mib| mib as f64 * MIB),
    },
    Metric {
        name: "hw.gpu.memory.limit",
        unit: "By",
        form: Form::UpDownCounter,
        read: |gpu| Some(gpu.memory_total as f64 * MIB),
    },
    Metric { name: "hw.temperature", unit: "Cel", form: Form::Gauge, read: |gpu| gpu.temperature },
    Metric { name: "hw.power", unit: "W", form: Form::Gauge, read: |gpu| gpu.power },
    Metric { name: "hw.energy", unit: "J", form: Form::Counter, read: |gpu| gpu.energy },
    Metric {
        name: "hw.errors",
        unit: "{error}",
        form: Form::Counter,
        read: |gpu| gpu.ecc_errors.map(|errors| errors as f64),
    },
];

/// States of `hw.status`.
const STATES: [(&str, bool); 2] = [("ok", true), ("failed", false)];

/// Sends the readings until `stop`. A failed request is not repeated: the next one has newer values.
pub async fn push_gpu_metrics(
    exporter: Exporter,
    read: impl Fn() -> Vec<DeviceReading> + Send,
    stop: CancellationToken,
) {
    let start = Stamp::now();
    let mut failed = false;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let readings = read();
        if readings.is_empty() {
            continue;
        }
        let result = exporter.send_metrics(&encode(&readings, start, Stamp::now())).await;
        if let Err(error) = &result
            && !failed
        {
            tracing::warn!(error = error as &dyn std::error::Error, "Cannot export GPU metrics");
        }
        failed = result.is_err();
    }
}

fn encode(readings: &[DeviceReading], start: Stamp, now: Stamp) -> Vec<Value> {
    let point = |gpu: &DeviceReading, value: f64, more: Option<Attribute>| {
        json!({
            "attributes": attribute::encode(&attributes(gpu, more)),
            "startTimeUnixNano": nanoseconds(start),
            "timeUnixNano": nanoseconds(now),
            "asDouble": value,
        })
    };
    let mut metrics: Vec<Value> = Vec::new();
    for Metric { name, unit, form, read } in METRICS {
        let kind = (name == "hw.errors").then(|| Attribute::new("error.type", "uncorrected"));
        let points: Vec<Value> =
            readings.iter().filter_map(|gpu| Some(point(gpu, read(gpu)?, kind.clone()))).collect();
        if !points.is_empty() {
            metrics.push(metric(name, unit, form, &points));
        }
    }
    let states = readings.iter().flat_map(|gpu| {
        STATES.map(|(state, healthy)| {
            let value = f64::from(u8::from(gpu.healthy == healthy));
            point(gpu, value, Some(Attribute::new("hw.state", state)))
        })
    });
    let states: Vec<Value> = states.collect();
    metrics.push(metric("hw.status", "1", Form::UpDownCounter, &states));
    metrics
}

fn metric(name: &str, unit: &str, form: Form, points: &[Value]) -> Value {
    let sum = |monotonic: bool| json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": monotonic });
    let (key, data) = match form {
        Form::Gauge => ("gauge", json!({ "dataPoints": points })),
        Form::UpDownCounter => ("sum", sum(false)),
        Form::Counter => ("sum", sum(true)),
    };
    json!({ "name": name, "unit": unit, key: data })
}

fn attributes(gpu: &DeviceReading, more: Option<Attribute>) -> Vec<Attribute> {
    let mut attributes = vec![
        Attribute::new("host.name", gpu.node.as_str()),
        Attribute::new("hw.id", gpu.uuid.as_str()),
        Attribute::new("hw.name", format!("GPU {}", gpu.index)),
        Attribute::new("hw.type", "gpu"),
        Attribute::new("hw.model", gpu.model.as_str()),
    ];
    let driver = gpu.driver.as_deref();
    attributes.extend(driver.map(|driver| Attribute::new("hw.driver_version", driver)));
    attributes.extend(more);
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metrics: &[Value], name: &str) -> Option<(f64, Value)> {
        let metric = metrics.iter().find(|metric| metric["name"] == name)?;
        let data = metric.get("gauge").or(metric.get("sum"))?;
        let point = &data["dataPoints"][0];
        Some((point["asDouble"].as_f64()?, data.clone()))
    }

    #[test]
    fn readings_have_the_names_and_units_of_the_conventions() {
        let gpu = DeviceReading {
            node: "gpu-1".to_owned(),
            uuid: "GPU-1".to_owned(),
            model: "NVIDIA H200".to_owned(),
            utilization: Some(40.0),
            memory_used: Some(1024),
            memory_total: 4096,
            energy: Some(12.5),
            ecc_errors: Some(2),
            healthy: true,
            ..DeviceReading::default()
        };
        let metrics = encode(&[gpu], Stamp(1_000), Stamp(2_000));
        let number = |name| value(&metrics, name).map(|(number, _)| number);
        assert_eq!(number("hw.gpu.utilization"), Some(0.4));
        assert_eq!(number("hw.gpu.memory.utilization"), Some(0.25));
        assert_eq!(number("hw.gpu.memory.usage"), Some(1_073_741_824.0));
        assert_eq!(number("hw.gpu.memory.limit"), Some(4_294_967_296.0));
        assert_eq!(number("hw.errors"), Some(2.0));
        assert_eq!(number("hw.status"), Some(1.0));
        // The GPU reports neither.
        assert_eq!((number("hw.power"), number("hw.temperature")), (None, None));
        let (_, energy) = value(&metrics, "hw.energy").unwrap();
        assert_eq!(energy["isMonotonic"], true);
        let point = &energy["dataPoints"][0];
        assert_eq!(point["startTimeUnixNano"], "1000000000");
        assert_eq!(point["timeUnixNano"], "2000000000");
        assert_eq!(
            point["attributes"][1],
            json!({ "key": "hw.id", "value": { "stringValue": "GPU-1" } })
        );
    }
}

//! The workspace's only writer of the Prometheus text format (version 0.0.4).
//!
//! The text is built from current values on each scrape: series of deleted objects end without bookkeeping. The older
//! text format, not `OpenMetrics`, because it has untyped metrics: the documented name `agentaflow_gpu_total` is a
//! gauge with the suffix of a counter.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Value of the `Content-Type` header.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
    Histogram,
    Untyped,
}

impl MetricType {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Untyped => "untyped",
        }
    }
}

/// Label names and values of one series.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Response to a scrape.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Adds a metric without labels.
    pub fn value(&mut self, name: &str, kind: MetricType, help: &str, value: f64) {
        self.header(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds a metric with one sample per series; a metric without series is omitted.
    pub fn series<L, S>(
        &mut self,
        name: &str,
        kind: MetricType,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) where
        L: AsRef<[(&'static str, S)]>,
        S: AsRef<str>,
    {
        let mut series = series.into_iter().peekable();
        if series.peek().is_some() {
            self.header(name, kind, help);
        }
        for (labels, value) in series {
            let labels = labels.as_ref().iter().map(|(name, value)| (*name, value.as_ref()));
            self.sample(name, &labels.collect::<Vec<_>>(), value);
        }
    }

    /// Adds a histogram of durations, in seconds.
    pub fn histogram<const N: usize>(&mut self, name: &str, help: &str, histogram: &Histogram<N>) {
        self.header(name, MetricType::Histogram, help);
        for (bucket, bound) in histogram.buckets.iter().zip(&histogram.bounds) {
            let labels = [("le", &*bound.to_string())];
            self.sample(&format!("{name}_bucket"), &labels, load(bucket));
        }
        let count = load(&histogram.count);
        self.sample(&format!("{name}_bucket"), &[("le", "+Inf")], count);
        self.sample(&format!("{name}_sum"), &[], load(&histogram.nanoseconds) / 1e9);
        self.sample(&format!("{name}_count"), &[], count);
    }

    pub fn into_text(self) -> String {
        self.0
    }

    fn header(&mut self, name: &str, kind: MetricType, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.0.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{value}\"", if index == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> f64 {
        load(&self.0)
    }
}

/// Cumulative histogram of durations.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    /// Upper bounds in seconds, ascending.
    bounds: [f64; N],
    buckets: [AtomicU64; N],
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    pub fn new(bounds: [f64; N]) -> Self {
        let buckets = std::array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, buckets, count: AtomicU64::new(0), nanoseconds: AtomicU64::new(0) }
    }

    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(self.bounds) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

fn load(value: &AtomicU64) -> f64 {
    value.load(Ordering::Relaxed) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_text_format_of_prometheus() {
        let mut text = Exposition::default();
        text.value("a_total", MetricType::Untyped, "All GPUs", 8.0);
        let series =
            [([("node", "n\"1\\"), ("gpu", "0")], 37.5), ([("node", "n2"), ("gpu", "1")], 1.0)];
        text.series("b", MetricType::Gauge, "Two\nlines", series);
        text.series("c", MetricType::Gauge, "Empty", [] as [([(&str, &str); 1], f64); 0]);
        let histogram = Histogram::new([0.001, 0.5]);
        histogram.observe(Duration::from_millis(100));
        histogram.observe(Duration::from_secs(2));
        text.histogram("d", "Durations", &histogram);
        let expected = "\
# HELP a_total All GPUs
# TYPE a_total untyped
a_total 8
# HELP b Two\\nlines
# TYPE b gauge
b{node=\"n\\\"1\\\\\",gpu=\"0\"} 37.5
b{node=\"n2\",gpu=\"1\"} 1
# HELP d Durations
# TYPE d histogram
d_bucket{le=\"0.001\"} 0
d_bucket{le=\"0.5\"} 1
d_bucket{le=\"+Inf\"} 2
d_sum 2.1
d_count 2
";
        assert_eq!(text.into_text(), expected);
    }
}

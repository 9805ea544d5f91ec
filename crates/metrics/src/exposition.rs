//! The two text formats of a scrape.

use std::fmt::Write as _;

use crate::values::Histogram;

/// Format of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text, version 0.0.4.
    #[default]
    Text,
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
}

impl Format {
    const OPEN_METRICS: &str = "application/openmetrics-text";

    /// Format for the value of an `Accept` header. `OpenMetrics` only if the client lists it.
    pub fn accepted(accept: Option<&str>) -> Self {
        let mut ranges = accept.unwrap_or_default().split(',');
        let wanted = ranges.any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            kind.eq_ignore_ascii_case(Self::OPEN_METRICS) && !parts.any(|part| part == "q=0")
        });
        if wanted { Self::OpenMetrics } else { Self::Text }
    }

    /// Value of the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// The name ends in `_total`.
    Counter,
    Gauge,
    Histogram,
    /// For documented names that break a rule of the other types, such as the gauge `agentaflow_gpu_total`.
    Untyped,
}

impl MetricType {
    fn name(self, format: Format) -> &'static str {
        match (self, format) {
            (Self::Counter, _) => "counter",
            (Self::Gauge, _) => "gauge",
            (Self::Histogram, _) => "histogram",
            (Self::Untyped, Format::Text) => "untyped",
            (Self::Untyped, Format::OpenMetrics) => "unknown",
        }
    }
}

/// Label names and values of one series.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Response to a scrape.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    format: Format,
}

impl Exposition {
    pub fn new(format: Format) -> Self {
        Self { text: String::new(), format }
    }

    /// Adds a metric without labels.
    pub fn value(&mut self, name: &str, kind: MetricType, help: &str, value: f64) {
        self.header(name, kind, help);
        self.sample(name, "", &[], value);
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
            self.sample(name, "", &labels.collect::<Vec<_>>(), value);
        }
    }

    /// Adds a histogram of durations, in seconds.
    pub fn histogram<const N: usize>(&mut self, name: &str, help: &str, histogram: &Histogram<N>) {
        self.header(name, MetricType::Histogram, help);
        self.buckets(name, &[], histogram);
    }

    /// Adds a histogram of durations with one set of buckets per series; a metric without series is omitted.
    pub fn histograms<'a, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'a>, &'a Histogram<N>)>,
    ) {
        let mut series = series.into_iter().peekable();
        if series.peek().is_some() {
            self.header(name, MetricType::Histogram, help);
        }
        for (labels, histogram) in series {
            self.buckets(name, labels, histogram);
        }
    }

    pub fn into_text(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn header(&mut self, name: &str, kind: MetricType, help: &str) {
        // OpenMetrics names the family of a counter without the suffix of its samples.
        let family = match (self.format, kind) {
            (Format::OpenMetrics, MetricType::Counter) => {
                name.strip_suffix("_total").unwrap_or(name)
            }
            _ => name,
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let kind = kind.name(self.format);
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {kind}");
    }

    fn buckets<const N: usize>(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        histogram: &Histogram<N>,
    ) {
        for (bound, count) in histogram.buckets() {
            let mut bound = bound.to_string();
            if self.format == Format::OpenMetrics && !bound.contains('.') {
                bound.push_str(".0");
            }
            self.sample(name, "_bucket", &[labels, &[("le", &bound)]].concat(), count);
        }
        let count = histogram.count();
        self.sample(name, "_bucket", &[labels, &[("le", "+Inf")]].concat(), count);
        self.sample(name, "_sum", labels, histogram.sum());
        self.sample(name, "_count", labels, count);
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: Labels<'_>, value: f64) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        for (index, (label, value)) in labels.iter().enumerate() {
            self.text.push_str(if index == 0 { "{" } else { "," });
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(&mut self.text, value);
            self.text.push('"');
        }
        self.text.push_str(if labels.is_empty() { " " } else { "} " });
        let _ = writeln!(self.text, "{value}");
    }
}

fn escape(text: &mut String, value: &str) {
    if !value.contains(['\\', '"', '\n']) {
        return text.push_str(value);
    }
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            _ => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn response(format: Format) -> String {
        let mut text = Exposition::new(format);
        text.value("a_total", MetricType::Untyped, "All GPUs", 8.0);
        let series =
            [([("node", "n\"1\\"), ("gpu", "0")], 37.5), ([("node", "n2"), ("gpu", "1")], 1.0)];
        text.series("b", MetricType::Gauge, "Two\nlines", series);
        text.series("c", MetricType::Gauge, "Empty", [] as [([(&str, &str); 1], f64); 0]);
        text.value("e_total", MetricType::Counter, "Errors", 2.0);
        let histogram = Histogram::new([0.001, 1.0]);
        histogram.observe(Duration::from_millis(100));
        histogram.observe(Duration::from_secs(2));
        text.histogram("d_seconds", "Durations", &histogram);
        let labels: Labels<'_> = &[("route", "/jobs")];
        text.histograms("f_seconds", "By route", [(labels, &histogram)]);
        text.into_text()
    }

    #[test]
    fn metrics_have_the_text_format_of_prometheus() {
        let expected = "\
# HELP a_total All GPUs
# TYPE a_total untyped
a_total 8
# HELP b Two\\nlines
# TYPE b gauge
b{node=\"n\\\"1\\\\\",gpu=\"0\"} 37.5
b{node=\"n2\",gpu=\"1\"} 1
# HELP e_total Errors
# TYPE e_total counter
e_total 2
# HELP d_seconds Durations
# TYPE d_seconds histogram
d_seconds_bucket{le=\"0.001\"} 0
d_seconds_bucket{le=\"1\"} 1
d_seconds_bucket{le=\"+Inf\"} 2
d_seconds_sum 2.1
d_seconds_count 2
# HELP f_seconds By route
# TYPE f_seconds histogram
f_seconds_bucket{route=\"/jobs\",le=\"0.001\"} 0
f_seconds_bucket{route=\"/jobs\",le=\"1\"} 1
f_seconds_bucket{route=\"/jobs\",le=\"+Inf\"} 2
f_seconds_sum{route=\"/jobs\"} 2.1
f_seconds_count{route=\"/jobs\"} 2
";
        assert_eq!(response(Format::Text), expected);
    }

    #[test]
    fn open_metrics_differs_in_counter_families_types_bounds_and_the_end() {
        let text = response(Format::OpenMetrics);
        for line in [
            "# TYPE a_total unknown",
            "# TYPE e counter",
            "e_total 2",
            "d_seconds_bucket{le=\"1.0\"} 1",
        ] {
            assert!(text.lines().any(|written| written == line), "`{line}` is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_client_gets_open_metrics_only_if_it_accepts_that_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;q=0.5";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        for accept in
            [None, Some("*/*"), Some("text/plain"), Some("application/openmetrics-text; q=0")]
        {
            assert_eq!(Format::accepted(accept), Format::Text, "{accept:?}");
        }
    }
}

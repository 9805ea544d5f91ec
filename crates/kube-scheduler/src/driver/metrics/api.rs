//! Requests to the API server: durations, and failures by kind.

use std::time::Duration;

use agentaflow_metrics::MetricType::Counter as CounterType;
use agentaflow_metrics::{Counter, Exposition, HistogramFamily, Labels};
use http::Method;

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 4.0];

#[derive(Debug)]
pub(crate) struct ApiRequests {
    /// By method.
    durations: HistogramFamily<1, { BUCKETS.len() }>,
    pub(crate) not_found: Counter,
    pub(crate) conflict: Counter,
    pub(crate) refused: Counter,
    pub(crate) throttled: Counter,
    pub(crate) no_response: Counter,
}

impl Default for ApiRequests {
    fn default() -> Self {
        Self {
            durations: HistogramFamily::new(BUCKETS),
            not_found: Counter::default(),
            conflict: Counter::default(),
            refused: Counter::default(),
            throttled: Counter::default(),
            no_response: Counter::default(),
        }
    }
}

impl ApiRequests {
    /// Records the duration of a request, with or without a response.
    pub(crate) fn observe(&self, method: &Method, took: Duration) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        self.durations.observe([method], took);
    }

    pub(super) fn write(&self, text: &mut Exposition) {
        let series = self.durations.series();
        let labels: Vec<_> = series.iter().map(|([method], _)| [("method", *method)]).collect();
        let series = series.iter().zip(&labels);
        let series = series.map(|((_, histogram), labels)| (labels as Labels<'_>, &**histogram));
        let help = "Duration of a request to the API server; watches are excluded.";
        text.histograms("agentaflow_api_request_duration_seconds", help, series);
        let kinds = [
            ("not_found", &self.not_found),
            ("conflict", &self.conflict),
            ("refused", &self.refused),
            ("throttled", &self.throttled),
            ("no_response", &self.no_response),
        ];
        text.series(
            "agentaflow_api_errors_total",
            CounterType,
            "Failed requests to the API server by kind.",
            kinds.map(|(kind, counter)| ([("kind", kind)], counter.get())),
        );
    }
}

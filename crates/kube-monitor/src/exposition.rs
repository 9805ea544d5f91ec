//! Metrics in Prometheus' text format.
//!
//! The library writes `OpenMetrics`, which names counters and untyped metrics otherwise; tools that only know the older
//! format would stumble over that.

use std::collections::BTreeSet;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// What the answer is, as its header says.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything in the registry.
pub(super) fn text(registry: &Registry) -> String {
    let mut written = String::new();
    if let Err(error) = encode_registry(&mut written, registry) {
        tracing::warn!(%error, "cannot write all metrics");
    }
    prometheus(&written)
}

fn prometheus(open: &str) -> String {
    let counters: BTreeSet<&str> = open
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open.len());
    for line in open.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let mut parts = line.splitn(4, ' ');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("#"), Some(word), Some(name), Some(rest)) => {
                let total = if counters.contains(name) { "_total" } else { "" };
                let rest = if word == "TYPE" && rest == "unknown" { "untyped" } else { rest };
                for part in ["# ", word, " ", name, total, " ", rest] {
                    text.push_str(part);
                }
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_untyped_metrics_are_written_as_prometheus_reads_them() {
        let open = "# HELP a_total All of them\n# TYPE a_total unknown\na_total{node=\"n\"} 8\n\
                    # HELP b Failures\n# TYPE b counter\n# UNIT b seconds\nb_total 3\n# EOF\n";
        let expected = "# HELP a_total All of them\n# TYPE a_total untyped\na_total{node=\"n\"} 8\n\
                        # HELP b_total Failures\n# TYPE b_total counter\nb_total 3\n";
        assert_eq!(prometheus(open), expected);
    }
}

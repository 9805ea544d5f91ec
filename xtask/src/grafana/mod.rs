//! `cargo xtask grafana`: the dashboards in `deploy/grafana`, generated from `tables`.

mod tables;

use anyhow::Result;
use serde_json::{Value, json};

use crate::generate::{Files, Generator};
use tables::{DASHBOARDS, Dashboard, Panel, Query, View};

pub(crate) const HELP: &str = "\
Generate the Grafana dashboards in deploy/grafana from the tables in xtask/src/grafana/tables.

Usage: cargo xtask grafana [--check]

Options:
  --check     Write nothing; exit with 1 if a file does not match the tables
  -h, --help  Show this text

Run `cargo xtask examples` afterwards, which copies the dashboards.";

pub(crate) const GENERATOR: Generator =
    Generator { name: "grafana", source: "xtask/src/grafana/tables", generate };

pub(crate) const FOLDER: &str = "deploy/grafana";

/// Columns of a dashboard.
const COLUMNS: u32 = 24;

fn generate() -> Result<Files> {
    let file = |dashboard: &&Dashboard| {
        let text = serde_json::to_string_pretty(&document(dashboard))? + "\n";
        Ok((format!("{FOLDER}/{}.json", dashboard.name), text))
    };
    DASHBOARDS.iter().map(file).collect()
}

fn document(dashboard: &Dashboard) -> Value {
    let datasource = json!({
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        "refresh": 1, "hide": 0,
    });
    let mut variables = vec![datasource];
    if dashboard.has_nodes {
        variables.push(json!({
            "name": "node", "label": "Node", "type": "query", "datasource": source(),
            "query": {"query": "label_values(agentaflow_gpu_temperature_celsius, node)", "refId": "node"},
            "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".+",
            "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
        }));
    }
    json!({
        "uid": format!("agentaflow-{}", dashboard.name),
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["agentaflow", "gpu"],
        "schemaVersion": 39,
        "version": 1,
        "editable": true,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "annotations": {"list": []},
        "links": [{
            "title": "AgentaFlow", "type": "dashboards", "tags": ["agentaflow"], "asDropdown": true,
            "includeVars": true, "keepTime": true,
        }],
        "templating": {"list": variables},
        "panels": panels(dashboard),
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn panels(dashboard: &Dashboard) -> Vec<Value> {
    let mut grid = Grid::default();
    let mut all = Vec::new();
    for section in dashboard.sections {
        all.push(json!({
            "type": "row", "title": section.title, "collapsed": false, "panels": [],
            "gridPos": grid.place(COLUMNS, 1),
        }));
        for shown in section.panels {
            let place = match shown.view {
                View::Stat => grid.place(4, 4),
                View::Third => grid.place(8, 8),
                View::Half => grid.place(12, 8),
            };
            all.push(panel(shown, &place));
        }
    }
    for (id, panel) in (1..).zip(&mut all) {
        panel["id"] = Value::from(id);
    }
    all
}

/// Places panels from left to right and from top to bottom.
#[derive(Default)]
struct Grid {
    x: u32,
    y: u32,
    /// Height of the current line.
    height: u32,
}

impl Grid {
    fn place(&mut self, width: u32, height: u32) -> Value {
        if self.x + width > COLUMNS {
            self.x = 0;
            self.y += self.height;
            self.height = 0;
        }
        let place = json!({"h": height, "w": width, "x": self.x, "y": self.y});
        self.x += width;
        self.height = self.height.max(height);
        place
    }
}

fn panel(panel: &Panel, place: &Value) -> Value {
    let is_stat = panel.view == View::Stat;
    let options = if is_stat {
        json!({
            "colorMode": "none", "graphMode": "area", "justifyMode": "auto", "textMode": "value",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
        })
    } else {
        json!({
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        })
    };
    let mut defaults = json!({"unit": panel.unit, "min": 0});
    if panel.queries.iter().all(|query| query.may_be_empty) {
        defaults["noValue"] = Value::from("none");
    }
    let targets = panel.queries.iter().zip('A'..='Z').map(|(query, letter)| target(query, letter));
    json!({
        "type": if is_stat { "stat" } else { "timeseries" },
        "title": panel.title,
        "description": format!("{} Series of {}.", panel.about, programs(panel)),
        "datasource": source(),
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets.collect::<Vec<_>>(),
    })
}

/// Exporters of the metrics of a panel.
fn programs(panel: &Panel) -> String {
    let sources = panel.queries.iter().flat_map(|query| query.sources);
    let mut programs: Vec<&str> = Vec::new();
    for source in sources {
        if !programs.contains(&source.programs()) {
            programs.push(source.programs());
        }
    }
    programs.join(", ")
}

fn target(query: &Query, letter: char) -> Value {
    json!({
        "refId": letter.to_string(),
        "datasource": source(),
        "expr": query.expression,
        "legendFormat": query.legend,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::repo;

    #[test]
    fn panels_fill_lines_and_do_not_overlap() {
        for dashboard in DASHBOARDS {
            let mut taken = BTreeSet::new();
            for panel in panels(dashboard) {
                let number = |name: &str| panel["gridPos"][name].as_u64().unwrap();
                let (x, y, width) = (number("x"), number("y"), number("w"));
                assert!(x + width <= u64::from(COLUMNS), "{}: {panel}", dashboard.name);
                for column in x..x + width {
                    for line in y..y + number("h") {
                        assert!(taken.insert((column, line)), "{}: {panel}", dashboard.name);
                    }
                }
            }
        }
    }

    #[test]
    fn only_dashboards_with_a_choice_of_nodes_use_it() {
        for dashboard in DASHBOARDS {
            let uses = dashboard.queries().any(|query| query.expression.contains("$node"));
            assert_eq!(uses, dashboard.has_nodes, "{}", dashboard.name);
            for query in dashboard.queries() {
                assert!(!query.sources.is_empty(), "{}", query.expression);
            }
        }
    }

    /// Metric names in a text, without the suffixes of histograms and counters.
    fn metrics(text: &str, before: char) -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = text.match_indices("agentaflow_").filter(|(at, _)| {
            let found = text[..*at].chars().next_back().unwrap_or(' ');
            !is_part(found) && (before == ' ' || found == before)
        });
        words
            .map(|(at, _)| {
                let name: String = text[at..].chars().take_while(|c| is_part(*c)).collect();
                let endings = ["_bucket", "_sum", "_count", "_total"];
                let bare = endings.iter().find_map(|ending| name.strip_suffix(ending));
                bare.map(str::to_owned).unwrap_or(name)
            })
            .collect()
    }

    #[test]
    fn the_dashboards_show_every_metric_and_no_other() {
        let is_source = |file: &&String| {
            file.starts_with("crates/")
                && (file.ends_with("/metrics.rs") || file.contains("/metrics/"))
                && !file.contains("/tests/")
        };
        let sources = repo::files().unwrap();
        let code: Vec<String> = sources
            .iter()
            .filter(is_source)
            .map(|file| fs::read_to_string(repo::root().join(file)).unwrap())
            .map(|code| code.split("#[cfg(test)]").next().unwrap_or_default().to_owned())
            .collect();
        let shown: String = generate().unwrap().into_values().collect();
        assert_eq!(metrics(&shown, ' '), metrics(&code.concat(), '"'));
    }
}

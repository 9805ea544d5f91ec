//! `/metrics` of the API: its readers, and a bounded number of series.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use serde_json::json;

use crate::promtool;
use crate::site::{Site, send};
use crate::skip::skip;

/// Value of a series without labels.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
}

#[tokio::test]
async fn only_admins_and_viewers_read_metrics() {
    let site = Site::new().await;
    let (user, viewer) = (site.user("ana", "user").await, site.user("vic", "viewer").await);
    site.get("", "/metrics").await.refused(401);
    site.get(&user, "/metrics").await.refused(403);
    for token in [site.admin(), viewer.as_str()] {
        let reply = site.get(token, "/metrics").await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    }
    let open = site.request("GET", "/metrics").bearer_auth(&viewer);
    let open = send(open.header("accept", "application/openmetrics-text;version=1.0.0")).await;
    assert!(open.text.ends_with("# EOF\n"), "{}", open.text);
}

#[tokio::test]
async fn ten_thousand_names_add_no_series() {
    let site = Site::with(|settings| settings.rate = (1_000_000, 1_000_000)).await;
    site.node("n1").await;
    let submit = |number: usize| {
        let job = json!({"job_name": format!("unique-name-{number}"), "docker_image": "x",
            "gpu_memory_required": 1024});
        site.post(site.admin(), "/gpu-workers/jobs/", job)
    };
    let first = submit(0).await;
    assert_eq!(first.status, 201);
    let before = series(&site).await;
    let rest = futures_util::stream::iter(1..10_000).map(submit).buffer_unordered(64);
    let refused = rest.filter(|reply| std::future::ready(reply.status != 201)).count().await;
    assert_eq!(refused, 0);
    let text = site.get(site.admin(), "/metrics").await.text;
    assert_eq!(value(&text, "agentaflow_workloads_pending"), "10000");
    assert!(!text.contains("unique-name"), "a job's name is a label");
    // A reason or route may appear for the first time, never one for each job.
    let added: Vec<_> = series(&site).await.difference(&before).cloned().collect();
    assert!(added.len() < 50, "{} series: {added:?}", added.len());
}

/// Names and labels of all series.
async fn series(site: &Site) -> BTreeSet<String> {
    let text = site.get(site.admin(), "/metrics").await.text;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

#[tokio::test]
async fn promtool_finds_no_problem() {
    let site = Site::new().await;
    site.node("n1").await;
    let limited = json!({"username": "lim", "password": "correct horse", "role": "user",
        "spending_limit": 5.0});
    site.post(site.admin(), "/users", limited).await.expect(201);
    let text = site.get(site.admin(), "/metrics").await.text;
    assert!(text.contains("agentaflow_account_limit_dollars{user=\"lim\"} 5\n"), "{text}");
    assert_eq!(value(&text, "agentaflow_gpu_total"), "0", "no agent has connected");
    let Some(problems) = promtool::problems(&text) else {
        skip!("needs promtool; `sudo apt-get install prometheus` installs it");
    };
    assert!(problems.is_empty(), "{problems:#?}");
}

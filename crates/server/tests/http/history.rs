//! History and waste: roles, limits and a damaged file.

use std::fs;

use serde_json::{Value, json};

use crate::site::Site;

fn column_names(curves: &Value) -> Vec<&str> {
    let columns = curves["series"][0]["columns"].as_array().unwrap();
    columns.iter().map(|column| column["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_user_sees_the_gpus_of_the_cluster_but_not_the_jobs_of_other_users() {
    let site = Site::new().await;
    let (ana, ben, viewer) = (
        site.user("ana", "user").await,
        site.user("ben", "user").await,
        site.user("vic", "viewer").await,
    );
    let node = site.node("n1").await["node_id"].as_str().unwrap().to_owned();
    let job = json!({"docker_image": "x", "gpu_memory_required": 1024});
    let job = site.post(&ana, "/gpu-workers/jobs", job).await.expect(201)["id"].clone();
    let of_node = format!("/history/nodes/{node}");
    let of_job = format!("/history/jobs/{job}");
    for path in ["/history/cluster", &of_node, &of_job, "/billing/waste"] {
        site.get("", path).await.refused(401);
        site.get(site.registration(), path).await.refused(403);
        for token in [site.admin(), &viewer, &ana] {
            site.get(token, path).await.expect(200);
        }
    }
    site.get(&ben, &of_job).await.refused(404);
    assert_eq!(site.get(&ben, "/billing/waste").await.expect(200), json!([]));
    let mine = site.get(&ben, "/history/cluster").await.expect(200);
    assert_eq!(column_names(&mine), ["gpus_used", "utilization_percent"]);
    let all = site.get(&viewer, "/history/cluster").await.expect(200);
    assert_eq!(column_names(&all).len(), 5);
    let gpus = site.get(&ben, &of_node).await.expect(200);
    assert_eq!(gpus["series"].as_array().unwrap().len(), 2, "{gpus}");
}

#[tokio::test]
async fn the_number_of_readings_is_bounded_and_wrong_periods_are_refused() {
    let site = Site::new().await;
    let long = "/history/cluster?from=1970-01-01&to=2999-01-01&points=2000";
    let curves = site.get(site.admin(), long).await.expect(200);
    let values = curves["series"][0]["columns"][0]["values"].as_array().unwrap();
    assert!((1_000..=2_000).contains(&values.len()), "{}", values.len());
    assert!(curves["step_seconds"].as_u64().unwrap() >= 300, "{}", curves["step_seconds"]);
    for query in ["points=0", "points=2001", "from=2026-02-01&to=2026-01-01", "from=x", "step=5"] {
        site.get(site.admin(), &format!("/history/cluster?{query}")).await.refused(422);
    }
    site.get(site.admin(), "/history/nodes/gpu-none").await.refused(404);
    site.get(site.admin(), "/history/jobs/7").await.refused(404);
    for query in ["by=node", "from=2026-02-01&to=2026-01-01", "limit=1001", "format=xml"] {
        site.get(site.admin(), &format!("/billing/waste?{query}")).await.refused(422);
    }
    let table = site.get(site.admin(), "/billing/waste?by=job&format=csv").await;
    assert!(table.text.starts_with("key,name,user,jobs,running,gpu_hours,"), "{}", table.text);
}

#[tokio::test]
async fn a_server_without_a_usable_history_serves_empty_curves() {
    let off = Site::with(|settings| settings.history_bytes = 0).await;
    let curves = off.get(off.admin(), "/history/cluster").await.expect(200);
    assert_eq!(curves["series"], json!([]));
    assert!(!off.folder.path().join("data/history").exists());
    let broken = Site::with(|settings| {
        fs::create_dir_all(&settings.data_dir).unwrap();
        fs::write(settings.data_dir.join("history"), "not a folder").unwrap();
    })
    .await;
    let curves = broken.get(broken.admin(), "/history/cluster").await.expect(200);
    assert_eq!(curves["series"], json!([]));
}

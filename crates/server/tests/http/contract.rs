//! Calls of the API: permissions, statuses and shapes.

use serde_json::{Value, json};

use crate::site::Site;

#[tokio::test]
async fn the_documented_calls_work_with_their_tokens_and_say_which_is_missing_without() {
    let site = Site::new().await;
    let node = json!({"node_name": "gpu-server-1", "hostname": "gpu-server-1.local", "gpu_count": 2,
        "gpu_type": "RTX 4090", "gpu_memory_total": 24576, "cpu_cores": 16, "memory_total": 32768,
        "max_concurrent_jobs": 2});
    let words = site.post("", "/gpu-workers/nodes/register", node.clone()).await.refused(401);
    assert_eq!(words["details"]["needs"], "registration", "{words}");
    assert_eq!(words["details"]["token"], "missing", "{words}");
    let node =
        site.post(site.registration(), "/gpu-workers/nodes/register", node).await.expect(200);
    let name = node["node_id"].as_str().unwrap();
    assert!(name.starts_with("gpu-") && name.len() == 16, "{name}");
    let key = node["api_key"].as_str().unwrap();

    let beat = json!({"node_id": name, "gpu_memory_available": 20000, "cpu_cores_available": 14,
        "current_jobs": 1, "health_status": "healthy"});
    let path = format!("/gpu-workers/nodes/{name}/heartbeat");
    site.post("", &path, beat.clone()).await.refused(401);
    site.post(key, &path, beat.clone()).await.expect(200);
    site.post(site.registration(), &path, beat.clone()).await.expect(200);
    site.post(site.admin(), &path, beat).await.refused(403);

    let job = json!({"job_name": "AI Training Job", "docker_image": "pytorch/pytorch", "docker_tag": "latest",
        "gpu_memory_required": 8192.0, "cpu_cores_required": 4, "memory_required": 16384,
        "input_data": {"dataset": "imagenet", "epochs": 100}});
    site.post("", "/gpu-workers/jobs/", job.clone()).await.refused(401);
    let job = site.post(site.admin(), "/gpu-workers/jobs/", job).await.expect(201);
    assert_eq!((&job["status"], &job["gpu_memory_required"]), (&json!("pending"), &json!(8192)));

    for path in [
        format!("/gpu-workers/nodes/{name}/stats"),
        format!("/gpu-workers/nodes/{}", node["id"]),
        format!("/gpu-workers/jobs/{}", job["id"]),
        "/gpu-workers/available-nodes/?gpu_memory_required=4096".to_owned(),
        "/gpu-workers/nodes/?skip=0&limit=10&status=active".to_owned(),
        "/gpu-workers/jobs/?status=pending".to_owned(),
        "/gpu-workers/agents/".to_owned(),
    ] {
        site.get("", &path).await.refused(401);
        site.get(site.admin(), &path).await.expect(200);
    }
}

#[tokio::test]
async fn a_slash_at_the_end_is_optional_and_ids_are_names_or_numbers() {
    let site = Site::new().await;
    let node = site.node("one").await;
    for id in [node["node_id"].as_str().unwrap().to_owned(), node["id"].to_string()] {
        for end in ["", "/"] {
            let shown =
                site.get(site.admin(), &format!("/gpu-workers/nodes/{id}{end}")).await.expect(200);
            assert_eq!(shown["node_name"], "one");
            assert!(shown.get("api_key").is_none(), "a key is shown once");
        }
    }
}

#[tokio::test]
async fn registering_again_rotates_the_key_of_the_node() {
    let site = Site::new().await;
    let (first, second) = (site.node("one").await, site.node("one").await);
    assert_eq!(first["id"], second["id"]);
    let beat = |key: &Value| key.as_str().unwrap().to_owned();
    let path = format!("/gpu-workers/nodes/{}/heartbeat", first["id"]);
    site.post(&beat(&first["api_key"]), &path, json!({})).await.refused(401);
    site.post(&beat(&second["api_key"]), &path, json!({})).await.expect(200);
}

#[tokio::test]
async fn a_node_cannot_speak_for_another() {
    let site = Site::new().await;
    let (one, two) = (site.node("one").await, site.node("two").await);
    let key = one["api_key"].as_str().unwrap();
    for id in [two["node_id"].as_str().unwrap().to_owned(), two["id"].to_string()] {
        site.post(key, &format!("/gpu-workers/nodes/{id}/heartbeat"), json!({})).await.refused(403);
    }
    let path = format!("/gpu-workers/nodes/{}/heartbeat", one["id"]);
    let body = json!({"node_id": two["node_id"]});
    assert_eq!(site.post(key, &path, body).await.refused(422)["details"]["field"], "node_id");
    let agent = json!({"agent_id": "a", "node_id": two["id"]});
    site.post(key, "/gpu-workers/agents/register", agent).await.refused(403);
}

#[tokio::test]
async fn a_registration_token_in_the_body_is_as_good_as_in_the_header() {
    let site = Site::new().await;
    let node = json!({"node_name": "x", "registration_token": site.registration()});
    let node = site.post("", "/gpu-workers/nodes/register", node).await.expect(200);
    assert!(node.get("registration_token").is_none_or(Value::is_null));
    let node = json!({"node_name": "x", "registration_token": "afr_wrong"});
    site.post("", "/gpu-workers/nodes/register", node).await.refused(401);
}

#[tokio::test]
async fn agents_register_and_only_they_and_admins_change_them() {
    let site = Site::new().await;
    let node = site.node("one").await;
    let agent = json!({"agent_id": "agent-1", "node_id": node["id"], "agent_version": "1.0"});
    let agent =
        site.post(site.registration(), "/gpu-workers/agents/register", agent).await.expect(200);
    let key = agent["api_key"].as_str().unwrap();
    for (token, status) in [(key, 200), (site.admin(), 200), (site.registration(), 403), ("", 401)]
    {
        let change = json!({"agent_version": "1.1"});
        let reply = site.call(token, "PUT", "/gpu-workers/agents/agent-1", change).await;
        assert_eq!(reply.status, status, "{reply:?}");
    }
    let path = format!("/gpu-workers/agents/{}", agent["id"]);
    assert_eq!(site.get(site.admin(), &path).await.expect(200)["agent_version"], "1.1");
}

#[tokio::test]
async fn an_unknown_path_has_code_not_found_and_a_wrong_method_lists_the_right_ones() {
    let site = Site::new().await;
    let lost = site.get(site.admin(), "/gpu-worker/jobs").await.refused(404);
    assert_eq!(
        (&lost["code"], &lost["details"]["resource"]["kind"]),
        (&json!("not_found"), &json!("path"))
    );
    let reply = site.call(site.admin(), "DELETE", "/gpu-workers/jobs/", Value::Null).await;
    let allow = reply.headers["allow"].to_str().unwrap().to_owned();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    assert_eq!(reply.refused(405)["code"], "method_not_allowed");
}

#[tokio::test]
async fn lists_come_in_pages_and_say_how_many_there_are() {
    let site = Site::new().await;
    for name in ["a", "b", "c"] {
        site.node(name).await;
    }
    let reply = site.get(site.admin(), "/gpu-workers/nodes?skip=1&limit=1").await;
    assert_eq!(reply.headers["x-total-count"], "3");
    assert_eq!(reply.expect(200)[0]["node_name"], "b");
    for limit in ["0", "1001", "-1", "x", "1.5"] {
        let path = format!("/gpu-workers/nodes?limit={limit}");
        assert_eq!(site.get(site.admin(), &path).await.refused(422)["details"]["field"], "limit");
    }
}

#[tokio::test]
async fn the_server_reports_its_version_and_features() {
    let site =
        Site::with(|settings| settings.notice = Some("GPUs are <simulated>".to_owned())).await;
    for path in ["/healthz", "/readyz", "/version", "/openapi.json", "/docs", "/"] {
        let reply = site.get("", path).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
    }
    let page = site.get("", "/").await;
    assert!(page.text.contains("GPUs are &lt;simulated&gt;"));
    assert!(
        page.headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'")
    );
    let document = site.get("", "/openapi.json").await.expect(200);
    assert_eq!(document["info"]["title"], "agentaflow");
}

#[tokio::test]
async fn queues_are_made_changed_and_removed_by_admins() {
    let site = Site::new().await;
    let user = site.user("ada", "user").await;
    let queue = json!({"name": "research", "limit": {"gpus": 8}});
    site.post(&user, "/queues", queue.clone()).await.refused(403);
    site.post(site.admin(), "/queues", queue.clone()).await.expect(201);
    site.post(site.admin(), "/queues", queue).await.refused(409);
    let put =
        site.call(site.admin(), "PUT", "/queues/research", json!({"weight": 7})).await.expect(200);
    assert_eq!((&put["name"], &put["weight"]), (&json!("research"), &json!(7)));
    let other = site.call(site.admin(), "PUT", "/queues/research", json!({"name": "other"})).await;
    assert_eq!(other.refused(422)["details"]["field"], "name");
    assert_eq!(site.get(&user, "/queues/research").await.expect(200)["weight"], 7);
    site.call(site.admin(), "DELETE", "/queues/research", Value::Null).await.expect(204);
    site.get(&user, "/queues/research").await.refused(404);
}

#[tokio::test]
async fn a_mistyped_limit_is_rejected_and_a_shown_queue_is_accepted() {
    let site = Site::new().await;
    let wrong = json!({"name": "o", "limit": {"gpuz": 1}});
    let refused = site.post(site.admin(), "/queues", wrong).await.refused(422);
    assert_eq!(refused["details"]["field"], "limit.gpuz");
    let right = json!({"name": "o", "limit": {"gpus": 1, "gpu_types": {"A100": 1}}});
    let shown = site.post(site.admin(), "/queues", right).await.expect(201);
    site.call(site.admin(), "PUT", "/queues/o", shown).await.expect(200);
    site.call(site.admin(), "DELETE", "/queues/root", Value::Null).await.refused(409);
}

#[tokio::test]
async fn the_strategy_is_shown_and_set() {
    let site = Site::new().await;
    assert_eq!(site.get(site.admin(), "/strategy").await.expect(200)["strategy"], "least_utilized");
    let reply = site.call(site.admin(), "PUT", "/strategy", json!({"strategy": "worst_fit"})).await;
    assert_eq!(reply.refused(422)["details"]["field"], "strategy");
    site.call(site.admin(), "PUT", "/strategy", json!({"strategy": "best_fit"})).await.expect(200);
    let site = site.again().await;
    assert_eq!(site.get(site.admin(), "/strategy").await.expect(200)["strategy"], "best_fit");
}

#[tokio::test]
async fn a_missing_object_is_named_in_the_details() {
    let site = Site::new().await;
    for (path, kind, name) in [
        ("/gpu-workers/jobs/99", "job", "99"),
        ("/gpu-workers/nodes/gpu-9", "node", "gpu-9"),
        ("/gpu-workers/nodes/99", "node", "99"),
        ("/gpu-workers/agents/a-9", "agent", "a-9"),
        ("/queues/research", "queue", "research"),
        ("/users/99", "user", "99"),
    ] {
        let body = site.get(site.admin(), path).await.refused(404);
        let expected = json!({"kind": kind, "name": name});
        assert_eq!((&body["code"], &body["details"]["resource"]), (&json!("not_found"), &expected));
    }
}

#[tokio::test]
async fn money_is_paid_in_and_listed_as_json_and_csv() {
    let site = Site::new().await;
    site.user("ada", "user").await;
    let credit = json!({"amount": 12.5, "note": "=November, first"});
    let user = site.post(site.admin(), "/users/2/credit", credit).await.expect(200);
    assert_eq!(user["balance"], json!(12.5));
    site.post(site.admin(), "/users/2/credit", json!({"amount": 0})).await.refused(422);
    site.post(site.admin(), "/users/99/credit", json!({"amount": 1})).await.refused(404);
    let lines = site.get(site.admin(), "/billing/ledger?user_id=2").await.expect(200);
    assert_eq!((&lines[0]["kind"], &lines[0]["micros"]), (&json!("credit"), &json!(-12_500_000)));
    let table = site.get(site.admin(), "/billing/ledger?format=csv").await;
    assert!(table.headers["content-type"].to_str().unwrap().starts_with("text/csv"));
    assert!(table.text.contains("-12.500000,\"'=November, first\""), "{}", table.text);
    for by in ["user", "queue", "node", "day", "job"] {
        site.get(site.admin(), &format!("/billing/usage?by={by}&from=2026-01-01"))
            .await
            .expect(200);
    }
    site.get(site.admin(), "/billing/usage?by=planet").await.refused(422);
    site.get(site.admin(), "/billing/usage?from=2026-02-01&to=2026-01-01").await.refused(422);
    site.get(site.admin(), "/billing/usage?from=soon").await.refused(422);
}

//! A server that starts without its key file.

use std::time::Duration;

use serde_json::{Value, json};

use crate::site::Site;

/// Registers a node with an agent and a stream, and keeps the stream open.
async fn connect_node(site: &Site, name: &str) -> reqwest::Response {
    let node = json!({"node_name": name, "gpu_count": 1, "gpu_type": "RTX 4090",
        "gpu_memory_total": 24576, "cpu_cores": 8, "memory_total": 32768, "runtimes": ["docker"]});
    let node =
        site.post(site.registration(), "/gpu-workers/nodes/register", node).await.expect(200);
    let agent = json!({"agent_id": format!("agent-{name}"), "node_id": node["id"],
        "capabilities": {"stream": true}});
    let agent = site.post(site.registration(), "/gpu-workers/agents/register", agent).await;
    let agent = agent.expect(200);
    let key = agent["api_key"].as_str().unwrap().to_owned();
    let path = format!("/gpu-workers/agents/agent-{name}/stream");
    let stream = site.request("GET", &path).bearer_auth(&key).send().await.unwrap();
    let path = format!("/gpu-workers/nodes/{}/heartbeat", node["id"]);
    site.post(&key, &path, json!({"health_status": "healthy"})).await.expect(200);
    stream
}

async fn wait_for(site: &Site, job: &Value, test: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/gpu-workers/jobs/{}", job["id"]);
    let mut last = Value::Null;
    for _ in 0..500 {
        last = site.get(site.admin(), &path).await.expect(200);
        if test(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not in time: {last:#}");
}

#[tokio::test]
async fn jobs_with_secrets_wait_for_the_key_file_and_no_token_is_revoked() {
    let site = Site::new().await;
    let submit = async |site: &Site, body: Value| {
        site.post(site.admin(), "/gpu-workers/jobs", body).await.expect(201)
    };
    let secret = json!({"docker_image": "x", "secret_env": {"API_TOKEN": "s3cret"}});
    let sealed = submit(&site, secret).await;
    let plain = submit(&site, json!({"docker_image": "x"})).await;
    let (admin, registration) = (site.admin().to_owned(), site.registration().to_owned());
    let path = |name: &str| site.folder.path().join(name);
    let data = if path("secret-key").exists() { path("") } else { path("data") };
    let key_file = data.join("secret-key");
    let key = std::fs::read_to_string(&key_file).unwrap();
    for name in ["secret-key", "admin-token", "registration-token"] {
        std::fs::remove_file(data.join(name)).unwrap();
    }
    let site = site.again().await;
    let named = key_file.display().to_string();
    assert!(site.running.warnings.iter().any(|text| text.contains(&named)));
    site.get(&admin, "/auth/me").await.expect(200);
    let tokens = site.get(&admin, "/registration-tokens").await.expect(200);
    assert!(tokens.as_array().unwrap().iter().all(|token| token["revoked"] == false), "{tokens}");
    assert_ne!(site.registration(), registration);

    let _stream = connect_node(&site, "n").await;
    wait_for(&site, &plain, |job| job["status"] == "scheduled").await;
    let held =
        wait_for(&site, &sealed, |job| job["pending_reason"]["code"] == "SecretsUnavailable").await;
    assert_eq!(held["status"], "pending");
    assert_eq!(held["pending_reason"]["key_file"], named.as_str());

    // The old key returns beside the new one.
    let fresh = std::fs::read_to_string(&key_file).unwrap();
    std::fs::write(&key_file, format!("{}\n{}\n", fresh.trim(), key.trim())).unwrap();
    let _second = connect_node(&site, "m").await;
    wait_for(&site, &sealed, |job| job["status"] == "scheduled").await;
}

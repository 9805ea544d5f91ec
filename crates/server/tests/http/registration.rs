//! Registration: keys, addresses, approvals, limited tokens, and the keys of other nodes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::site::{Reply, Site, send};

const A: &str = "198.51.100.1";
const B: &str = "198.51.100.2";
const C: &str = "198.51.100.3";
const D: &str = "2001:db8::4";

/// Behind a proxy, so that calls can come from several addresses.
async fn site() -> Site {
    Site::with(|settings| settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()]).await
}

async fn call(site: &Site, from: &str, token: &str, path: &str, body: Value) -> Reply {
    let request = site.request("POST", path).header("x-forwarded-for", from);
    send(request.bearer_auth(token).json(&body)).await
}

async fn register(site: &Site, from: &str, token: &str, name: &str) -> Reply {
    let node = json!({"node_name": name, "gpu_count": 1, "gpu_type": "RTX 4090",
        "gpu_memory_total": 24576, "cpu_cores": 8, "memory_total": 32768, "runtimes": ["docker"]});
    call(site, from, token, "/gpu-workers/nodes/register", node).await
}

async fn register_agent(site: &Site, from: &str, token: &str, name: &str, node: &Value) -> Reply {
    let agent = json!({"agent_id": name, "node_id": node["id"], "capabilities": {"stream": true}});
    call(site, from, token, "/gpu-workers/agents/register", agent).await
}

async fn heartbeat(site: &Site, from: &str, token: &str, node: &Value) -> u16 {
    let path = format!("/gpu-workers/nodes/{}/heartbeat", node["node_id"].as_str().unwrap());
    call(site, from, token, &path, json!({"health_status": "healthy"})).await.status
}

fn key(answer: &Value) -> String {
    answer["api_key"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_known_name_needs_its_key_its_address_or_an_approval() {
    let site = site().await;
    let token = site.registration().to_owned();
    let node = register(&site, A, &token, "n").await.expect(200);
    let again = register(&site, A, &token, "n").await.expect(200);
    assert_eq!(again["id"], node["id"]);
    assert_eq!(heartbeat(&site, A, &key(&node), &node).await, 401, "the key was rotated");
    assert_eq!(heartbeat(&site, A, &key(&again), &node).await, 200);

    let refused = register(&site, B, &token, "n").await.refused(403);
    assert_eq!(refused["code"], "approval_required");
    let path = format!("/gpu-workers/nodes/{}", node["id"]);
    let shown = site.get(site.admin(), &path).await.expect(200);
    assert_eq!(shown["pending_registration"]["address"], B);
    assert_eq!(shown["pending_registration"]["approved"], false);
    assert_eq!(heartbeat(&site, A, &key(&again), &node).await, 200, "the node keeps its key");
    assert_eq!(heartbeat(&site, B, &token, &node).await, 403, "the token alone is not enough");

    let moved = register(&site, B, &key(&again), "n").await.expect(200);
    assert_eq!(moved["pending_registration"], Value::Null);
    assert_eq!(heartbeat(&site, C, &key(&moved), &node).await, 200);
}

/// The token may be stolen by a job on the host.
#[tokio::test]
async fn a_token_from_the_address_of_a_node_does_not_take_over_its_agent() {
    let site = site().await;
    let token = site.registration().to_owned();
    let node = register(&site, A, &token, "n").await.expect(200);
    let agent = register_agent(&site, A, &key(&node), "worker", &node).await.expect(200);
    let refused = register(&site, A, &token, "n").await.refused(403);
    assert_eq!(refused["code"], "approval_required");
    register_agent(&site, A, &token, "thief", &node).await.refused(403);
    register_agent(&site, A, &token, "worker", &node).await.refused(403);
    assert_eq!(heartbeat(&site, A, &token, &node).await, 403);
    assert_eq!(heartbeat(&site, A, &key(&agent), &node).await, 200, "the agent keeps its key");
    let approve = format!("/gpu-workers/nodes/{}/approve", node["id"]);
    site.post(site.admin(), &approve, json!({})).await.expect(200);
    register(&site, A, &token, "n").await.expect(200);
}

/// Only push workers have no key.
#[tokio::test]
async fn a_token_from_the_address_of_a_node_acts_for_push_workers_only() {
    let site = site().await;
    let token = site.registration().to_owned();
    let node = register(&site, A, &token, "polling").await.expect(200);
    let agent = |name: &str, node: &Value| json!({"agent_id": name, "node_id": node["id"]});
    let path = "/gpu-workers/agents/register";
    let own = call(&site, A, &token, path, agent("worker", &node)).await.expect(200);
    let refused = register(&site, A, &token, "polling").await.refused(403);
    assert_eq!(refused["code"], "approval_required");
    call(&site, A, &token, path, agent("thief", &node)).await.refused(403);
    let mut endpoint = agent("thief", &node);
    endpoint["api_endpoint"] = json!("http://198.51.100.1:8080");
    call(&site, A, &token, path, endpoint.clone()).await.refused(403);
    assert_eq!(heartbeat(&site, A, &token, &node).await, 403);
    assert_eq!(heartbeat(&site, A, &key(&own), &node).await, 200);

    let pushed = register(&site, A, &token, "pushed").await.expect(200);
    endpoint["node_id"] = pushed["id"].clone();
    call(&site, A, &token, path, endpoint).await.expect(200);
    register(&site, B, &token, "pushed").await.refused(403);
    assert_eq!(heartbeat(&site, A, &token, &pushed).await, 200);
}

#[tokio::test]
async fn an_admin_approves_one_registration_from_one_address() {
    let site = site().await;
    let token = site.registration().to_owned();
    let ada = site.user("ada", "user").await;
    let node = register(&site, A, &token, "n").await.expect(200);
    let approve = format!("/gpu-workers/nodes/{}/approve", node["id"]);
    site.post(site.admin(), &approve, json!({})).await.refused(404);
    register(&site, C, &token, "n").await.refused(403);
    site.post(&ada, &approve, json!({})).await.refused(403);
    site.post(site.admin(), &approve, json!({"address": D})).await.refused(409);
    site.post(site.admin(), &approve, json!({"address": C})).await.expect(200);
    register(&site, D, &token, "n").await.refused(403);
    let accepted = register(&site, C, &token, "n").await.expect(200);
    assert_eq!(heartbeat(&site, A, &key(&node), &node).await, 401);
    assert_eq!(heartbeat(&site, C, &key(&accepted), &node).await, 200);
    register(&site, A, &token, "n").await.refused(403);
}

#[tokio::test]
async fn an_agent_joins_a_node_with_its_key_or_from_its_address() {
    let site = site().await;
    let token = site.registration().to_owned();
    let node = register(&site, A, &token, "n").await.expect(200);
    let refused = register_agent(&site, B, &token, "thief", &node).await.refused(403);
    assert_eq!(refused["code"], "approval_required");
    register_agent(&site, A, &token, "worker", &node).await.expect(200);
    let agent = register_agent(&site, B, &key(&node), "worker", &node).await.expect(200);
    // The key of the agent repeats both registrations.
    register(&site, B, &key(&agent), "n").await.expect(200);
    register_agent(&site, B, &key(&agent), "worker", &node).await.expect(200);
}

#[tokio::test]
async fn a_limited_token_registers_as_many_nodes_as_it_may_and_not_after_its_end() {
    let site = site().await;
    let create =
        async |body: Value| site.post(site.admin(), "/registration-tokens", body).await.expect(201);
    for wrong in [
        json!({"name": "x", "uses": 0}),
        json!({"name": "x", "expires_in_seconds": 0}),
        json!({"name": "x", "expires_in_seconds": 9, "expires_in_days": 9}),
    ] {
        site.post(site.admin(), "/registration-tokens", wrong).await.refused(422);
    }
    let made = create(json!({"name": "rack 7", "uses": 1, "expires_in_seconds": 3600})).await;
    let once = made["key"].as_str().unwrap().to_owned();
    let node = register(&site, A, &once, "n").await.expect(200);
    register(&site, A, &once, "m").await.refused(401);
    register(&site, A, &once, "n").await.refused(401);
    register(&site, A, &key(&node), "n").await.expect(200);
    let listed = site.get(site.admin(), "/registration-tokens").await.expect(200);
    let listed = listed.as_array().unwrap().iter().find(|token| token["id"] == made["id"]);
    assert_eq!(listed.unwrap()["uses_left"], 0);

    let made = create(json!({"name": "short", "expires_in_seconds": 1})).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    register(&site, A, made["key"].as_str().unwrap(), "late").await.refused(401);

    let made = create(json!({"name": "gone", "uses": 5})).await;
    let path = format!("/registration-tokens/{}", made["id"]);
    site.call(site.admin(), "DELETE", &path, Value::Null).await.expect(200);
    register(&site, A, made["key"].as_str().unwrap(), "revoked").await.refused(401);
}

#[tokio::test]
async fn the_key_of_another_node_works_on_no_route_of_an_agent() {
    let site = site().await;
    let token = site.registration().to_owned();
    let a = register(&site, A, &token, "a").await.expect(200);
    let agent_a = register_agent(&site, A, &token, "agent-a", &a).await.expect(200);
    let (own, own_agent) = (key(&a), key(&agent_a));
    let stream = site.request("GET", "/gpu-workers/agents/agent-a/stream").bearer_auth(&own_agent);
    let _stream = stream.send().await.unwrap();
    assert_eq!(heartbeat(&site, A, &own, &a).await, 200);
    let job = site.post(site.admin(), "/gpu-workers/jobs", json!({"docker_image": "x"})).await;
    let job = job.expect(201)["id"].clone();
    let job_path = format!("/gpu-workers/jobs/{job}");
    for _ in 0..200 {
        if site.get(site.admin(), &job_path).await.expect(200)["status"] == "scheduled" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let b = register(&site, B, &token, "b").await.expect(200);
    let agent_b = register_agent(&site, B, &token, "agent-b", &b).await.expect(200);
    let node_a = a["node_id"].as_str().unwrap();
    let report =
        json!({"reports": [{"key": {"job": job, "epoch": 1, "task": 0}, "type": "accepted"}]});
    let routes = [
        (
            "POST",
            format!("/gpu-workers/nodes/{node_a}/heartbeat"),
            json!({"health_status": "unhealthy"}),
        ),
        ("POST", format!("/gpu-workers/nodes/{}/heartbeat", a["id"]), json!({})),
        (
            "POST",
            "/gpu-workers/nodes/register".to_owned(),
            json!({"node_name": "a", "gpu_count": 1,
            "gpu_type": "RTX 4090", "gpu_memory_total": 24576, "cpu_cores": 8, "memory_total": 32768}),
        ),
        (
            "POST",
            "/gpu-workers/agents/register".to_owned(),
            json!({"agent_id": "x", "node_id": a["id"]}),
        ),
        (
            "POST",
            "/gpu-workers/agents/register".to_owned(),
            json!({"agent_id": "agent-a", "node_id": a["id"]}),
        ),
        ("PUT", "/gpu-workers/agents/agent-a".to_owned(), json!({"agent_version": "9"})),
        ("GET", "/gpu-workers/agents/agent-a/stream".to_owned(), Value::Null),
        ("GET", "/gpu-workers/agents/agent-a/poll?wait_ms=1".to_owned(), Value::Null),
        ("POST", "/gpu-workers/agents/agent-a/report".to_owned(), report),
        ("POST", format!("{job_path}/status"), json!({"job_id": job, "status": "completed"})),
        ("PUT", format!("/gpu-workers/nodes/{node_a}"), json!({"drain": true})),
        ("DELETE", format!("/gpu-workers/nodes/{node_a}"), Value::Null),
        ("GET", format!("{job_path}/logs"), Value::Null),
        ("GET", job_path.clone(), Value::Null),
    ];
    for (method, path, body) in routes {
        for foreign in [key(&b), key(&agent_b)] {
            let reply = site.call(&foreign, method, &path, body.clone()).await;
            assert!(matches!(reply.status, 403 | 409), "{method} {path}: {reply:?}");
        }
    }
    assert_eq!(site.get(site.admin(), &job_path).await.expect(200)["status"], "scheduled");
    let shown = site.get(site.admin(), &format!("/gpu-workers/nodes/{node_a}")).await.expect(200);
    assert_eq!(shown["health_status"], "healthy");
    let done = json!({"job_id": job, "status": "running"});
    site.post(&own, &format!("{job_path}/status"), done).await.expect(200);
}

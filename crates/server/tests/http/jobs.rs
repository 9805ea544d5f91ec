//! Jobs over HTTP: visibility, safe repeats, output, events, and the agent link.

use std::time::Duration;

use base64::Engine as _;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::site::{Site, send};

fn container() -> Value {
    json!({"docker_image": "pytorch/pytorch", "gpu_count": 1})
}

#[tokio::test]
async fn users_see_their_own_jobs_and_admins_and_viewers_all() {
    let site = Site::new().await;
    let (ada, bob) = (site.user("ada", "user").await, site.user("bob", "user").await);
    let viewer = site.user("vic", "viewer").await;
    let job = site.post(&ada, "/gpu-workers/jobs", container()).await.expect(201);
    let path = format!("/gpu-workers/jobs/{}", job["id"]);
    for (token, status, count) in [(&ada, 200, 1), (&bob, 404, 0), (&viewer, 200, 1)] {
        for part in ["", "/logs", "/events", "/explain"] {
            assert_eq!(site.get(token, &format!("{path}{part}")).await.status, status, "{part}");
        }
        let list = site.get(token, "/gpu-workers/jobs").await.expect(200);
        assert_eq!(list.as_array().unwrap().len(), count);
    }
    site.post(&bob, &format!("{path}/cancel"), Value::Null).await.refused(404);
    site.post(&viewer, &format!("{path}/cancel"), Value::Null).await.refused(403);
    site.post(&viewer, "/gpu-workers/jobs", container()).await.refused(403);
    site.post(&ada, &format!("{path}/cancel"), Value::Null).await.expect(200);
    let shown = site.get(&ada, &path).await.expect(200);
    assert_eq!(shown["status"], "cancelled");
}

#[tokio::test]
async fn process_jobs_need_a_grant_and_the_words_say_so() {
    let site = Site::new().await;
    let ada = site.user("ada", "user").await;
    let job = json!({"runtime": "process", "command": ["true"]});
    let words = site.post(&ada, "/gpu-workers/jobs", job.clone()).await.refused(403);
    assert_eq!(words["code"], "forbidden", "{words}");
    site.call(site.admin(), "PUT", "/users/2", json!({"grants": ["process"]})).await.expect(200);
    site.post(&ada, "/gpu-workers/jobs", job.clone()).await.expect(201);
    site.post(site.admin(), "/gpu-workers/jobs", job).await.expect(201);
}

#[tokio::test]
async fn a_repeated_submission_with_a_key_makes_one_job() {
    let site = Site::new().await;
    let submit = |key: &'static str, body: Value| {
        let request = site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
        send(request.header("Idempotency-Key", key).json(&body))
    };
    let first = submit("k1", container()).await.expect(201);
    let same = json!({"gpu_count": 1.0, "docker_image": "pytorch/pytorch", "job_name": null});
    assert_eq!(submit("k1", same).await.expect(200)["id"], first["id"]);
    submit("k1", json!({"docker_image": "other"})).await.refused(409);
    assert_ne!(submit("k2", container()).await.expect(201)["id"], first["id"]);
    submit("a key with spaces", container()).await.refused(400);
}

#[tokio::test]
async fn a_job_can_be_tried_without_being_handed_in() {
    let site = Site::new().await;
    let before = site.written().await;
    let answer =
        site.post(site.admin(), "/gpu-workers/jobs/what-if", container()).await.expect(200);
    assert!(answer["summary"].as_str().is_some_and(|words| !words.is_empty()), "{answer}");
    site.post(site.admin(), "/gpu-workers/jobs/what-if", json!({})).await.refused(422);
    assert_eq!(site.written().await, before);
}

#[tokio::test]
async fn lists_of_jobs_are_filtered_and_paged_by_cursor() {
    let site = Site::new().await;
    for at in 0..5 {
        let job = json!({"docker_image": "x", "job_name": format!("Train {at}")});
        site.post(site.admin(), "/gpu-workers/jobs", job).await.expect(201);
    }
    let ids = |list: Value| -> Vec<i64> {
        list.as_array().unwrap().iter().map(|job| job["id"].as_i64().unwrap()).collect()
    };
    let first = site.get(site.admin(), "/gpu-workers/jobs?limit=2").await;
    assert_eq!(first.headers["x-total-count"], "5");
    assert_eq!(ids(first.expect(200)), [5, 4]);
    let next = site.get(site.admin(), "/gpu-workers/jobs?limit=2&before=4").await;
    assert_eq!(next.headers["x-total-count"], "5");
    assert_eq!(ids(next.expect(200)), [3, 2]);
    let named =
        site.get(site.admin(), "/gpu-workers/jobs?name=train%203&status=pending,running").await;
    assert_eq!(ids(named.expect(200)), [4]);
    site.get(site.admin(), "/gpu-workers/jobs?status=waiting").await.refused(422);
}

/// A node with an agent that is connected by a stream.
struct Worker {
    node: Value,
    key: String,
}

async fn worker(site: &Site) -> Worker {
    let node = json!({"node_name": "worker", "gpu_count": 1, "gpu_type": "NVIDIA A100", "gpu_memory_total": 40960,
        "cpu_cores": 8, "memory_total": 16384, "max_concurrent_jobs": 0, "runtimes": ["process"]});
    let node =
        site.post(site.registration(), "/gpu-workers/nodes/register", node).await.expect(200);
    let agent = json!({"agent_id": "agent", "node_id": node["id"], "capabilities": {"stream": true},
        "config": {"heartbeat_interval_ms": 5000}});
    let agent =
        site.post(site.registration(), "/gpu-workers/agents/register", agent).await.expect(200);
    let key = agent["api_key"].as_str().unwrap().to_owned();
    let beat = format!("/gpu-workers/nodes/{}/heartbeat", node["id"]);
    site.post(&key, &beat, json!({"health_status": "healthy"})).await.expect(200);
    Worker { node, key }
}

/// Reads lines of a stream until one is an assignment.
async fn assignment(response: &mut reqwest::Response) -> Value {
    let mut text = Vec::new();
    loop {
        text.extend(response.chunk().await.unwrap().expect("the stream continues"));
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let Ok(message) = serde_json::from_slice::<Value>(line) else { continue };
            if message["type"] == "assign" {
                return message;
            }
            let listed = &message["assignments"][0];
            if listed.is_object() {
                return listed.clone();
            }
        }
    }
}

#[tokio::test]
async fn a_job_goes_to_an_agent_over_the_stream_and_its_output_comes_back() {
    let site = Site::new().await;
    let worker = worker(&site).await;
    let stream = site.request("GET", "/gpu-workers/agents/agent/stream").bearer_auth(&worker.key);
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "application/x-ndjson");
    let job = json!({"runtime": "process", "command": ["echo", "hello"]});
    let job = site.post(site.admin(), "/gpu-workers/jobs", job).await.expect(201);
    let assigned =
        tokio::time::timeout(Duration::from_secs(10), assignment(&mut stream)).await.unwrap();
    assert_eq!((&assigned["job"], &assigned["epoch"]), (&job["id"], &json!(1)));

    let path = format!("/gpu-workers/jobs/{}", job["id"]);
    let follow = site.request("GET", &format!("{path}/logs?follow=true")).bearer_auth(site.admin());
    let follow = tokio::spawn(send(follow));
    let data = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let incarnation = &assigned["incarnation"];
    let task = json!({"job": job["id"], "epoch": 1, "incarnation": incarnation, "task": 0});
    let with = |fields: Value| {
        let mut all = task.as_object().unwrap().clone();
        all.extend(fields.as_object().unwrap().clone());
        Value::Object(all)
    };
    let batch = json!({"logs": [with(json!({"offset": 0, "data": data("hel")}))],
        "reports": [with(json!({"update": "accepted"})), with(json!({"update": "running", "started_at": "2026-11-15T00:00:00Z"}))]});
    let report = "/gpu-workers/agents/agent/report";
    let reply = site.post(&worker.key, report, batch).await.expect(200);
    assert_eq!(reply["accepted"], json!([true, true]));
    assert_eq!(reply["log_have"], json!([[task, 3]]));
    let batch = json!({"logs": [with(json!({"offset": 3, "data": data("lo\n")}))],
        "reports": [with(json!({"update": "ended", "exit_code": 0, "ran_ms": 12, "log_bytes": 6}))]});
    site.post(&worker.key, report, batch).await.expect(200);

    let log = tokio::time::timeout(Duration::from_secs(5), follow).await.unwrap().unwrap();
    assert_eq!(
        (log.text.as_str(), &log.headers["x-log-offset"]),
        ("hello\n", &"0".parse().unwrap())
    );
    let shown = site.get(site.admin(), &path).await.expect(200);
    assert_eq!((&shown["status"], &shown["exit_code"]), (&json!("completed"), &json!(0)));
    for (query, text, offset) in
        [("offset=3", "lo\n", "3"), ("tail=1", "hello\n", "0"), ("tail=0", "", "6")]
    {
        let reply = site.get(site.admin(), &format!("{path}/logs?{query}")).await;
        assert_eq!(
            (reply.text.as_str(), &reply.headers["x-log-offset"]),
            (text, &offset.parse().unwrap())
        );
    }
    site.get(site.admin(), &format!("{path}/logs?task=1")).await.refused(404);
    let events = site.get(site.admin(), &format!("{path}/events?limit=2")).await.expect(200);
    let last = events[1]["seq"].as_i64().unwrap();
    let rest = site.get(site.admin(), &format!("{path}/events?after={last}")).await.expect(200);
    assert!(rest.as_array().unwrap().iter().all(|event| event["seq"].as_i64().unwrap() > last));
}

#[tokio::test]
async fn an_agent_cannot_write_output_of_other_agents() {
    let site = Site::new().await;
    let worker = worker(&site).await;
    let job = site.post(site.admin(), "/gpu-workers/jobs", container()).await.expect(201);
    let data = base64::engine::general_purpose::STANDARD.encode("forged");
    let batch =
        json!({"logs": [{"job": job["id"], "epoch": 1, "task": 0, "offset": 0, "data": data}]});
    site.post(&worker.key, "/gpu-workers/agents/agent/report", batch).await.expect(200);
    let log = site.get(site.admin(), &format!("/gpu-workers/jobs/{}/logs", job["id"])).await;
    assert_eq!((log.status, log.text.as_str()), (200, ""));
    let node_key = worker.node["api_key"].as_str().unwrap();
    site.post(node_key, "/gpu-workers/agents/agent/report", json!({})).await.refused(403);
    site.get(site.admin(), "/gpu-workers/agents/agent/stream").await.refused(403);
}

#[tokio::test]
async fn an_agent_polls_where_streams_are_cut() {
    let site = Site::new().await;
    let worker = worker(&site).await;
    let sync =
        site.get(&worker.key, "/gpu-workers/agents/agent/poll?wait_ms=2000").await.expect(200);
    assert_eq!(sync[0]["type"], "sync", "{sync}");
    let place =
        format!("session={}&after={}", sync[0]["session"].as_str().unwrap(), sync[0]["seq"]);
    let job = json!({"runtime": "process", "command": ["true"]});
    site.post(site.admin(), "/gpu-workers/jobs", job).await.expect(201);
    let path = format!("/gpu-workers/agents/agent/poll?{place}&wait_ms=5000");
    let news = site.get(&worker.key, &path).await.expect(200);
    assert_eq!(news[0]["type"], "assign", "{news}");
}

/// Numbers of the events in a server-sent stream.
async fn seen(response: reqwest::Response, until: usize) -> Vec<i64> {
    let mut stream = response.bytes_stream();
    let mut text = String::new();
    let numbers = |text: &str| -> Vec<i64> {
        text.lines().filter_map(|line| line.strip_prefix("id: ")?.trim().parse().ok()).collect()
    };
    while numbers(&text).len() < until {
        let piece = tokio::time::timeout(Duration::from_secs(5), stream.next()).await;
        text.push_str(&String::from_utf8_lossy(&piece.unwrap().unwrap().unwrap()));
    }
    numbers(&text)
}

#[tokio::test]
async fn events_are_streamed_from_where_one_left_off_and_only_ones_own() {
    let site = Site::new().await;
    let (ada, bob) = (site.user("ada", "user").await, site.user("bob", "user").await);
    let open = |token: &str, query: &str, last: &str| {
        let request = site.request("GET", &format!("/events{query}")).bearer_auth(token);
        request.header("last-event-id", last.to_owned()).send()
    };
    let live = open(&ada, "", "").await.unwrap();
    for token in [&bob, &ada, &bob, &ada] {
        site.post(token, "/gpu-workers/jobs", container()).await.expect(201);
    }
    let live = seen(live, 2).await;
    let all = seen(open(site.admin(), "?after=0", "").await.unwrap(), 4).await;
    assert!(live.iter().all(|seq| all.contains(seq)) && live.len() < all.len(), "{live:?} {all:?}");
    let own = seen(open(&ada, "?after=0", "").await.unwrap(), 2).await;
    assert_eq!(own[..2], live[..2]);
    let resumed = seen(open(&ada, "?after=0", &live[0].to_string()).await.unwrap(), 1).await;
    assert_eq!(resumed[0], live[1], "the header wins");
    assert_eq!(open(&ada, "", "x").await.unwrap().status(), 400);
    let past = async |token: &str, query: &str| -> Vec<i64> {
        let past = site.get(token, &format!("/events/past{query}")).await.expect(200);
        past.as_array().unwrap().iter().map(|event| event["seq"].as_i64().unwrap()).collect()
    };
    let (everything, own) = (past(site.admin(), "").await, past(&ada, "").await);
    assert!(everything.is_sorted() && own.len() < everything.len(), "{own:?} {everything:?}");
    let newest = &everything[everything.len() - 2..];
    assert_eq!(past(site.admin(), "?limit=2").await, newest, "the newest, oldest first");
}

#[tokio::test]
async fn the_server_stops_in_time_with_streams_open() {
    let site = Site::new().await;
    let worker = worker(&site).await;
    let job = site.post(site.admin(), "/gpu-workers/jobs", container()).await.expect(201);
    let logs = format!("/gpu-workers/jobs/{}/logs?follow=1", job["id"]);
    let open = |token: &str, path: &str| site.request("GET", path).bearer_auth(token).send();
    let streams = [
        open(site.admin(), "/events").await.unwrap(),
        open(site.admin(), &logs).await.unwrap(),
        open(&worker.key, "/gpu-workers/agents/agent/stream").await.unwrap(),
    ];
    let began = std::time::Instant::now();
    site.running.stop().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop(streams);
}

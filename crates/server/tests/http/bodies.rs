//! Malformed and invalid request bodies.

use serde_json::json;

use crate::site::{Site, send};

#[tokio::test]
async fn a_body_that_is_not_a_json_object_is_rejected() {
    let site = Site::new().await;
    let deep = format!("{{\"input_data\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    let cases: Vec<(&[u8], u16)> = vec![
        (b"", 400),
        (b"  ", 400),
        (b"{", 400),
        (b"nonsense", 400),
        (b"[]", 400),
        (b"null", 400),
        (b"5", 400),
        (b"\"text\"", 400),
        (b"{\"docker_image\": \"x\"} trailing", 400),
        (b"{\"docker_image\": \"\xff\"}", 400),
        (b"{\"docker_image\": \"\\ud800\"}", 400),
        (b"{\"gpu_count\": 1e999}", 400),
        (b"{\"gpu_count\": NaN}", 400),
        (b"\xef\xbb\xbf{}", 400),
        (deep.as_bytes(), 422),
        (b"{}", 422),
        (b"{\"docker_image\": \"x\", \"gpu_count\": -1}", 422),
    ];
    let before = site.written().await;
    for (body, status) in cases {
        let request = site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
        let reply = send(request.body(body.to_vec())).await;
        assert_eq!(reply.status, status, "{}: {reply:?}", String::from_utf8_lossy(body));
        reply.refused(status);
    }
    assert_eq!(site.written().await, before);
}

#[tokio::test]
async fn any_content_type_is_read_as_json() {
    let site = Site::new().await;
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense"]
    {
        let request = site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
        let body = "{\"docker_image\": \"b\"}";
        let job = send(request.header("content-type", kind).body(body)).await.expect(201);
        assert_eq!(job["docker_image"], "b", "{kind}");
    }
}

#[tokio::test]
async fn a_key_that_appears_twice_is_refused() {
    let site = Site::new().await;
    for body in [
        r#"{"docker_image": "a", "docker_image": "b"}"#,
        r#"{"docker_image": "a", "env": {"A": "1", "A": "2"}}"#,
    ] {
        let request = site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
        assert_eq!(send(request.body(body)).await.refused(400)["code"], "malformed", "{body}");
    }
}

#[tokio::test]
async fn an_unknown_or_empty_query_parameter_is_refused_by_its_name() {
    let site = Site::new().await;
    for (path, name) in [
        ("/gpu-workers/jobs?stauts=failed", "stauts"),
        ("/gpu-workers/jobs/?limit=", "limit"),
        ("/gpu-workers/nodes?status=", "status"),
        ("/queues?skip=0&nme=x", "nme"),
        ("/auth/me?x", "x"),
    ] {
        let refusal = site.get(site.admin(), path).await.refused(422);
        assert_eq!(refusal["details"]["field"], name, "{refusal}");
    }
    for path in ["/gpu-workers/jobs?status=failed&limit=5", "/healthz?verbose"] {
        site.get(site.admin(), path).await.expect(200);
    }
}

#[tokio::test]
async fn a_wrong_number_is_repeated() {
    let site = Site::new().await;
    for (value, shown) in [(json!(-3), "it is -3"), (json!(1.5), "it is 1.5")] {
        let job = json!({"docker_image": "x", "gpu_count": value});
        let refusal = site.post(site.admin(), "/gpu-workers/jobs", job).await.refused(422);
        assert!(refusal["detail"].as_str().unwrap().contains(shown), "{refusal}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_rejected_with_and_without_a_declared_length() {
    let site = Site::new().await;
    let large = json!({"docker_image": "x", "input_data": "x".repeat(1 << 20)}).to_string();
    let request = || site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
    assert_eq!(send(request().body(large.clone())).await.refused(413)["code"], "too_large");
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        large.as_bytes().chunks(1 << 16).map(|piece| Ok(piece.to_vec())).collect();
    let stream = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    assert_eq!(send(request().body(stream)).await.refused(413)["code"], "too_large");
}

#[tokio::test]
async fn a_wrong_field_is_named_by_its_path() {
    let site = Site::new().await;
    for (field, body) in [
        ("gpu_count", json!({"docker_image": "x", "gpu_count": "two"})),
        ("env.A", json!({"docker_image": "x", "env": {"A": 1}})),
        (
            "volumes[1].target",
            json!({"docker_image": "x", "volumes": [{"source": "/a", "target": "/a"},
            {"source": "/b", "target": 5}]}),
        ),
        ("command", json!({"docker_image": "x", "command": {"run": 1}})),
    ] {
        let refusal = site.post(site.admin(), "/gpu-workers/jobs", body).await.refused(422);
        assert_eq!(refusal["details"]["field"], field, "{refusal}");
    }
}

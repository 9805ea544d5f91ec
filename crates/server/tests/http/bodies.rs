//! Malformed and invalid request bodies.

use serde_json::json;

use crate::site::{Site, send};

#[tokio::test]
async fn what_is_not_a_json_object_is_refused_in_words() {
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
async fn any_content_type_is_read_as_json_and_the_last_of_two_fields_counts() {
    let site = Site::new().await;
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense"]
    {
        let request = site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
        let body = "{\"docker_image\": \"a\", \"docker_image\": \"b\"}";
        let job = send(request.header("content-type", kind).body(body)).await.expect(201);
        assert_eq!(job["docker_image"], "b", "{kind}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_whether_or_not_it_says_so() {
    let site = Site::new().await;
    let large = json!({"docker_image": "x", "input_data": "x".repeat(1 << 20)}).to_string();
    let request = || site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
    assert_eq!(send(request().body(large.clone())).await.refused(400)["code"], "too_large");
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        large.as_bytes().chunks(1 << 16).map(|piece| Ok(piece.to_vec())).collect();
    let stream = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    assert_eq!(send(request().body(stream)).await.refused(400)["code"], "too_large");
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

//! Requests of every shape. For any input, the response has a documented status, an error has a JSON body with a
//! message, no rejected request is stored, and the server keeps running.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::shots::{Shot, shot};
use crate::site::{Reply, Site, send};

const REFUSALS: [u16; 9] = [400, 401, 403, 404, 405, 409, 413, 422, 429];

/// The same cases in every run; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` select other ones.
fn cases(usual: u32) -> Config {
    let mut config = Config::default();
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(42);
    }
    let cases = usual * config.cases / 256;
    Config { cases, failure_persistence: None, max_shrink_iters: 200, ..config }
}

/// Asserts the form of a response; returns true for a success.
fn judge(reply: &Reply, what: &str) -> bool {
    if (200..300).contains(&reply.status) || reply.status == 303 {
        return true;
    }
    assert!(REFUSALS.contains(&reply.status), "{what}: {reply:?}");
    let body: Value = serde_json::from_str(&reply.text).unwrap_or_default();
    let words = body["detail"].as_str().unwrap_or_default();
    assert!(words.len() > 5 && body["code"].is_string(), "{what}: {reply:?}");
    assert!(!words.contains('\n') && words.len() < 1000, "{what}: {words}");
    assert!(!words.contains("src/") && !words.contains("serde"), "{what}: {words}");
    false
}

/// Sends a call like a client; streams are not read to their end.
async fn call(site: &Site, token: &str, method: &str, path: &str, body: Option<Vec<u8>>) -> Reply {
    let mut request = site.request(method, path);
    if !token.is_empty() {
        request = request.bearer_auth(token);
    }
    if let Some(body) = body {
        request = request.body(body);
    }
    let streams = path.contains("/events") || path.contains("/stream") || path.contains("follow");
    if !streams {
        return send(request).await;
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = if status < 300 { String::new() } else { response.text().await.unwrap() };
    Reply { status, headers, text }
}

/// Tokens of every kind, the strongest first.
async fn tokens(site: &Site) -> Vec<String> {
    let node = site.node("node").await;
    let agent = json!({"agent_id": "agent", "node_id": node["id"]});
    let agent =
        site.post(site.registration(), "/gpu-workers/agents/register", agent).await.expect(200);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    vec![
        site.admin().to_owned(),
        site.user("ada", "user").await,
        site.user("vic", "viewer").await,
        site.registration().to_owned(),
        text(&node["api_key"]),
        text(&agent["api_key"]),
        String::new(),
        "nonsense".to_owned(),
    ]
}

/// A call of the OpenAPI document.
struct Call {
    method: String,
    path: String,
    /// Fields of the body.
    fields: Vec<String>,
    example: Map<String, Value>,
}

/// Every call of the OpenAPI document.
async fn calls(site: &Site) -> Vec<Call> {
    let api = site.get("", "/openapi.json").await.expect(200);
    let mut calls = Vec::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let body = &operation["requestBody"]["content"]["application/json"];
            calls.push(Call {
                method: method.to_uppercase(),
                path: path.clone(),
                fields: fields(&api, &body["schema"]),
                example: body["example"].as_object().cloned().unwrap_or_default(),
            });
        }
    }
    calls
}

fn fields(api: &Value, schema: &Value) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/components/schemas/");
        return fields(api, &api["components"]["schemas"][name]);
    }
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let inherited = parts.flat_map(|part| fields(api, part));
    let own = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
    inherited.chain(own).collect()
}

/// A path with a value for each parameter.
fn filled(path: &str, with: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { with } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_of_every_body_with_every_wrong_type_is_refused_or_taken_never_an_error() {
    let site = Site::with(|settings| settings.rate = (1_000_000, 1_000_000)).await;
    let tokens = tokens(&site).await;
    let wrong = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("\u{0}"),
        json!("../../x"),
        json!("🦀".repeat(300)),
        json!([]),
        json!([[]]),
        json!([null]),
        json!({}),
        json!({"": {}}),
        json!({"a": "\u{0}"}),
    ];
    for Call { method, path, fields, example } in calls(&site).await {
        if fields.is_empty()
            || path.starts_with("/auth/log")
            || path == "/auth/refresh"
            || path == "/auth/register"
        {
            continue;
        }
        for field in fields {
            for value in &wrong {
                let mut body = example.clone();
                body.insert(field.clone(), value.clone());
                let body = Value::Object(body).to_string();
                let token = strongest(&path, &tokens);
                let what =
                    format!("{method} {path} {}", body.chars().take(200).collect::<String>());
                let reply =
                    call(&site, token, &method, &filled(&path, "1"), Some(body.into_bytes())).await;
                judge(&reply, &what);
            }
        }
    }
    site.get(site.admin(), "/readyz").await.expect(200);
}

/// Most privileged token for a call.
fn strongest<'a>(path: &str, tokens: &'a [String]) -> &'a str {
    let last = path.rsplit('/').next().unwrap_or_default();
    match last {
        "register" => &tokens[3],
        "heartbeat" | "status" => &tokens[4],
        "report" | "stream" | "poll" => &tokens[5],
        _ => &tokens[0],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_for_a_refused_request() {
    let site = Site::with(|settings| settings.rate = (1_000_000, 1_000_000)).await;
    let tokens = tokens(&site).await;
    let bodies = [
        "",
        "{",
        "[]",
        "{}",
        "{\"name\": \"\\u0000\"}",
        "{\"username\": \"a b\", \"agent_id\": 5}",
    ];
    for Call { method, path, .. } in calls(&site).await {
        for token in &tokens {
            for body in bodies {
                let path = filled(&path, "999");
                let what = format!("{method} {path} {body}");
                let before = site.written().await;
                let body = (method != "GET").then(|| body.as_bytes().to_vec());
                if !judge(&call(&site, token, &method, &path, body).await, &what) {
                    assert_eq!(site.written().await, before, "{what}");
                }
                if method == "GET" {
                    break;
                }
            }
        }
    }
}

/// Converts a shot to a request with a description.
fn aimed(
    site: &Site,
    shot: &Shot,
    calls: &[Call],
    tokens: &[String],
) -> (reqwest::RequestBuilder, String) {
    let Call { method, path, fields, example } = shot.call.get(calls);
    let token = if shot.sound { strongest(path, tokens) } else { shot.token.get(tokens) };
    let method = if shot.method.is_empty() { method } else { shot.method };
    let path = format!("{}?{}", filled(path, &shot.segment), shot.query)
        .replace("wait_ms=", "wait_ms=1&x=");
    let known = |at: &prop::sample::Index| match fields.as_slice() {
        [] => "x".to_owned(),
        fields => at.get(fields).clone(),
    };
    let mut body = if shot.sound { example.clone() } else { Map::new() };
    body.extend(shot.fields.iter().map(|(at, value)| (known(at), value.clone())));
    let body = shot.raw.clone().unwrap_or_else(|| Value::Object(body).to_string().into_bytes());
    let what = format!("{method} {path} {}", String::from_utf8_lossy(&body));
    let mut request = site.request(method, &path).body(body);
    if !token.is_empty() {
        request = request.bearer_auth(token);
    }
    for (name, value) in &shot.headers {
        request = request.header(*name, value.trim());
    }
    (request, what)
}

#[test]
fn random_requests_get_answers_of_the_api_and_nothing_else() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (site, calls, tokens) = runtime.block_on(async {
        let site = Site::with(|settings| settings.rate = (1_000_000, 1_000_000)).await;
        let (tokens, mut calls) = (tokens(&site).await, calls(&site).await);
        // The admin's own key is needed until the end.
        calls.retain(|call| !call.path.starts_with("/auth/api-keys/{id}"));
        (site, calls, tokens)
    });
    let mut runner = TestRunner::new(cases(1500));
    runner
        .run(&shot(), |shot| {
            let (request, what) = aimed(&site, &shot, &calls, &tokens);
            runtime.block_on(async {
                let response = request.send().await.unwrap();
                let (status, headers) = (response.status().as_u16(), response.headers().clone());
                // Open streams have no end to read to.
                let text =
                    if status < 300 { String::new() } else { response.text().await.unwrap() };
                judge(&Reply { status, headers, text }, &what);
            });
            Ok(())
        })
        .unwrap();
    runtime.block_on(async {
        site.get(site.admin(), "/readyz").await.expect(200);
        site.running.stop().await;
    });
}

/// Sends raw bytes and reads the whole response.
async fn raw(site: &Site, bytes: &[u8]) -> String {
    let mut stream = tokio::net::TcpStream::connect(site.running.addr).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn bytes_that_are_not_http_get_an_error_and_the_server_survives() {
    let site = Site::new().await;
    let long = "x".repeat(70_000);
    let cases: Vec<Vec<u8>> = vec![
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET /\x00 HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabc".to_vec(),
        b"POST /auth/login HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        b"POST /auth/login HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 50\r\n\r\n{".to_vec(),
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec(),
        b"CONNECT example.com:80 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec(),
        b"GET http://example.com/nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec(),
        b"GET //// HTTP/1.1\r\nhost: x\r\nauthorization: \xff\xfe\r\nconnection: close\r\n\r\n".to_vec(),
        b"GET /auth/me HTTP/1.1\r\nauthorization: \xff\xfe\r\nconnection: close\r\n\r\n".to_vec(),
        format!("GET /{long} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {long}{long}{long}\r\n\r\n").into_bytes(),
    ];
    for bytes in cases {
        let what = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        let answer = raw(&site, &bytes).await;
        if what.starts_with("GET ////") {
            assert!(answer.starts_with("HTTP/1.1 200"), "{what}: {answer}");
            continue;
        }
        // A peer that disconnects early may receive nothing.
        if answer.is_empty() {
            continue;
        }
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status: u16 = head[9..12].parse().unwrap();
        // The HTTP library answers with an empty body if it cannot parse the request.
        if body.is_empty() && [400, 414, 431].contains(&status) {
            continue;
        }
        assert!(REFUSALS.contains(&status), "{what}: {answer}");
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{what}: {answer}"));
        assert!(body["detail"].is_string() && body["code"].is_string(), "{what}: {answer}");
    }
    site.get(site.admin(), "/auth/me").await.expect(200);
}

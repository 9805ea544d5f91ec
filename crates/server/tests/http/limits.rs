//! Limits of one caller: memory, time and connections.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use agentaflow_server::settings::Settings;

use crate::site::{Site, send};

fn ids(list: &Value) -> Vec<i64> {
    list.as_array().unwrap().iter().map(|job| job["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn a_list_of_large_jobs_comes_in_pages_and_nothing_is_left_out() {
    let site = Site::new().await;
    let large = "x".repeat(1 << 19);
    for _ in 0..70 {
        let job = json!({"docker_image": "x", "input_data": large});
        site.post(site.admin(), "/gpu-workers/jobs", job).await.expect(201);
    }
    let mut seen = Vec::new();
    let mut path = "/gpu-workers/jobs?limit=1000".to_owned();
    loop {
        let page = site.get(site.admin(), &path).await;
        assert!(page.text.len() < 18 << 20, "{}", page.text.len());
        assert_eq!(page.headers["x-total-count"], "70");
        let next = page.headers.get("x-next-before").map(|id| id.to_str().unwrap().to_owned());
        seen.extend(ids(&page.expect(200)));
        let Some(next) = next else { break };
        path = format!("/gpu-workers/jobs?limit=1000&before={next}");
    }
    assert_eq!(seen, (1..=70).rev().collect::<Vec<_>>());
    let page = site.get(site.admin(), "/gpu-workers/jobs?limit=5&skip=2").await;
    assert_eq!(page.headers["x-next-before"], "64");
    assert_eq!(ids(&page.expect(200)), [68, 67, 66, 65, 64]);
    let last = site.get(site.admin(), "/gpu-workers/jobs?limit=5&before=3").await;
    assert!(!last.headers.contains_key("x-next-before"));
    assert_eq!(ids(&last.expect(200)), [2, 1]);
}

#[tokio::test]
async fn unread_large_responses_do_not_accumulate() {
    let site = Site::new().await;
    let large = "x".repeat(900 << 10);
    for _ in 0..16 {
        let job = json!({"docker_image": "x", "input_data": large});
        site.post(site.admin(), "/gpu-workers/jobs", job).await.expect(201);
    }
    let list = || site.request("GET", "/gpu-workers/jobs?limit=1000").bearer_auth(site.admin());
    let mut unread = Vec::new();
    for _ in 0..16 {
        let begun = list().send().await.unwrap();
        assert_eq!(begun.status(), 200);
        unread.push(begun);
    }
    let refused = send(list()).await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.refused(429);
    site.get(site.admin(), "/gpu-workers/jobs?limit=1").await.expect(200);
    drop(unread);
    let mut again = send(list()).await.status;
    for _ in 0..100 {
        if again == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        again = send(list()).await.status;
    }
    assert_eq!(again, 200);
}

#[tokio::test]
async fn unauthenticated_bodies_are_small() {
    let site = Site::new().await;
    let text = |size: usize| "x".repeat(size);
    for path in ["/auth/login", "/auth/register", "/auth/refresh", "/auth/logout"] {
        let body = json!({"username": "ada", "password": text(17 << 10)});
        let refusal = site.post("", path, body).await.refused(413);
        assert_eq!(refusal["code"], "too_large", "{path}");
        assert_eq!(refusal["details"]["limit"], 16 << 10, "{path}");
    }
    let node = |size| {
        json!({"node_name": "n", "gpu_count": 1, "gpu_type": "x", "gpu_memory_total": 1024,
            "cpu_cores": 1, "memory_total": 1024, "node_metadata": {"text": text(size)},
            "registration_token": site.registration()})
    };
    let register = "/gpu-workers/nodes/register";
    let refusal = site.post("", register, node(65 << 10)).await.refused(413);
    assert_eq!(refusal["details"]["limit"], 64 << 10);
    site.post("", register, node(60 << 10)).await.expect(200);
    site.post(site.registration(), register, node(65 << 10)).await.expect(200);
}

#[tokio::test]
async fn logging_out_is_slowed_down_like_logging_in() {
    let site = Site::new().await;
    let mut statuses = Vec::new();
    for _ in 0..30 {
        let body = json!({"refresh_token": "nonsense"});
        statuses.push(site.post("", "/auth/logout", body).await.status);
    }
    assert!(statuses.starts_with(&[204]) && statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn what_if_requests_are_limited_by_account() {
    let site = Site::with(|settings| settings.rate = (10_000, 10_000)).await;
    let ada = site.user("ada", "user").await;
    let ask = |token: String| {
        let job = json!({"docker_image": "x"});
        let request = site.request("POST", "/gpu-workers/jobs/what-if").bearer_auth(token);
        send(request.json(&job))
    };
    let asked = futures_util::future::join_all((0..200).map(|_| ask(ada.clone()))).await;
    let slowed = asked.iter().filter(|reply| reply.status == 429).count();
    assert!(slowed > 50 && asked.iter().any(|reply| reply.status == 200), "{slowed}");
    ask(site.admin().to_owned()).await.expect(200);
    let job = site.post(&ada, "/gpu-workers/jobs", json!({"docker_image": "x"})).await.expect(201);
    let path = format!("/gpu-workers/jobs/{}/explain", job["id"]);
    let explained = futures_util::future::join_all((0..200).map(|_| site.get(&ada, &path))).await;
    assert!(explained.iter().any(|reply| reply.status == 429));
}

#[tokio::test]
async fn a_too_deep_value_is_rejected_and_the_deepest_valid_one_is_stored() {
    let site = Site::new().await;
    let nested = |levels: usize| {
        let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let job = |levels| json!({"docker_image": "x", "input_data": nested(levels)});
    let kept = site.post(site.admin(), "/gpu-workers/jobs", job(63)).await.expect(201);
    let shown = site.get(site.admin(), &format!("/gpu-workers/jobs/{}", kept["id"])).await;
    assert_eq!(shown.expect(200)["input_data"], nested(63));
    for levels in [64, 100] {
        let refusal = site.post(site.admin(), "/gpu-workers/jobs", job(levels)).await.refused(422);
        assert_eq!(refusal["details"]["field"], "input_data");
    }
    let endless = format!("{{\"x\": {}", "{\"a\":".repeat(10_000));
    let request = site.request("POST", "/gpu-workers/jobs").bearer_auth(site.admin());
    let refusal = send(request.body(endless)).await.refused(422);
    assert_eq!(refusal["code"], "invalid", "{refusal}");
}

#[tokio::test]
async fn a_connection_that_asks_for_nothing_is_closed_after_ten_seconds() {
    let site = Site::new().await;
    let mut silent = tokio::net::TcpStream::connect(site.running.addr).await.unwrap();
    let mut read = [0; 16];
    let ended = tokio::time::timeout(Duration::from_secs(14), silent.read(&mut read)).await;
    assert!(matches!(ended, Ok(Ok(0))), "{ended:?}");
    site.get(site.admin(), "/auth/me").await.expect(200);
}

/// Behind a proxy on this machine: the address of the client is in a header.
async fn behind_a_proxy() -> Site {
    Site::with(|settings| settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()]).await
}

/// Statuses of `count` logins with a wrong password.
async fn guess(site: &Site, name: &str, from: &str, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        let login = json!({"username": name, "password": "not the password"});
        let request = site.request("POST", "/auth/login").header("x-forwarded-for", from);
        statuses.push(send(request.json(&login)).await.status);
    }
    statuses
}

async fn login(site: &Site, name: &str, from: &str) -> u16 {
    let login = json!({"username": name, "password": "correct horse"});
    let request = site.request("POST", "/auth/login").header("x-forwarded-for", from);
    send(request.json(&login)).await.status
}

#[tokio::test]
async fn a_client_locks_out_neither_a_user_nor_the_clients_of_its_proxy() {
    let site = behind_a_proxy().await;
    site.user("ada", "user").await;
    site.user("bob", "user").await;
    let guessed = guess(&site, "ada", "198.51.100.7", 30).await;
    assert!(guessed.starts_with(&[401]) && guessed.ends_with(&[429]), "{guessed:?}");
    assert_eq!(login(&site, "ada", "203.0.113.9").await, 200, "the user, from another address");
    assert_eq!(login(&site, "bob", "198.51.100.7").await, 200, "another user of that address");
    // Addresses of one IPv6 network are one address.
    let mut guessed = Vec::new();
    for host in 1..=30 {
        guessed.extend(guess(&site, "bob", &format!("2001:db8::{host:x}"), 1).await);
    }
    assert_eq!(guessed.last(), Some(&429), "{guessed:?}");
    assert_eq!(login(&site, "bob", "2001:db8:0:1::1").await, 200);
}

/// Like [`behind_a_proxy`], with few tries for strangers: each try takes long.
fn few_strangers(settings: &mut Settings) {
    settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    settings.stranger_tries = (0.0, 30.0);
}

/// Logins with a wrong password, one from each of many addresses.
async fn guess_from_many_addresses(site: &Site, name: &str) -> Vec<u16> {
    let mut guessed = Vec::new();
    for host in 1..=40 {
        guessed.extend(guess(site, name, &format!("198.51.100.{host}"), 1).await);
    }
    guessed
}

#[tokio::test]
async fn many_addresses_do_not_lock_out_a_known_device_even_after_a_restart() {
    let mut site = Site::with(few_strangers).await;
    site.user("ada", "user").await;
    let right =
        |cookie: bool| json!({"username": "ada", "password": "correct horse", "cookie": cookie});
    let request = |site: &Site, from: &str| {
        site.request("POST", "/auth/login").header("x-forwarded-for", from)
    };
    let tokens = send(request(&site, "203.0.113.9").json(&right(false))).await.expect(200);
    let origin = site.running.url();
    let browser = request(&site, "203.0.113.20").header("origin", origin).json(&right(true));
    let browser = send(browser).await;
    let cookies = browser.headers.get_all("set-cookie").iter();
    let device =
        cookies.map(|value| value.to_str().unwrap()).find(|text| text.contains("_device_"));
    let device = device.unwrap().split(';').next().unwrap().to_owned();
    let (name, value) = device.split_once('=').unwrap();

    for _ in 0..2 {
        let guessed = guess_from_many_addresses(&site, "ada").await;
        assert!(guessed[..25].iter().all(|status| *status == 401), "{guessed:?}");
        assert_eq!(guessed.last(), Some(&429), "{guessed:?}");
        assert_eq!(login(&site, "ada", "203.0.113.10").await, 429, "a new address");
        assert_eq!(login(&site, "ada", "203.0.113.9").await, 200, "the address of a session");
        // From new addresses: a browser, and a program with an earlier token.
        let origin = site.running.url();
        let port = site.running.addr.port();
        let cookie = format!("{}_{port}={value}", name.rsplit_once('_').unwrap().0);
        let browser = request(&site, "203.0.113.30").header("origin", origin);
        send(browser.header("cookie", cookie).json(&right(true))).await.expect(200);
        let token = tokens["access_token"].as_str().unwrap();
        send(request(&site, "203.0.113.31").bearer_auth(token).json(&right(false)))
            .await
            .expect(200);
        // The token of one user does not help with another.
        let wrong = json!({"username": "ada", "password": "not the password"});
        let foreign = request(&site, "203.0.113.32").bearer_auth(site.admin()).json(&wrong);
        assert_eq!(send(foreign).await.status, 429);
        site = site.again_with(few_strangers).await;
    }
}

#[tokio::test]
async fn strangers_at_the_address_of_a_device_do_not_lock_it_out_and_its_own_tries_are_limited() {
    let site = Site::new().await;
    let token = site.user("ada", "user").await;
    assert_eq!(guess(&site, "ada", "", 25).await.last(), Some(&429));
    let attempt = |password: &str| {
        let login = json!({"username": "ada", "password": password});
        send(site.request("POST", "/auth/login").bearer_auth(&token).json(&login))
    };
    attempt("correct horse").await.expect(200);
    let mut statuses = Vec::new();
    for _ in 0..25 {
        statuses.push(attempt("not the password").await.status);
    }
    assert!(statuses.starts_with(&[401]) && statuses.ends_with(&[429]), "{statuses:?}");
}

#[tokio::test]
async fn a_client_without_a_trusted_proxy_cannot_choose_its_address() {
    let site = Site::new().await;
    site.user("ada", "user").await;
    let mut guessed = Vec::new();
    for host in 1..=30 {
        guessed.extend(guess(&site, "ada", &format!("198.51.100.{host}"), 1).await);
    }
    assert_eq!(guessed.last(), Some(&429), "{guessed:?}");
}

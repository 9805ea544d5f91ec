//! Browsers: the one-time link, cookies, and requests of other sites.

use reqwest::header::{COOKIE, HOST, ORIGIN};
use serde_json::json;

use crate::site::{Site, send};

/// Follows the link that the server printed and returns the cookies as a browser would send them back.
async fn log_in(site: &Site) -> String {
    let link = site.running.browser_link.expose();
    let reply = send(site.client.get(link)).await;
    assert!(reply.status == 200 && reply.text.contains("0;url=/"), "{}", reply.text);
    let set = reply.headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap());
    let set: Vec<_> = set.collect();
    assert!(
        set.iter().all(|cookie| cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"))
    );
    let pairs: Vec<_> = set.iter().map(|cookie| cookie.split(';').next().unwrap()).collect();
    pairs.join("; ")
}

#[tokio::test]
async fn the_link_logs_a_browser_in_once_and_the_start_page_greets_it() {
    let site = Site::new().await;
    site.node("<b>node</b>").await;
    let cookies = log_in(&site).await;
    let page = send(site.client.get(site.url("/")).header(COOKIE, &cookies)).await;
    assert!(page.text.contains("Signed in as <strong>admin</strong>"), "{}", page.text);
    assert!(page.text.contains("&lt;b&gt;node&lt;/b&gt;"), "names are not markup");
    let again = send(site.client.get(site.running.browser_link.expose())).await;
    again.refused(401);
    assert!(site.get("", "/").await.text.contains("not logged in"));
}

#[tokio::test]
async fn cookies_count_only_for_requests_of_this_servers_own_pages() {
    let site = Site::new().await;
    let cookies = log_in(&site).await;
    let own = site.running.addr.to_string();
    let evil = "evil.example.com";
    for (method, host, origin, status) in [
        ("GET", own.as_str(), None, 200),
        ("GET", evil, None, 403),
        ("POST", &own, Some(format!("http://{own}")), 201),
        ("POST", &own, Some(format!("http://{evil}")), 403),
        ("POST", &own, Some("null".to_owned()), 403),
        ("POST", &own, None, 403),
        ("POST", evil, Some(format!("http://{evil}")), 403),
    ] {
        let mut request =
            site.request(method, "/auth/api-keys").header(COOKIE, &cookies).header(HOST, host);
        if let Some(origin) = &origin {
            request = request.header(ORIGIN, origin);
        }
        if method == "POST" {
            request = request.json(&json!({"name": "from a page"}));
        }
        let reply = send(request).await;
        assert_eq!(reply.status, status, "{method} {host} {origin:?}: {reply:?}");
    }
}

#[tokio::test]
async fn a_token_in_the_header_needs_no_origin_and_no_known_host() {
    let site = Site::new().await;
    let request = site.request("GET", "/auth/me").header(HOST, "proxy.example.com");
    send(request.bearer_auth(site.admin())).await.expect(200);
}

#[tokio::test]
async fn a_browser_logs_in_with_a_password_refreshes_and_logs_out() {
    let site = Site::new().await;
    site.user("ada", "user").await;
    let origin = format!("http://{}", site.running.addr);
    let login = json!({"username": "ada", "password": "correct horse", "cookie": true});
    send(site.request("POST", "/auth/login").json(&login)).await.refused(403);
    let reply =
        send(site.request("POST", "/auth/login").header(ORIGIN, &origin).json(&login)).await;
    let cookies = |headers: &reqwest::header::HeaderMap| {
        let set = headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap());
        set.map(|cookie| cookie.split(';').next().unwrap()).collect::<Vec<_>>().join("; ")
    };
    let first = cookies(&reply.headers);
    assert_eq!(reply.expect(200)["access_token"], "", "tokens stay out of reach of scripts");
    let refresh =
        site.request("POST", "/auth/refresh").header(ORIGIN, &origin).header(COOKIE, &first);
    let reply = send(refresh).await;
    let second = cookies(&reply.headers);
    reply.expect(200);
    let me =
        |cookies: &str| send(site.request("GET", "/auth/me").header(COOKIE, cookies.to_owned()));
    assert_eq!(me(&second).await.expect(200)["username"], "ada");
    let logout =
        site.request("POST", "/auth/logout").header(ORIGIN, &origin).header(COOKIE, &second);
    send(logout).await.expect(204);
    me(&second).await.refused(401);
}

#[tokio::test]
async fn the_form_of_the_start_page_logs_in_and_out_without_a_script() {
    let site = Site::new().await;
    site.user("ada", "user").await;
    let origin = format!("http://{}", site.running.addr);
    let form = |path: &str, body: &'static str| {
        let request = site.request("POST", path).header(ORIGIN, &origin);
        request.header("content-type", "application/x-www-form-urlencoded").body(body)
    };
    let wrong = send(form("/auth/login", "username=ada&password=wrong+horse")).await;
    wrong.refused(401);
    let reply = send(form("/auth/login", "username=ada&password=correct+horse")).await;
    assert_eq!((reply.status, reply.headers["location"].to_str().unwrap()), (303, "/"));
    let set = reply.headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap());
    let cookies: Vec<_> = set.map(|cookie| cookie.split(';').next().unwrap()).collect();
    let cookies = cookies.join("; ");
    let page = send(site.request("GET", "/").header(COOKIE, &cookies)).await;
    assert!(page.text.contains("Signed in as <strong>ada</strong>"), "{}", page.text);
    let out = send(form("/auth/logout", "").header(COOKIE, &cookies)).await;
    assert_eq!(out.status, 303);
    let page = send(site.request("GET", "/").header(COOKIE, &cookies)).await;
    assert!(page.text.contains("not logged in"));
    assert_eq!(
        page.headers["referrer-policy"], "same-origin",
        "else forms would come without an origin"
    );
    let foreign = site.request("POST", "/auth/login").header(ORIGIN, "http://evil.example.com");
    let foreign = foreign.header("content-type", "application/x-www-form-urlencoded");
    send(foreign.body("username=ada&password=correct+horse")).await.refused(403);
}

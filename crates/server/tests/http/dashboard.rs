//! The dashboard of the server: its page, its files and a program without one.

use agentaflow_dashboard::Dashboard;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING};

use crate::site::{Reply, Site, send};

fn small() -> Dashboard {
    Dashboard::new(|path| match path {
        "index.html" => Some(b"<!doctype html><title>small</title>".as_slice().into()),
        "assets/app-1a.js" => Some(b"plain".as_slice().into()),
        "assets/app-1a.js.gz" => Some(b"zipped".as_slice().into()),
        _ => None,
    })
}

async fn site() -> Site {
    Site::with(|settings| settings.dashboard = Some(small())).await
}

async fn get(site: &Site, path: &str, accept: &str) -> Reply {
    send(site.request("GET", path).header(ACCEPT, accept).header(ACCEPT_ENCODING, "identity")).await
}

#[tokio::test]
async fn every_page_is_one_document_that_may_load_only_from_this_server() {
    let site = site().await;
    for path in ["/", "/ui/workloads", "/ui/workloads/7?tab=log", "/ui"] {
        let reply = get(&site, path, "text/html,*/*;q=0.8").await;
        assert!(reply.status == 200 && reply.text.contains("small"), "{path}: {reply:?}");
        let policy = reply.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.headers[CACHE_CONTROL], "no-cache");
        assert_eq!(reply.headers["x-frame-options"], "DENY");
    }
}

#[tokio::test]
async fn a_program_that_asks_for_a_page_or_an_unknown_file_gets_an_error() {
    let site = site().await;
    for (path, accept) in [
        ("/ui/workloads", "application/json"),
        ("/ui/workloads", "*/*"),
        ("/assets/gone.js", "text/html"),
        ("/assets/..%2findex.html", "text/html"),
        ("/nowhere", "text/html"),
    ] {
        get(&site, path, accept).await.refused(404);
    }
}

#[tokio::test]
async fn files_are_cached_forever_and_compressed_for_browsers_that_can() {
    let site = site().await;
    let plain = get(&site, "/assets/app-1a.js", "*/*").await;
    assert_eq!((plain.status, plain.text.as_str()), (200, "plain"));
    assert_eq!(plain.headers[CACHE_CONTROL], "public, max-age=31536000, immutable");
    assert_eq!(plain.headers["content-type"], "text/javascript; charset=utf-8");
    let zipped = site.request("GET", "/assets/app-1a.js").header(ACCEPT_ENCODING, "br, gzip");
    let zipped = send(zipped).await;
    assert_eq!(zipped.headers[CONTENT_ENCODING], "gzip");
    assert_eq!(zipped.text, "zipped");
    let refused = site.request("GET", "/assets/app-1a.js").header(ACCEPT_ENCODING, "gzip;q=0");
    assert_eq!(send(refused).await.text, "plain");
}

#[tokio::test]
async fn a_program_without_a_dashboard_keeps_the_start_page_and_names_the_remedy() {
    let site = Site::new().await;
    let start = get(&site, "/", "text/html").await;
    assert!(start.text.contains("not logged in") && start.text.contains("cargo xtask run"));
    get(&site, "/ui/workloads", "text/html").await.refused(404);
    get(&site, "/assets/app-1a.js", "*/*").await.refused(404);
}

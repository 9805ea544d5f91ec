//! Files as responses, with the content security policy.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Response, header};

use super::Dashboard;

/// Remedy for a program without a dashboard.
pub const NOT_BUILT: &str = "This program was built without the dashboard. In its sources, \
                             `cargo xtask run` builds both; without npm it leaves the dashboard out.";

/// Headers of every response beside the pages' own: no content sniffing, no framing.
pub const HEADERS: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    // Not `no-referrer`: browsers would then hide the origin of the server's own forms.
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// Files whose names contain a hash of their content never change.
const FOREVER: &str = "public, max-age=31536000, immutable";
/// The page names the current files, so browsers ask for it each time.
const EACH_TIME: &str = "no-cache";
/// Scripts, styles and data of this server only; no inline script or style, no markup from text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types svelte-trusted-html";

type Content = Cow<'static, [u8]>;

impl Dashboard {
    /// The page, which is the same for all paths below `/ui`.
    pub fn page(self, headers: &HeaderMap) -> Option<Response<Content>> {
        send(self, "index.html", EACH_TIME, headers)
    }

    /// A file by its path, such as `assets/index-1a2b3c.js`.
    pub fn asset(self, path: &str, headers: &HeaderMap) -> Option<Response<Content>> {
        let cache = if path.starts_with("assets/") { FOREVER } else { EACH_TIME };
        if is_plain(path) { send(self, path, cache, headers) } else { None }
    }
}

/// Response with the file, compressed if the client supports it and the file has a compressed form.
fn send(
    dashboard: Dashboard,
    path: &str,
    cache: &'static str,
    headers: &HeaderMap,
) -> Option<Response<Content>> {
    let small = accepts(headers, header::ACCEPT_ENCODING, "gzip")
        .then(|| dashboard.file(&format!("{path}.gz")))
        .flatten();
    let zipped = small.is_some();
    let content = small.or_else(|| dashboard.file(path))?;
    let all = [
        (header::CONTENT_TYPE, kind(path)),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, cache),
        (header::VARY, "Accept, Accept-Encoding"),
    ];
    let mut response = Response::new(content);
    for (name, value) in all {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if zipped {
        let gzip = HeaderValue::from_static("gzip");
        response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
    }
    Some(response)
}

/// Letters, digits and `-_.` in segments that do not start with a dot.
fn is_plain(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    path.split('/').all(|part| !part.starts_with('.') && part.chars().all(plain))
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Returns true if a list header names the value and does not exclude it with `q=0`.
pub fn accepts(headers: &HeaderMap, name: header::HeaderName, value: &str) -> bool {
    let texts = headers.get_all(name).iter().filter_map(|text| text.to_str().ok());
    let mut entries = texts.flat_map(|text| text.split(','));
    entries.any(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(value));
        named && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    })
}

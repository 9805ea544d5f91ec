//! Addresses of push endpoints.

use url::Url;

/// URL of an endpoint, if the server may call it.
pub(super) fn permitted_url(
    endpoint: &str,
    peer: Option<&str>,
    allow: &[String],
) -> Result<Url, String> {
    let url: Url = endpoint.parse().map_err(|_| format!("`{endpoint}` is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https")
        || !url.username().is_empty()
        || url.password().is_some()
    {
        return Err(format!("`{endpoint}` is not a plain http URL"));
    }
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or(80));
    let listed = allow.iter().any(|allowed| *allowed == host || *allowed == with_port);
    let same =
        |peer: &str| match (peer.parse::<std::net::IpAddr>(), host.parse::<std::net::IpAddr>()) {
            (Ok(peer), Ok(host)) => peer.to_canonical() == host.to_canonical(),
            _ => false,
        };
    if listed || peer.is_some_and(same) {
        Ok(url)
    } else {
        Err(format!(
            "`{host}` is neither the address that the node registered from nor permitted with --push-allow"
        ))
    }
}

pub(super) fn below(base: &Url, path: &str) -> Option<Url> {
    let mut base = base.clone();
    base.set_query(None);
    base.set_fragment(None);
    if !base.path().ends_with('/') {
        base.set_path(&format!("{}/", base.path()));
    }
    base.join(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(endpoint: &str, peer: &str, allow: &[&str]) -> bool {
        let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
        permitted_url(endpoint, Some(peer), &allow).is_ok()
    }

    #[test]
    fn only_the_registering_address_and_permitted_ones_are_called() {
        assert!(may("http://10.0.0.7:8080", "10.0.0.7", &[]));
        assert!(may("http://[::1]:8080", "::1", &[]));
        assert!(may("http://127.0.0.1:9000", "::ffff:127.0.0.1", &[]));
        assert!(!may("http://10.0.0.8:8080", "10.0.0.7", &[]));
        assert!(!may("http://metadata.internal/", "10.0.0.7", &[]));
        assert!(may("http://worker-1:8080", "10.0.0.7", &["worker-1"]));
        assert!(!may("http://worker-1:9090", "10.0.0.7", &["worker-1:8080"]));
        assert!(!may("file:///etc/passwd", "10.0.0.7", &[]));
        assert!(!may("http://user:pass@10.0.0.7/", "10.0.0.7", &[]));
    }

    #[test]
    fn paths_are_added_below_the_endpoint() {
        let base: Url = "http://h:1/agent?x=1".parse().unwrap();
        assert_eq!(below(&base, "jobs/").unwrap().as_str(), "http://h:1/agent/jobs/");
    }
}

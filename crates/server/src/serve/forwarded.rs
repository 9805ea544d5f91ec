//! Client addresses behind a proxy.
//!
//! Any client can send `X-Forwarded-For` and `Forwarded`. They count only from a trusted proxy, and only up to the first
//! address that is not a trusted proxy: a proxy appends the address of its peer at the end.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderMap;
use ipnet::IpNet;

const X_FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";

/// Proxies whose forwarded addresses count.
#[derive(Debug, Default)]
pub(super) struct TrustedProxies {
    networks: Vec<IpNet>,
    warned: AtomicBool,
}

impl TrustedProxies {
    pub(super) fn new(networks: Vec<IpNet>) -> Self {
        Self { networks, warned: AtomicBool::new(false) }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Address of the client of a request from `peer`.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        let has_forwarded =
            headers.contains_key(X_FORWARDED_FOR) || headers.contains_key(FORWARDED);
        if !has_forwarded {
            return peer;
        }
        if !self.contains(peer) {
            self.warn(peer);
            return peer;
        }
        let listed = |name, read: fn(&str) -> Vec<Option<IpAddr>>| {
            let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"));
            let hops: Vec<_> = values.flat_map(read).collect();
            (!hops.is_empty()).then(|| self.first_untrusted_hop(peer, &hops))
        };
        match (listed(X_FORWARDED_FOR, x_forwarded_for), listed(FORWARDED, forwarded)) {
            (Some(one), None) | (None, Some(one)) => one,
            (Some(one), Some(other)) if one == other => one,
            // The proxy sets one header and passes the other one on as the client sent it.
            (Some(_), Some(_)) | (None, None) => peer,
        }
    }

    /// Last address of the list that is not a trusted proxy. An unreadable address ends the search: addresses before it
    /// may be invented.
    fn first_untrusted_hop(&self, peer: IpAddr, hops: &[Option<IpAddr>]) -> IpAddr {
        let mut nearest = peer;
        for hop in hops.iter().rev() {
            let Some(address) = hop else { return nearest };
            nearest = *address;
            if !self.contains(nearest) {
                return nearest;
            }
        }
        nearest
    }

    /// Reports once that a proxy may be missing in the settings.
    fn warn(&self, peer: IpAddr) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "Forwarded addresses from {peer} are ignored: all its clients share one rate limit. If {peer} is your \
                 proxy, use --trusted-proxy {peer}"
            );
        }
    }
}

fn x_forwarded_for(value: &str) -> Vec<Option<IpAddr>> {
    value.split(',').map(address).collect()
}

/// The `for` parameters of RFC 7239; none for an element without one.
fn forwarded(value: &str) -> Vec<Option<IpAddr>> {
    let of_element = |element: &str| {
        let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"));
        found.and_then(|(_, value)| address(value))
    };
    value.split(',').map(of_element).collect()
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `"[2001:db8::1]:80"`.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let read = bare.parse::<IpAddr>().ok();
    let read = read.or_else(|| text.parse::<SocketAddr>().ok().map(|found| found.ip()));
    read.map(|found| found.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, headers: &[(&'static str, &str)]) -> String {
        let networks = ["10.0.0.0/8", "2001:db8:1::/48"].map(|text| text.parse().unwrap());
        let proxies = TrustedProxies::new(networks.to_vec());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        proxies.client(peer.parse().unwrap(), &map).to_string()
    }

    #[test]
    fn forwarded_addresses_count_from_trusted_proxies_only() {
        let xff = |value| client("10.0.0.1", &[(X_FORWARDED_FOR, value)]);
        assert_eq!(client("192.0.2.9", &[(X_FORWARDED_FOR, "198.51.100.1")]), "192.0.2.9");
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(xff("198.51.100.1"), "198.51.100.1");
        assert_eq!(xff("1.2.3.4, 198.51.100.1"), "198.51.100.1", "the first one is invented");
        assert_eq!(xff("198.51.100.1, 10.0.0.7"), "198.51.100.1");
        assert_eq!(xff("10.0.0.9, 10.0.0.7"), "10.0.0.9");
        assert_eq!(xff("198.51.100.1, unknown"), "10.0.0.1");
        assert_eq!(xff("198.51.100.1:4711"), "198.51.100.1");
        assert_eq!(xff("::ffff:198.51.100.1"), "198.51.100.1");
        assert_eq!(client("::ffff:10.0.0.1", &[(X_FORWARDED_FOR, "198.51.100.1")]), "198.51.100.1");
        let two = [(X_FORWARDED_FOR, "1.2.3.4"), (X_FORWARDED_FOR, "198.51.100.1")];
        assert_eq!(client("10.0.0.1", &two), "198.51.100.1");
    }

    #[test]
    fn the_standard_header_counts_and_a_contradiction_counts_as_the_proxy() {
        let standard = |value| client("2001:db8:1::5", &[(FORWARDED, value)]);
        assert_eq!(standard("for=198.51.100.1;proto=https"), "198.51.100.1");
        assert_eq!(standard("For=\"[2001:db8:9::1]:80\", for=10.0.0.2"), "2001:db8:9::1");
        assert_eq!(standard("for=_hidden"), "2001:db8:1::5");
        assert_eq!(standard("proto=https"), "2001:db8:1::5");
        let both = |one, other| client("10.0.0.1", &[(X_FORWARDED_FOR, one), (FORWARDED, other)]);
        assert_eq!(both("198.51.100.1", "for=198.51.100.1"), "198.51.100.1");
        assert_eq!(both("198.51.100.1", "for=203.0.113.5"), "10.0.0.1");
    }
}

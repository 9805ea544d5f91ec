//! Addresses of push endpoints that the server may call.
//!
//! A registration names the endpoint, so a registration token must not direct the server to itself or to services that
//! only it can reach, such as the metadata service of a cloud. The check resolves the name; the call connects to the
//! checked address and to no other.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;
use url::{Host, Url};

/// Endpoint with the address that a call connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) url: Url,
    pub(super) address: SocketAddr,
}

/// Cause for which the server does not call an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub(super) enum EndpointProblem {
    #[error("`{0}` is not a plain http URL")]
    NotHttp(String),
    #[error("`{0}` is not a known host name")]
    Unresolved(String),
    /// Loopback, link-local, multicast or unspecified.
    #[error(
        "`{host}` is {address}, an internal address of the server; permit it with --push-allow {address}"
    )]
    Internal { host: String, address: IpAddr },
    #[error(
        "`{0}` is neither the address that the node registered from nor permitted with --push-allow"
    )]
    NotPermitted(String),
}

/// Resolves an endpoint and checks its addresses.
pub(super) async fn permitted(
    endpoint: &str,
    peer: Option<&str>,
    allow: &[String],
) -> Result<Endpoint, EndpointProblem> {
    let url = plain_url(endpoint)?;
    let addresses = match url.host() {
        Some(Host::Ipv4(address)) => vec![IpAddr::V4(address)],
        Some(Host::Ipv6(address)) => vec![IpAddr::V6(address)],
        Some(Host::Domain(name)) => {
            let found = tokio::net::lookup_host((name, 0)).await;
            let found = found.map_err(|_| EndpointProblem::Unresolved(name.to_owned()))?;
            found.map(|address| address.ip()).collect()
        }
        None => return Err(EndpointProblem::NotHttp(endpoint.to_owned())),
    };
    choose(url, &addresses, peer, allow)
}

fn plain_url(endpoint: &str) -> Result<Url, EndpointProblem> {
    let wrong = || EndpointProblem::NotHttp(endpoint.to_owned());
    let url: Url = endpoint.parse().map_err(|_| wrong())?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.username().is_empty()
        && url.password().is_none();
    if plain { Ok(url) } else { Err(wrong()) }
}

/// First of the resolved addresses that the server may call: the address of the registration, or a permitted host. An
/// internal address must be permitted itself, whatever name leads to it.
fn choose(
    url: Url,
    addresses: &[IpAddr],
    peer: Option<&str>,
    allow: &[String],
) -> Result<Endpoint, EndpointProblem> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let listed = |name: &str| {
        let with_port = format!("{name}:{port}");
        allow.iter().any(|allowed| allowed == name || *allowed == with_port)
    };
    let peer = peer.and_then(|peer| peer.parse::<IpAddr>().ok()).map(|peer| peer.to_canonical());
    let mut problem = EndpointProblem::Unresolved(host.clone());
    for address in addresses.iter().map(IpAddr::to_canonical) {
        let itself = listed(&address.to_string());
        if is_internal(address) && !itself {
            problem = EndpointProblem::Internal { host: host.clone(), address };
        } else if itself || listed(&host) || peer == Some(address) {
            return Ok(Endpoint { url, address: SocketAddr::new(address, port) });
        } else {
            problem = EndpointProblem::NotPermitted(host.clone());
        }
    }
    Err(problem)
}

fn is_internal(address: IpAddr) -> bool {
    let address = match address.to_canonical() {
        // `::127.0.0.1`, an old form of an IPv4 address.
        IpAddr::V6(six) => six.to_ipv4().map_or(IpAddr::V6(six), IpAddr::V4),
        four @ IpAddr::V4(_) => four,
    };
    let link_local = match address {
        IpAddr::V4(four) => four.is_link_local() || four.is_broadcast(),
        IpAddr::V6(six) => six.is_unicast_link_local() || six.is_loopback(),
    };
    // The whole network 0.0.0.0/8 means this host.
    let this_host = matches!(address, IpAddr::V4(four) if four.octets()[0] == 0);
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || link_local
        || this_host
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(
        endpoint: &str,
        resolved: &str,
        peer: &str,
        allow: &[&str],
    ) -> Result<IpAddr, EndpointProblem> {
        let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
        let chosen = choose(plain_url(endpoint)?, &[resolved.parse().unwrap()], Some(peer), &allow);
        chosen.map(|endpoint| endpoint.address.ip())
    }

    #[test]
    fn only_the_registering_address_and_permitted_ones_are_called() {
        let may = |endpoint: &str, resolved: &str, allow: &[&str]| {
            decide(endpoint, resolved, "10.0.0.7", allow).is_ok()
        };
        assert!(may("http://10.0.0.7:8080", "10.0.0.7", &[]));
        assert!(may("http://10.0.0.7:8080", "::ffff:10.0.0.7", &[]));
        assert!(may("http://gpu-7:8080", "10.0.0.7", &[]), "a name of the registering address");
        assert!(!may("http://gpu-8:8080", "10.0.0.8", &[]));
        assert!(may("http://gpu-8:8080", "10.0.0.8", &["gpu-8"]));
        assert!(may("http://gpu-8:8080", "10.0.0.8", &["10.0.0.8"]));
        assert!(!may("http://gpu-8:9090", "10.0.0.8", &["gpu-8:8080"]));
        for wrong in ["file:///etc/passwd", "http://user:pass@10.0.0.7/", "nonsense"] {
            assert!(matches!(plain_url(wrong), Err(EndpointProblem::NotHttp(_))), "{wrong}");
        }
    }

    #[test]
    fn an_internal_address_is_called_only_if_it_is_permitted_itself() {
        for internal in [
            "127.0.0.1",
            "127.8.9.10",
            "169.254.169.254",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            // By name, also a permitted one, and also for a node that registered from that address.
            let refused = decide("http://worker:8080", internal, internal, &["worker"]);
            assert!(
                matches!(refused, Err(EndpointProblem::Internal { .. })),
                "{internal}: {refused:?}"
            );
            let address: IpAddr = internal.parse().unwrap();
            let own = address.to_canonical().to_string();
            assert!(
                decide("http://worker:8080", internal, "10.0.0.7", &[&own]).is_ok(),
                "{internal}"
            );
        }
    }

    #[test]
    fn unusual_spellings_of_an_internal_address_are_recognised() {
        for spelling in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://[::ffff:7f00:1]/",
        ] {
            let url = plain_url(spelling).unwrap();
            let address = match url.host() {
                Some(Host::Ipv4(address)) => IpAddr::V4(address),
                Some(Host::Ipv6(address)) => IpAddr::V6(address),
                other => panic!("{other:?}"),
            };
            assert!(is_internal(address), "{spelling}");
        }
    }

    #[tokio::test]
    async fn a_name_is_resolved_before_the_decision() {
        let refused =
            permitted("http://localhost:8080", Some("127.0.0.1"), &["localhost".to_owned()]).await;
        assert!(matches!(refused, Err(EndpointProblem::Internal { .. })), "{refused:?}");
        let unknown =
            permitted("http://worker.invalid", None, &["worker.invalid".to_owned()]).await;
        assert!(matches!(unknown, Err(EndpointProblem::Unresolved(_))), "{unknown:?}");
    }
}

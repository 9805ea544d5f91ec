//! Registry of an image name, and its access rules.

use std::net::IpAddr;

use bollard::Docker as DockerClient;
use bollard::models::ImageInspect;
use tokio::net::lookup_host;

use agentaflow_api::end::EndReason;

use super::super::{Launch, StartError};
use super::fault::Secrets;
use super::pull::{pull_error, with_login};

/// Registry of images without one.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// Host and port of the registry of an image. Names of repositories have no upper case.
fn registry(image: &str) -> &str {
    let first = image.split_once('/').map(|(first, _)| first);
    let is_host = |first: &&str| {
        first.contains(['.', ':'])
            || *first == "localhost"
            || first.contains(|letter: char| letter.is_uppercase())
    };
    first.filter(is_host).unwrap_or(DOCKER_HUB_HOST)
}

/// Rejects registries on this host: the daemon would contact services of the host for a tenant.
pub(super) async fn check_registry(image: &str) -> Result<(), StartError> {
    let registry = registry(image);
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    if host == DOCKER_HUB_HOST {
        return Ok(());
    }
    let local = is_local_name(host) || resolves_locally(host).await;
    if !local {
        return Ok(());
    }
    let detail = format!(
        "Image `{image}` rejected: its registry `{registry}` is on the node itself; use another registry, or ask the \
         operator of the node for `--allow-local-registry`"
    );
    Err(StartError::job(EndReason::ImagePull, detail))
}

fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// A name that does not resolve is not local: the daemon reports the error.
async fn resolves_locally(host: &str) -> bool {
    match lookup_host((host, 443)).await {
        Ok(mut found) => found.any(|address| is_local(address.ip())),
        Err(_) => false,
    }
}

fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_unspecified() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local(),
    }
}

/// Asks the registry whether the job's own credentials give access to an image that is on the node already.
pub(super) async fn check_access(
    client: &DockerClient,
    launch: &Launch,
    image: &str,
    found: &ImageInspect,
    secrets: &Secrets,
) -> Result<(), StartError> {
    if !is_name_of(image, found) {
        let detail =
            format!("Image `{image}` rejected: it may be private; use its name with tag or digest");
        return Err(StartError::job(EndReason::ImagePull, detail));
    }
    let client = with_login(client, launch.assignment.registry_auth.as_ref());
    let answer = client.inspect_registry_image(image, None).await;
    answer.map(drop).map_err(|error| pull_error(image, &error, secrets))
}

/// True unless the image was given by its id, which no registry can check.
fn is_name_of(image: &str, found: &ImageInspect) -> bool {
    let names = found.repo_tags.iter().flatten().chain(found.repo_digests.iter().flatten());
    let short = |name: &str| {
        name.trim_start_matches("docker.io/").trim_start_matches("library/").to_owned()
    };
    names.into_iter().any(|name| short(name) == short(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn registries_on_the_node_are_rejected() {
        for image in [
            "localhost:5000/a",
            "localhost/a",
            "LOCALHOST/a",
            "Localhost/a/b:1",
            "127.0.0.1/a:1",
            "127.9.9.9:80/a/b",
            "x.localhost:5000/a",
            "0.0.0.0:5000/a",
            "169.254.169.254/a",
        ] {
            assert!(check_registry(image).await.is_err(), "{image}");
        }
        for image in ["busybox", "library/busybox:1", "192.0.2.7:5000/a", "a/b@sha256:00"] {
            assert!(check_registry(image).await.is_ok(), "{image}");
        }
    }

    #[test]
    fn an_id_is_not_a_name_of_an_image() {
        let found = ImageInspect {
            repo_tags: Some(vec!["busybox:1".to_owned(), "r.example/a:2".to_owned()]),
            repo_digests: Some(vec!["r.example/a@sha256:00".to_owned()]),
            ..ImageInspect::default()
        };
        for image in ["busybox:1", "docker.io/library/busybox:1", "r.example/a@sha256:00"] {
            assert!(is_name_of(image, &found), "{image}");
        }
        for image in ["0123456789ab:latest", "r.example/a:3"] {
            assert!(!is_name_of(image, &found), "{image}");
        }
    }
}

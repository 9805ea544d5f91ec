//! Pulls images and reports progress.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use bollard::Docker as DockerClient;
use bollard::errors::Error as DockerError;
use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptions;
use futures_util::StreamExt;

use agentaflow_api::end::EndReason;
use agentaflow_api::event::EventKind;
use agentaflow_api::link::RegistryAuth;
use agentaflow_units::format_mib;

use super::super::{Launch, Progress, StartError};
use super::fault::{self, Secrets};
use super::registry::{check_access, check_registry};
use super::{Docker, PullPolicy};

/// Server address of Docker Hub credentials.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Shortest time between two progress updates.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Image reference of a task, validated since it becomes part of a URL of the Docker API.
pub(super) fn reference(launch: &Launch) -> Result<String, StartError> {
    let image = launch.assignment.image.as_deref().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    let valid_start = image.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !valid_start || image.len() > 512 || image.contains("..") || !image.chars().all(is_plain) {
        let detail = format!("Invalid image name `{}`", image.escape_default());
        return Err(StartError::job(EndReason::ImagePull, detail));
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    // Without a tag Docker would pull all tags.
    Ok(if name.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") })
}

impl Docker {
    /// Pulls the image if the policy requires it. Checks the job's access to an image on the host that may be private.
    pub(super) async fn ensure_image(
        &self,
        launch: &Launch,
        image: &str,
        progress: Progress<'_>,
        secrets: &Secrets,
    ) -> Result<(), StartError> {
        let policy = self.settings.pull;
        if policy != PullPolicy::Always {
            match self.client.inspect_image(image).await {
                Ok(found) => return self.check_origin(launch, image, &found, secrets).await,
                Err(error) if !fault::is_missing(&error) => return Err(fault::node(&error)),
                Err(_) if policy == PullPolicy::Never => {
                    let detail = format!(
                        "Image `{image}` is not on the node, and the node does not pull images"
                    );
                    return Err(StartError::job(EndReason::ImagePull, detail));
                }
                Err(_) => {}
            }
        }
        if !self.settings.allow_local_registry {
            check_registry(image).await?;
        }
        self.pull(launch, image, progress, secrets).await
    }

    async fn check_origin(
        &self,
        launch: &Launch,
        image: &str,
        found: &ImageInspect,
        secrets: &Secrets,
    ) -> Result<(), StartError> {
        if !self.image_origins.needs_check(image, found, self.settings.trust_local_images) {
            return Ok(());
        }
        check_access(&self.client, launch, image, found, secrets).await?;
        if launch.assignment.registry_auth.is_none() {
            let id = found.id.as_deref().unwrap_or_default();
            self.image_origins.add_public_id(id).map_err(|error| not_recorded(&error))?;
        }
        Ok(())
    }

    async fn pull(
        &self,
        launch: &Launch,
        image: &str,
        progress: Progress<'_>,
        secrets: &Secrets,
    ) -> Result<(), StartError> {
        let auth = launch.assignment.registry_auth.as_ref();
        if auth.is_some() {
            self.image_origins
                .add_private_reference(image)
                .map_err(|error| not_recorded(&error))?;
        }
        progress(EventKind::Pulling, format!("Pulling `{image}`"));
        let client = with_login(&self.client, auth);
        pull(&client, image, progress).await.map_err(|error| pull_error(image, &error, secrets))?;
        let found = self.client.inspect_image(image).await.map_err(|error| fault::node(&error))?;
        let id = found.id.unwrap_or_default();
        let recorded = match auth {
            Some(_) => self.image_origins.add_private_id(&id),
            None => self.image_origins.add_public_id(&id),
        };
        recorded.map_err(|error| not_recorded(&error))?;
        progress(EventKind::Pulled, format!("Pulled `{image}`"));
        Ok(())
    }
}

fn not_recorded(error: &std::io::Error) -> StartError {
    StartError::Node(format!("cannot record the image of a job: {error}"))
}

async fn pull(
    client: &DockerClient,
    image: &str,
    progress: Progress<'_>,
) -> Result<(), DockerError> {
    let options = CreateImageOptions { from_image: Some(image.to_owned()), ..Default::default() };
    let mut events = client.create_image(Some(options), None, None);
    let mut layers = Layers::default();
    let mut reported = Instant::now();
    while let Some(item) = events.next().await {
        layers.record(&item?);
        if reported.elapsed() >= PROGRESS_INTERVAL
            && let Some(message) = layers.message()
        {
            reported = Instant::now();
            progress(EventKind::Pulling, message);
        }
    }
    Ok(())
}

/// Client that sends the credentials with every request. The library's own parameter encodes some passwords in a
/// base64 alphabet that Docker does not accept, and Docker then pulls anonymously.
pub(super) fn with_login(client: &DockerClient, auth: Option<&RegistryAuth>) -> DockerClient {
    let Some(auth) = auth else { return client.clone() };
    let login = serde_json::json!({
        "username": auth.username,
        "password": auth.password.expose(),
        "serveraddress": auth.server.as_deref().unwrap_or(DOCKER_HUB),
    });
    let header = URL_SAFE.encode(login.to_string());
    client.clone().with_request_modifier(move |mut request| {
        if let Ok(value) = header.parse() {
            request.headers_mut().insert("X-Registry-Auth", value);
        }
        request
    })
}

/// Reasons of a registry, which Docker reports only as text.
enum RegistryFault {
    Denied,
    NotFound,
    Other,
}

impl RegistryFault {
    fn parse(message: &str) -> Self {
        if message.contains("denied") || message.contains("unauthorized") {
            Self::Denied
        } else if message.contains("manifest unknown") || message.contains("not found") {
            Self::NotFound
        } else {
            Self::Other
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            Self::Denied => "; check the image name, `docker_username` and `docker_password`",
            Self::NotFound => "; check the image name and tag",
            Self::Other => "",
        }
    }
}

pub(super) fn pull_error(image: &str, error: &DockerError, secrets: &Secrets) -> StartError {
    let message = match error {
        DockerError::DockerResponseServerError { message, .. } => message.clone(),
        DockerError::DockerStreamError { error } => error.clone(),
        other => return fault::node(other),
    };
    let advice = RegistryFault::parse(&message).advice();
    let message = secrets.hide(message.trim().trim_end_matches('.'));
    let detail = format!("Cannot pull image `{image}`: {message}{advice}");
    StartError::job(EndReason::ImagePull, detail)
}

/// Downloaded and total bytes per layer.
#[derive(Default)]
struct Layers(HashMap<String, (u64, u64)>);

impl Layers {
    fn record(&mut self, event: &CreateImageInfo) {
        // Extraction counts from zero again, under the same layer ids.
        if event.status.as_deref() != Some("Downloading") {
            return;
        }
        let detail = event.progress_detail.as_ref();
        let amount = |value: Option<i64>| value.and_then(|bytes| u64::try_from(bytes).ok());
        let (Some(layer), Some(done), Some(all)) = (
            event.id.clone(),
            amount(detail.and_then(|detail| detail.current)),
            amount(detail.and_then(|detail| detail.total)),
        ) else {
            return;
        };
        self.0.insert(layer, (done, all));
    }

    fn message(&self) -> Option<String> {
        let sum = |pick: fn(&(u64, u64)) -> u64| self.0.values().map(pick).sum::<u64>();
        let (done, all) = (sum(|layer| layer.0), sum(|layer| layer.1));
        (all > 0)
            .then(|| format!("Pulling: {} of {}", format_mib(done >> 20), format_mib(all >> 20)))
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::end::StartFailure;
    use bollard::models::ProgressDetail;

    use super::*;

    fn event(layer: &str, status: &str, current: i64, total: i64) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(layer.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: Some(ProgressDetail { current: Some(current), total: Some(total) }),
            ..CreateImageInfo::default()
        }
    }

    #[test]
    fn progress_is_the_sum_over_all_layers() {
        let mut layers = Layers::default();
        assert_eq!(layers.message(), None);
        layers.record(&event("a", "Downloading", 20 << 20, 200 << 20));
        layers.record(&event("b", "Downloading", 100 << 20, 2 << 30));
        layers.record(&event("a", "Extracting", 1, 200 << 20));
        assert_eq!(layers.message().unwrap(), "Pulling: 120 MiB of 2.2 GiB");
    }

    #[test]
    fn a_pull_error_names_the_image_and_hides_the_password() {
        let error = "unauthorized: no user with hunter2222".to_owned();
        let launch = crate::runtime::docker::tests::launch();
        let fault =
            pull_error("a/b:1", &DockerError::DockerStreamError { error }, &Secrets::of(&launch));
        let StartError::Job(StartFailure { reason, detail, .. }) = fault else { panic!("{fault}") };
        assert_eq!(reason, EndReason::ImagePull);
        assert!(detail.contains("`a/b:1`") && !detail.contains("hunter2222"), "{detail}");
    }

    #[test]
    fn the_default_tag_is_latest_and_invalid_names_are_rejected() {
        let mut launch = crate::runtime::docker::tests::launch();
        for (asked, expected) in [
            ("busybox", Some("busybox:latest")),
            ("localhost:5000/a/b", Some("localhost:5000/a/b:latest")),
            ("a/b:1.2", Some("a/b:1.2")),
            ("a@sha256:00", Some("a@sha256:00")),
            ("../containers/x", None),
            ("a/../../b", None),
            ("a?b=c", None),
            ("", None),
        ] {
            launch.assignment.image = Some(asked.to_owned());
            assert_eq!(reference(&launch).ok().as_deref(), expected, "{asked}");
        }
    }
}

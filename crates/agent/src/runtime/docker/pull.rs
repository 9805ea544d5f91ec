//! Fetches images, and tells how far it is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use bollard::Docker as Engine;
use bollard::errors::Error as EngineError;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptions;
use futures_util::StreamExt;

use agentaflow_api::end::{EndReason, StartFailure};
use agentaflow_api::event::EventKind;
use agentaflow_api::link::RegistryAuth;

use super::super::{Launch, Progress, StartError};
use super::Pull;
use super::fault::{self, Secrets};

/// Where Docker Hub wants its credentials to be for.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Shortest time between two progress reports of a download.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The image of a task, checked: it becomes part of an address inside the engine.
pub(super) fn reference(launch: &Launch) -> Result<String, StartError> {
    let image = launch.assignment.image.as_deref().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    let begins_well = image.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins_well || image.len() > 512 || image.contains("..") || !image.chars().all(is_plain) {
        let detail = format!("`{}` is not the name of an image", image.escape_default());
        return Err(StartError::Job(StartFailure::new(EndReason::ImagePull, detail)));
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    // Without a tag the engine would fetch every tag there is.
    Ok(if name.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") })
}

/// Makes sure that the engine has the image.
pub(super) async fn ensure(
    engine: &Engine,
    when: Pull,
    launch: &Launch,
    image: &str,
    progress: Progress<'_>,
    secrets: &Secrets,
) -> Result<(), StartError> {
    if when != Pull::Always {
        match engine.inspect_image(image).await {
            Ok(_) => return Ok(()),
            Err(error) if !fault::is_missing(&error) => return Err(fault::node(&error)),
            Err(_) if when == Pull::Never => {
                let detail = format!("The image `{image}` is not on this node, which fetches none");
                return Err(StartError::Job(StartFailure::new(EndReason::ImagePull, detail)));
            }
            Err(_) => {}
        }
    }
    progress(EventKind::Pulling, format!("Pulling `{image}`"));
    let engine = with_login(engine, launch.assignment.registry_auth.as_ref());
    fetch(&engine, image, progress).await.map_err(|error| failed(image, &error, secrets))?;
    progress(EventKind::Pulled, format!("Pulled `{image}`"));
    Ok(())
}

async fn fetch(engine: &Engine, image: &str, progress: Progress<'_>) -> Result<(), EngineError> {
    let options = CreateImageOptions { from_image: Some(image.to_owned()), ..Default::default() };
    let mut news = engine.create_image(Some(options), None, None);
    let mut layers = Layers::default();
    let mut told = Instant::now();
    while let Some(item) = news.next().await {
        layers.note(&item?);
        if told.elapsed() >= REPORT_EVERY
            && let Some(words) = layers.words()
        {
            told = Instant::now();
            progress(EventKind::Pulling, words);
        }
    }
    Ok(())
}

/// The engine with the credentials in every request. Not through the library: it writes them in an alphabet
/// that the engine cannot read for some passwords, and then pulls without any.
fn with_login(engine: &Engine, auth: Option<&RegistryAuth>) -> Engine {
    let Some(auth) = auth else { return engine.clone() };
    let login = serde_json::json!({
        "username": auth.username,
        "password": auth.password.expose(),
        "serveraddress": auth.server.as_deref().unwrap_or(DOCKER_HUB),
    });
    let header = URL_SAFE.encode(login.to_string());
    engine.clone().with_request_modifier(move |mut request| {
        if let Ok(value) = header.parse() {
            request.headers_mut().insert("X-Registry-Auth", value);
        }
        request
    })
}

fn failed(image: &str, error: &EngineError, secrets: &Secrets) -> StartError {
    let said = match error {
        EngineError::DockerResponseServerError { message, .. } => message.clone(),
        EngineError::DockerStreamError { error } => error.clone(),
        other => return fault::node(other),
    };
    let advice = if said.contains("denied") || said.contains("unauthorized") {
        "; is the name right, and does the registry know `docker_username` and `docker_password`?"
    } else if said.contains("manifest unknown") || said.contains("not found") {
        "; is the name right, and the tag?"
    } else {
        ""
    };
    let said = secrets.hide(said.trim().trim_end_matches('.'));
    let detail = format!("The image `{image}` could not be pulled: {said}{advice}");
    StartError::Job(StartFailure::new(EndReason::ImagePull, detail))
}

/// How much of each layer has come.
#[derive(Default)]
struct Layers(HashMap<String, (u64, u64)>);

impl Layers {
    fn note(&mut self, news: &CreateImageInfo) {
        // Unpacking counts anew from zero, under the same names.
        if news.status.as_deref() != Some("Downloading") {
            return;
        }
        let detail = news.progress_detail.as_ref();
        let amount = |value: Option<i64>| value.and_then(|bytes| u64::try_from(bytes).ok());
        let (Some(layer), Some(come), Some(all)) = (
            news.id.clone(),
            amount(detail.and_then(|detail| detail.current)),
            amount(detail.and_then(|detail| detail.total)),
        ) else {
            return;
        };
        self.0.insert(layer, (come, all));
    }

    fn words(&self) -> Option<String> {
        let sum = |pick: fn(&(u64, u64)) -> u64| self.0.values().map(pick).sum::<u64>();
        let (come, all) = (sum(|layer| layer.0), sum(|layer| layer.1));
        (all > 0).then(|| format!("Pulling: {} of {}", size(come), size(all)))
    }
}

/// `120 MiB`, `2.1 GiB`.
fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes < GIB {
        return format!("{} MiB", bytes >> 20);
    }
    format!("{:.1} GiB", bytes as f64 / GIB as f64)
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn news(layer: &str, status: &str, current: i64, total: i64) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(layer.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: Some(ProgressDetail { current: Some(current), total: Some(total) }),
            ..CreateImageInfo::default()
        }
    }

    #[test]
    fn the_layers_of_a_download_are_added_up() {
        let mut layers = Layers::default();
        assert_eq!(layers.words(), None);
        layers.note(&news("a", "Downloading", 20 << 20, 200 << 20));
        layers.note(&news("b", "Downloading", 100 << 20, 2 << 30));
        layers.note(&news("a", "Extracting", 1, 200 << 20));
        assert_eq!(layers.words().unwrap(), "Pulling: 120 MiB of 2.2 GiB");
    }

    #[test]
    fn a_failure_names_the_image_and_hides_the_password() {
        let error = "unauthorized: no user with hunter2222".to_owned();
        let launch = crate::runtime::docker::tests::launch();
        let fault =
            failed("a/b:1", &EngineError::DockerStreamError { error }, &Secrets::of(&launch));
        let StartError::Job(StartFailure { reason, detail, .. }) = fault else { panic!("{fault}") };
        assert_eq!(reason, EndReason::ImagePull);
        assert!(detail.starts_with("The image `a/b:1` could not be pulled: unauthorized"));
        assert!(!detail.contains("hunter2222") && detail.contains("docker_password"), "{detail}");
    }

    #[test]
    fn an_image_without_a_tag_is_the_latest_and_nonsense_is_refused() {
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

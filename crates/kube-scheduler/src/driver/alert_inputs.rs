//! The `ConfigMap` of administrators and the Secret with the addresses of sinks, as of now.

use agentaflow_alerts::{Config, SecretRef, Secrets};
use agentaflow_api::alert::{AlertTestRequest, Silence};
use agentaflow_api::units::Secret;
use agentaflow_kube_core::{names, slim};
use futures_util::StreamExt as _;
use k8s_openapi::ByteString;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use tokio::sync::watch::Sender;
use tokio_util::sync::CancellationToken;

use super::watch::watch_backoff;

/// An object that may not exist; the outer none: not known yet.
pub(super) type Found<T> = Option<Option<T>>;

/// Settings of the alerts.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    pub(super) config: Config,
    pub(super) secrets: Secrets,
    pub(super) silences: Vec<Silence>,
    pub(super) test: Option<AlertTestRequest>,
    /// Faults of the objects.
    pub(super) problems: Vec<String>,
}

impl Inputs {
    /// Reads both objects. An invalid configuration keeps the one in force.
    pub(super) fn read(
        map: Option<&slim::ConfigMap>,
        secret: Option<&slim::Secret>,
        goal: Option<f64>,
        in_force: &Config,
    ) -> Self {
        let data = map.and_then(|map| map.data.clone()).unwrap_or_default();
        let mut problems = Vec::new();
        let place = |key: &str| format!("ConfigMap {}, key {key}", names::ALERTS);
        let text = data.get(names::ALERTS_CONFIG).map_or("", String::as_str);
        let mut config = Config::parse(text).unwrap_or_else(|error| {
            problems.push(format!("{}: {error}", place(names::ALERTS_CONFIG)));
            in_force.clone()
        });
        let secrets = secret.map(values).unwrap_or_default();
        if secrets.0.contains_key(names::ALERT_SECRET_URL) {
            config = config.or_webhook(SecretRef::Key(names::ALERT_SECRET_URL.to_owned()));
        }
        if let Some(goal) = goal {
            config.set_utilization_goal(goal);
        }
        let mut silences = Vec::new();
        for (key, text) in data.range(names::ALERTS_SILENCE.to_owned()..) {
            let Some(id) = key.strip_prefix(names::ALERTS_SILENCE) else { break };
            match serde_json::from_str::<Silence>(text) {
                Ok(silence) if !silence.matcher.is_empty() => {
                    silences.push(Silence { id: id.to_owned(), ..silence });
                }
                Ok(_) => problems.push(format!("{}: it matches every alert", place(key))),
                Err(error) => problems.push(format!("{}: {error}", place(key))),
            }
        }
        let requested = data.get(names::ALERTS_TEST);
        let requested = requested.and_then(|json| serde_json::from_str(json).ok());
        Self { config, secrets, silences, test: requested, problems }
    }
}

fn values(secret: &slim::Secret) -> Secrets {
    let data = secret.data.clone().unwrap_or_default().into_iter();
    let text =
        |(key, value): (String, ByteString)| Some((key, Secret(String::from_utf8(value.0).ok()?)));
    Secrets(data.filter_map(text).collect())
}

/// Sends an object by name whenever it changes, until `stop`.
pub(super) async fn follow<K>(
    client: Client,
    namespace: String,
    name: &'static str,
    found: Sender<Found<K>>,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
{
    let api = Api::<K>::namespaced(client, &namespace);
    let one = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut stream = watcher(api, one).backoff(watch_backoff()).boxed();
    let mut listed = None;
    while let Some(Some(event)) = stop.run_until_cancelled(stream.next()).await {
        let object = match event {
            Ok(watcher::Event::Init) => {
                listed = None;
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed = Some(object);
                continue;
            }
            Ok(watcher::Event::InitDone) => listed.take(),
            Ok(watcher::Event::Apply(object)) => Some(object),
            Ok(watcher::Event::Delete(_)) => None,
            Err(error) => {
                tracing::warn!(name, %error, "cannot watch an object of the alerts");
                // Without the right to read the object, alerts work without it.
                found.send_if_modified(|known| {
                    let is_new = known.is_none();
                    known.get_or_insert(None);
                    is_new
                });
                continue;
            }
        };
        found.send_replace(Some(object));
    }
}

//! Optional APIs that the cluster serves.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_kube_core::names;
use agentaflow_kube_core::unit::{KINDS, UnitKind};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::api::{ApiServer, Failure, Ignored};
use super::lease::Leadership;

/// Optional APIs that the cluster serves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServedApis {
    /// Pod groups of the scheduler plugins.
    pub(crate) plugins: bool,
    /// Pod groups of Kubernetes itself.
    pub(crate) native: bool,
    /// Kueue is installed.
    pub(crate) kueue: bool,
    /// Kinds of jobs that this scheduler may list, in the order of [`KINDS`].
    pub(crate) jobs: [bool; KINDS.len()],
}

impl ServedApis {
    /// Optional kinds that must be listed before the first pass.
    pub(crate) fn required(self) -> impl Iterator<Item = &'static str> {
        let kinds = [(self.plugins, PLUGIN_GROUPS), (self.native, NATIVE_GROUPS)];
        let kinds = kinds.into_iter().filter(|(served, _)| *served).map(|(_, kind)| kind);
        kinds.chain(self.jobs().map(|kind| kind.plural))
    }

    pub(crate) fn jobs(self) -> impl Iterator<Item = &'static UnitKind> {
        KINDS.iter().zip(self.jobs).filter(|(_, served)| *served).map(|(kind, _)| kind)
    }

    pub(crate) fn is_complete(self) -> bool {
        self.plugins && self.native && self.kueue && self.jobs().count() == KINDS.len()
    }
}

/// Pod groups of the scheduler plugins.
pub(crate) const PLUGIN_GROUPS: &str = "podgroups";
/// Pod groups of Kubernetes itself.
pub(crate) const NATIVE_GROUPS: &str = "native podgroups";
pub(crate) const PLUGINS: &str = "/apis/scheduling.x-k8s.io/v1alpha1";
pub(crate) const NATIVE: &str = "/apis/scheduling.k8s.io/v1alpha2";
/// Delays between two attempts.
const DISCOVERY_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(500), Duration::from_secs(5));

/// Discovers optional APIs; retries until the API server answers: pods of a gang must not count as single pods only because the
/// API server was overloaded.
pub(crate) async fn discover(
    server: &ApiServer,
    leadership: &Leadership,
    stop: &CancellationToken,
) -> ServedApis {
    let mut backoff = DISCOVERY_RETRIES.start();
    while leadership.is_open() && !stop.is_cancelled() {
        match try_discover(server).await {
            Ok(answer) => return answer,
            Err(error) => tracing::warn!(%error, "cannot discover optional APIs"),
        }
        tokio::select! {
            () = leadership.sleep(backoff.next_delay()) => {}
            () = stop.cancelled() => {}
        }
    }
    ServedApis::default()
}

async fn try_discover(server: &ApiServer) -> Result<ServedApis, Failure> {
    let mut jobs = [false; KINDS.len()];
    for (kind, served) in KINDS.iter().zip(&mut jobs) {
        *served = serves_jobs(server, kind).await?;
    }
    Ok(ServedApis {
        jobs,
        plugins: serves(server, PLUGINS, "podgroups").await?,
        native: serves(server, NATIVE, "podgroups").await?,
        kueue: has_kueue(server).await?,
    })
}

/// Returns true if the API server serves a kind of jobs to this scheduler. Without the right to list it, as with a role of
/// an earlier version, its pods are scheduled one by one.
pub(crate) async fn serves_jobs(server: &ApiServer, kind: &UnitKind) -> Result<bool, Failure> {
    if !serves(server, &kind.base(), kind.plural).await? {
        return Ok(false);
    }
    match server.get::<Ignored>(&format!("{}/{}?limit=1", kind.base(), kind.plural)).await {
        Err(Failure::Refused { code: 403, message, .. }) => {
            tracing::warn!(message, "cannot list jobs; their pods are scheduled one by one");
            Ok(false)
        }
        answer => Ok(found(answer)?.is_some()),
    }
}

/// Returns true if Kueue is installed.
pub(crate) async fn has_kueue(server: &ApiServer) -> Result<bool, Failure> {
    let group = format!("/apis/{}", names::KUEUE_GROUP);
    Ok(found(server.get::<Ignored>(&group).await)?.is_some())
}

/// Returns true if the API server serves a kind; only status 404 means false.
pub(crate) async fn serves(server: &ApiServer, group: &str, plural: &str) -> Result<bool, Failure> {
    let list = found(server.get::<serde_json::Value>(group).await)?;
    Ok(list.is_some_and(|list| lists_kind(&list, plural)))
}

fn found<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Failure::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn lists_kind(list: &serde_json::Value, plural: &str) -> bool {
    let kinds = list.get("resources").and_then(serde_json::Value::as_array);
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["name"] == plural))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_pod_groups_must_be_listed() {
        let check = |plugins, native, kinds: &[&str]| {
            let served = ServedApis { plugins, native, ..ServedApis::default() };
            assert_eq!(served.required().collect::<Vec<_>>(), kinds);
        };
        check(false, false, &[]);
        check(true, false, &["podgroups"]);
        check(true, true, &["podgroups", "native podgroups"]);
        let mut served = ServedApis::default();
        served.jobs[0] = true;
        assert_eq!(served.required().collect::<Vec<_>>(), ["jobs"]);
        assert!(!served.is_complete());
    }

    #[test]
    fn only_404_means_that_an_api_is_not_served() {
        assert!(matches!(found(Ok(1)), Ok(Some(1))));
        assert!(matches!(found::<()>(Err(Failure::NotFound(String::new()))), Ok(None)));
        assert!(found::<()>(Err(Failure::Unknown(String::new()))).is_err());
        let forbidden = Failure::Refused { code: 403, message: String::new(), uid_differs: false };
        assert!(found::<()>(Err(forbidden)).is_err());
    }

    #[test]
    fn a_kind_is_served_if_its_group_lists_it() {
        let check = |list: serde_json::Value, served| {
            assert_eq!(lists_kind(&list, "podgroups"), served, "{list}");
        };
        check(serde_json::json!({ "resources": [{ "name": "podgroups" }] }), true);
        check(serde_json::json!({ "resources": [{ "name": "podgroups/status" }] }), false);
        check(serde_json::json!({ "resources": 5 }), false);
        check(serde_json::json!({}), false);
    }
}

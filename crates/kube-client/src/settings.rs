//! Settings and metrics of the scheduler.

use agentaflow_kube_core::names;
use agentaflow_kube_core::settings::{self, InvalidSetting};
use std::str::FromStr;

use agentaflow_engine::{Policy, Strategy};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::scheduler::Port;
use super::{Cluster, Failure};

/// Key in the settings `ConfigMap`.
const STRATEGY: &str = "strategy";

impl Cluster {
    /// Current strategy: from the settings, otherwise from the scheduler's Deployment.
    pub async fn strategy(&self) -> Result<String, Failure> {
        let api: Api<ConfigMap> = self.namespaced(&self.system);
        let map = api.get_opt(names::SCHEDULER_CONFIG).await?;
        let message = map.and_then(|map| map.data?.remove(STRATEGY));
        if let Some(name) = message.filter(|name| !name.trim().is_empty()) {
            return Ok(name.trim().to_owned());
        }
        let api: Api<Deployment> = self.namespaced(&self.system);
        let deployment = match api.get_opt(names::SCHEDULER_DEPLOYMENT).await.map_err(Failure::from)
        {
            Err(Failure::Forbidden(_)) => None,
            found => found?,
        };
        Ok(deployment.and_then(started_with).unwrap_or_else(|| "least_utilized".to_owned()))
    }

    /// Settings that the scheduler refuses.
    pub async fn invalid_settings(&self) -> Result<Vec<InvalidSetting>, Failure> {
        let api: Api<ConfigMap> = self.namespaced(&self.system);
        let map = api.get_opt(names::SCHEDULER_CONFIG).await?;
        let data = map.and_then(|map| map.data).unwrap_or_default();
        let policy = Policy::default();
        Ok(settings::apply(&data, &policy, &policy).1)
    }

    /// Changes the strategy of future placements.
    pub async fn set_strategy(&self, name: &str) -> Result<(), Failure> {
        Strategy::from_str(name).map_err(|error| Failure::refused(error.to_string()))?;
        let api: Api<ConfigMap> = self.namespaced(&self.system);
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names::SCHEDULER_CONFIG},
            "data": {STRATEGY: name},
        });
        let how = PatchParams::apply("agentaflow-cli").force();
        api.patch(names::SCHEDULER_CONFIG, &how, &Patch::Apply(map)).await?;
        Ok(())
    }

    /// Metrics of the leader in the Prometheus text format.
    pub async fn metrics(&self) -> Result<String, Failure> {
        self.ask_scheduler("GET", Port::Metrics, "/metrics?leader=true", None).await
    }
}

/// Strategy in the command line or environment of the scheduler.
fn started_with(deployment: Deployment) -> Option<String> {
    let pods = deployment.spec?.template.spec?;
    pods.containers.into_iter().find_map(|container| {
        let words = [container.command, container.args].into_iter().flatten().flatten();
        let words: Vec<String> = words.collect();
        let joined =
            words.iter().find_map(|word| word.strip_prefix("--strategy=").map(str::to_owned));
        let apart = words.iter().position(|word| word == "--strategy");
        let apart = || apart.and_then(|at| words.get(at + 1).cloned());
        let env = container.env.into_iter().flatten();
        let mut env = env.filter(|one| one.name == "SCHEDULING_STRATEGY");
        joined.or_else(apart).or_else(|| env.next()?.value).filter(|name| !name.is_empty())
    })
}

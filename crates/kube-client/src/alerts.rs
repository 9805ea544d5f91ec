//! Alerts of a cluster. The scheduler answers with a report; silences and requests for tests are keys of the `ConfigMap`
//! [`names::ALERTS`], so that Kubernetes decides on the right to write them.

use std::time::Duration;

use agentaflow_api::alert::{
    AlertReport, AlertTestRequest, AlertTestResult, Silence, SilenceCreate,
};
use agentaflow_api::units::Stamp;
use agentaflow_kube_core::names;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::scheduler::Port;
use crate::{Cluster, Failure};

/// Longest wait for the result of a test, and the pause between two questions.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);
const TEST_PAUSE: Duration = Duration::from_millis(300);

const FIELD_MANAGER: &str = "agentaflow-cli-alerts";

impl Cluster {
    pub async fn alerts(&self) -> Result<AlertReport, Failure> {
        let text = self.ask_scheduler("GET", Port::Http, "/alerts", None).await?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::Other(format!("the scheduler sent no report: {error}")))
    }

    /// Requests a test message, and waits for the results.
    pub async fn test_alerts(&self, sink: Option<String>) -> Result<Vec<AlertTestResult>, Failure> {
        let known = self.alerts().await?.sinks;
        if known.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(name) = &sink
            && !known.iter().any(|known| known.name == *name)
        {
            return Err(Failure::refused(format!("sink `{name}` not found")));
        }
        let request = AlertTestRequest { id: new_id(), sink };
        self.write_alert_key(names::ALERTS_TEST, serde_json::to_string(&request).ok()).await?;
        let began = std::time::Instant::now();
        while began.elapsed() < TEST_TIMEOUT {
            tokio::time::sleep(TEST_PAUSE).await;
            let last = self.alerts().await?.last_test;
            if let Some(last) = last.filter(|last| last.id == request.id) {
                return Ok(last.results);
            }
        }
        Err(Failure::refused(format!("no result of the test within {TEST_TIMEOUT:?}")))
    }

    pub async fn silence(&self, wanted: &SilenceCreate) -> Result<Silence, Failure> {
        let now = Stamp::now();
        let length = i64::try_from(wanted.seconds.saturating_mul(1000)).unwrap_or(i64::MAX);
        let silence = Silence {
            id: new_id(),
            matcher: wanted.matcher.clone(),
            created_at: now,
            until: Stamp(now.0.saturating_add(length)),
            comment: wanted.comment.clone(),
            author: self.own_name().await.unwrap_or_default(),
        };
        let key = silence_key(&silence.id);
        self.write_alert_key(&key, serde_json::to_string(&silence).ok()).await?;
        Ok(silence)
    }

    pub async fn unsilence(&self, id: &str) -> Result<(), Failure> {
        let key = silence_key(id);
        let map = self.alerts_map().get_opt(names::ALERTS).await?;
        if !map.and_then(|map| map.data).is_some_and(|data| data.contains_key(&key)) {
            return Err(Failure::refused(format!("silence `{id}` not found")));
        }
        self.write_alert_key(&key, None).await
    }

    /// Sets or removes a key of the `ConfigMap`; other keys stay.
    async fn write_alert_key(&self, key: &str, value: Option<String>) -> Result<(), Failure> {
        let api = self.alerts_map();
        let how =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch: Value = json!({"data": {key: value}});
        match api.patch(names::ALERTS, &how, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let map: ConfigMap = serde_json::from_value(json!({
                    "metadata": {"name": names::ALERTS},
                    "data": {key: value.unwrap_or_default()},
                }))
                .map_err(|error| Failure::refused(error.to_string()))?;
                api.create(&PostParams::default(), &map).await?;
                Ok(())
            }
            other => {
                other?;
                Ok(())
            }
        }
    }

    fn alerts_map(&self) -> Api<ConfigMap> {
        self.namespaced(&self.system)
    }

    /// Name of the caller as the API server knows it.
    async fn own_name(&self) -> Option<String> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review =
            api.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok()?;
        review.status?.user_info?.username
    }
}

fn silence_key(id: &str) -> String {
    format!("{}{id}", names::ALERTS_SILENCE)
}

fn new_id() -> String {
    let now = Stamp::now().0;
    let origin = format!("{now}\0{}\0{:?}", std::process::id(), std::thread::current().id());
    format!("{:08x}", agentaflow_units::hash64(origin.as_bytes()) as u32)
}

//! Autoscalers for servers, by GPU utilization or queue length.

use std::collections::BTreeMap;

use agentaflow_units::Amount;
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, ExternalMetricSource, HPAScalingRules, HorizontalPodAutoscaler,
    HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerSpec, MetricIdentifier, MetricSpec,
    MetricTarget, ObjectMetricSource, PodsMetricSource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::names::{self, short};
use super::pod::{namespace, some};
use super::quantity;
use super::values::{self, Pair};
use super::{BuildError, BuildOutput, refuse};

/// Utilization metric of NVIDIA's exporter, in percent.
const METRIC: &str = "DCGM_FI_DEV_GPU_UTIL";
/// Utilization metric of agentaflow's scheduler, in percent.
const OWN_METRIC: &str = "gpu_utilization";
/// Metric of a `GPUQueue` in agentaflow's scheduler.
const QUEUE_METRIC: &str = "queue_depth";
/// Default target utilization in percent.
const GOAL: &str = "80";
/// Default maximum of replicas.
const MOST: u32 = 4;

/// Scale target and range, shared by HPA and KEDA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct ScaleTarget {
    /// Deployment to scale
    #[arg(long, value_name = "NAME")]
    pub target: Option<String>,
    /// Name of the object [default: that of the deployment]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace [default: left to kubectl]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Fewest pods [default: 1; with keda and --query: 0]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub min: Option<u32>,
    /// Most pods [default: 4]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub max: Option<u32>,
    /// Value for each pod to aim at [default: 80, percent of utilisation]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub value: Option<String>,
    /// Stabilization window before scaling down [default: 5m]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub scale_down_delay: Option<String>,
}

/// `generate hpa`: a horizontal pod autoscaler on a GPU metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Hpa {
    /// Metric to go by [default: gpu_utilization]
    #[arg(long, value_name = "NAME")]
    pub metric: Option<String>,
    /// Scale by the pending workloads of this GPUQueue; --value is their number for each pod
    #[arg(long, value_name = "NAME", conflicts_with_all = ["metric", "external"])]
    pub queue: Option<String>,
    /// Take it from the external metrics API, not from that of the pods
    #[arg(long)]
    pub external: bool,
    /// Label of the external metric; may be given several times
    #[arg(long, value_name = "KEY=VALUE", requires = "external")]
    #[serde(deserialize_with = "values::pairs")]
    pub metric_label: Vec<Pair>,
    #[command(flatten)]
    #[serde(flatten)]
    pub scaled: ScaleTarget,
}

/// `generate keda`: KEDA's `ScaledObject`, which can scale to zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Keda {
    /// Address of Prometheus [default: prometheus.monitoring.svc, port 9090]
    #[arg(long, value_name = "URL")]
    pub prometheus: Option<String>,
    /// PromQL query; its result is divided by the value [default: utilization of the pods' GPUs]
    #[arg(long, value_name = "PROMQL")]
    pub query: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub scaled: ScaleTarget,
}

impl ScaleTarget {
    fn target(&self) -> Result<String, BuildError> {
        match &self.target {
            None => refuse("target", "the deployment to scale is required"),
            target => names::name("target", target.as_deref()),
        }
    }

    fn metadata(&self) -> Result<ObjectMeta, BuildError> {
        let name = self.name.clone().map_or_else(|| self.target(), Ok)?;
        Ok(ObjectMeta {
            name: Some(names::name("name", Some(&name))?),
            namespace: namespace(self.namespace.as_deref())?,
            ..ObjectMeta::default()
        })
    }

    fn range(&self, least: u32) -> Result<(u32, u32), BuildError> {
        let min = self.min.unwrap_or(least);
        let max = self.max.unwrap_or(MOST.max(min));
        if !(1..=10_000).contains(&max) {
            return refuse("max", "must be 1 to 10000");
        }
        if min > max {
            return refuse("min", format!("{min} is more than the maximum, {max}"));
        }
        Ok((min, max))
    }

    /// Note about the default target, a utilization, applied to another metric.
    fn goal_note(&self, counted: &str) -> Option<String> {
        let none = self.value.is_none();
        none.then(|| format!("a pod is added for each {GOAL} of {counted}; change it with --value"))
    }

    /// Target value, as text and as an amount.
    fn value(&self) -> Result<(&str, Amount), BuildError> {
        let text = self.value.as_deref().unwrap_or(GOAL);
        match quantity::parse(text) {
            Some(amount) if amount > Amount::default() => Ok((text, amount)),
            _ => refuse("value", format!("`{}` is not a quantity above zero", short(text))),
        }
    }

    fn delay(&self) -> Result<u32, BuildError> {
        let delay =
            values::seconds("scale-down-delay", self.scale_down_delay.as_deref().unwrap_or("5m"))?;
        if delay > 3600 {
            return refuse("scale-down-delay", "must be at most 1h");
        }
        Ok(delay)
    }

    fn behavior(&self) -> Result<HorizontalPodAutoscalerBehavior, BuildError> {
        let scale_down = HPAScalingRules {
            stabilization_window_seconds: Some(self.delay()? as i32),
            ..HPAScalingRules::default()
        };
        Ok(HorizontalPodAutoscalerBehavior { scale_down: Some(scale_down), scale_up: None })
    }
}

impl Hpa {
    pub fn object(&self) -> Result<HorizontalPodAutoscaler, BuildError> {
        let (min, max) = self.scaled.range(1)?;
        if min == 0 {
            return refuse(
                "min",
                "a HorizontalPodAutoscaler keeps one pod: use `generate keda` to scale to zero",
            );
        }
        let scale_target_ref = CrossVersionObjectReference {
            api_version: Some("apps/v1".to_owned()),
            kind: "Deployment".to_owned(),
            name: self.scaled.target()?,
        };
        let spec = HorizontalPodAutoscalerSpec {
            behavior: Some(self.scaled.behavior()?),
            max_replicas: max as i32,
            metrics: Some(vec![self.metric()?]),
            min_replicas: Some(min as i32),
            scale_target_ref,
        };
        Ok(HorizontalPodAutoscaler {
            metadata: self.scaled.metadata()?,
            spec: Some(spec),
            status: None,
        })
    }

    pub fn make(&self) -> Result<BuildOutput, BuildError> {
        let own =
            self.metric.as_deref().filter(|metric| *metric != METRIC && *metric != OWN_METRIC);
        let notes = [Some(self.source()), own.and_then(|_| self.scaled.goal_note("the metric"))];
        BuildOutput::of(&self.object()?, notes.into_iter().flatten().collect())
    }

    /// Note about the adapter that must serve the metric.
    fn source(&self) -> String {
        let api = if self.external { "external.metrics.k8s.io" } else { "custom.metrics.k8s.io" };
        match &self.metric {
            Some(metric) if metric != OWN_METRIC => {
                format!("the metric must be served under {api}, for example by prometheus-adapter")
            }
            _ => "the scheduler serves the metric after `kubectl apply -f deploy/autoscaling`; with another \
                  adapter, name its metric with --metric"
                .to_owned(),
        }
    }

    fn metric(&self) -> Result<MetricSpec, BuildError> {
        let labels = some(values::labels("metric-label", &self.metric_label)?);
        let selector = labels
            .map(|labels| LabelSelector { match_labels: Some(labels), match_expressions: None });
        if selector.is_some() && !self.external {
            return refuse("metric-label", "requires --external");
        }
        if let Some(queue) = &self.queue {
            return self.queue_metric(queue);
        }
        let name = self.metric_name()?;
        let (metric, target) = (MetricIdentifier { name, selector }, self.metric_target()?);
        Ok(if self.external {
            let external = Some(ExternalMetricSource { metric, target });
            MetricSpec { type_: "External".to_owned(), external, ..MetricSpec::default() }
        } else {
            let pods = Some(PodsMetricSource { metric, target });
            MetricSpec { type_: "Pods".to_owned(), pods, ..MetricSpec::default() }
        })
    }

    fn metric_name(&self) -> Result<String, BuildError> {
        let name = match &self.metric {
            Some(name) => name.as_str(),
            None if self.external => return refuse("metric", "required with --external"),
            None => OWN_METRIC,
        };
        let bad = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == '%';
        if name.is_empty() || name.len() > 253 || name.contains(bad) {
            return refuse("metric", format!("`{}` is not a metric name", short(name)));
        }
        Ok(name.to_owned())
    }

    /// The default value is a utilization, so that a queue needs its own.
    fn queue_metric(&self, queue: &str) -> Result<MetricSpec, BuildError> {
        if self.metric.is_some() || self.external {
            return refuse("queue", "cannot be used with --metric or --external");
        }
        if self.scaled.value.is_none() {
            return refuse("value", "required with --queue: pending workloads for each pod");
        }
        let described_object = CrossVersionObjectReference {
            api_version: Some("agentaflow.io/v1".to_owned()),
            kind: "GPUQueue".to_owned(),
            name: names::name("queue", Some(queue))?,
        };
        let metric = MetricIdentifier { name: QUEUE_METRIC.to_owned(), selector: None };
        let target = self.metric_target()?;
        let object = Some(ObjectMetricSource { described_object, metric, target });
        Ok(MetricSpec { type_: "Object".to_owned(), object, ..MetricSpec::default() })
    }

    fn metric_target(&self) -> Result<MetricTarget, BuildError> {
        Ok(MetricTarget {
            type_: "AverageValue".to_owned(),
            average_value: Some(Quantity(self.scaled.value()?.0.to_owned())),
            ..MetricTarget::default()
        })
    }
}

/// KEDA's `ScaledObject`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ScaledObject {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: ScaledObjectSpec,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ScaledObjectSpec {
    scale_target_ref: BTreeMap<&'static str, String>,
    min_replica_count: u32,
    max_replica_count: u32,
    cooldown_period: u32,
    advanced: Advanced,
    triggers: Vec<Trigger>,
}

/// Settings that KEDA passes to its HPA.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Advanced {
    horizontal_pod_autoscaler_config: AutoscalerConfig,
}

#[derive(Clone, Debug, Serialize)]
struct AutoscalerConfig {
    behavior: HorizontalPodAutoscalerBehavior,
}

#[derive(Clone, Debug, Serialize)]
struct Trigger {
    r#type: &'static str,
    metadata: BTreeMap<&'static str, String>,
}

impl Keda {
    pub fn make(&self) -> Result<BuildOutput, BuildError> {
        let (min, max) = self.scaled.range(u32::from(self.query.is_none()))?;
        let target = self.scaled.target()?;
        let (query, server) = (self.query(min, &target)?, self.server()?);
        let metadata = BTreeMap::from([
            ("serverAddress", server),
            ("query", query),
            // KEDA reads a plain number there, not an amount such as 500m.
            ("threshold", self.scaled.value()?.1.to_decimal()),
        ]);
        let spec = ScaledObjectSpec {
            scale_target_ref: BTreeMap::from([("name", target)]),
            min_replica_count: min,
            max_replica_count: max,
            // Applies to the last pod only; `behavior` applies to the pods before.
            cooldown_period: self.scaled.delay()?,
            advanced: Advanced {
                horizontal_pod_autoscaler_config: AutoscalerConfig {
                    behavior: self.scaled.behavior()?,
                },
            },
            triggers: vec![Trigger { r#type: "prometheus", metadata }],
        };
        let (api_version, kind) = ("keda.sh/v1alpha1", "ScaledObject");
        let object = ScaledObject { api_version, kind, metadata: self.scaled.metadata()?, spec };
        let mut notes = vec!["KEDA must be installed".to_owned()];
        notes.extend(self.query.as_ref().and_then(|_| self.scaled.goal_note("the query's result")));
        if min == 0 {
            notes.push(
                "after scaling to zero, the first request waits for a node and for the model"
                    .to_owned(),
            );
        }
        BuildOutput::of(&object, notes)
    }

    /// Rejects a minimum of 0 with the default query: without pods there is no utilization.
    fn query(&self, min: u32, target: &str) -> Result<String, BuildError> {
        match &self.query {
            None if min == 0 => refuse(
                "query",
                "with --min 0 the query must count pending requests: without a pod there is no GPU metric",
            ),
            None => Ok(format!("sum({METRIC}{{pod=~\"{target}-.*\"}})")),
            Some(query) if query.trim().is_empty() || query.contains('\0') => {
                refuse("query", "must not be empty")
            }
            Some(query) => Ok(query.clone()),
        }
    }

    fn server(&self) -> Result<String, BuildError> {
        let server = self.prometheus.as_deref().unwrap_or("http://prometheus.monitoring.svc:9090");
        let host = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"));
        let is_url =
            host.is_some_and(|host| host.starts_with(|c: char| c.is_alphanumeric() || c == '['));
        if !is_url || server.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return refuse(
                "prometheus",
                "use a form such as http://prometheus.monitoring.svc:9090",
            );
        }
        Ok(server.to_owned())
    }
}

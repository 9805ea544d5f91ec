//! Scheduled node pools: a pair of cron jobs that grow and shrink a pool of GPU nodes.
//!
//! `kubectl` cannot scale nodes: the cron jobs run the command line of the cloud, or patch the limit of Karpenter's
//! pool.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::{
    Container, PodSpec, PodTemplateSpec, ResourceRequirements, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::image::image;
use super::names::{self, is_label_value, short};
use super::nodepool::limit_too_small;
use super::zone::zone;
use super::{BuildError, BuildOutput, NodePool, refuse, values};
use crate::catalogue::Catalogue;
use crate::cloud::{Cloud, GPU_RESOURCE};

/// Longest name: cron jobs get the suffix `-down`, and their jobs eleven more characters.
const LONGEST_NAME: usize = 63 - 11 - 5;

/// Default nodes, or GPUs, of the grown pool.
const USUAL: u32 = 5;

/// `generate scaler`: GPU nodes for the working day, and fewer or none at night.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scaler {
    /// Provider of the nodes: eks, gke, aks or karpenter
    #[arg(long, value_enum, value_name = "CLOUD")]
    pub cloud: Option<Cloud>,
    /// Name of the cluster; karpenter needs none
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Pool or group of nodes [default: gpu-pool; for aks gpupool]
    #[arg(long, value_name = "NAME")]
    pub node_pool: Option<String>,
    /// Region or zone of the cluster, for eks and gke
    #[arg(long, value_name = "NAME")]
    pub location: Option<String>,
    /// Resource group of the cluster, for aks
    #[arg(long, value_name = "NAME")]
    pub resource_group: Option<String>,
    /// Schedule to grow [default: "0 9 * * 1-5"]
    #[arg(long, value_name = "SCHEDULE")]
    pub up: Option<String>,
    /// Schedule to shrink [default: "0 19 * * 1-5"]
    #[arg(long, value_name = "SCHEDULE")]
    pub down: Option<String>,
    /// Model of the pool's GPUs, as for generate nodepool; for karpenter
    #[arg(long, value_name = "MODEL")]
    pub gpu: Option<String>,
    /// Machine of the pool, for karpenter; may be given several times
    #[arg(long, value_name = "TYPE")]
    pub instance_type: Vec<String>,
    /// Nodes while it is grown [default: 5]; for karpenter, GPUs [default: 5, or whole machines of --gpu]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub nodes: Option<u32>,
    /// Nodes while it is shrunk; for karpenter, GPUs [default: 0]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub down_to: Option<u32>,
    /// Time zone of the schedules, such as Europe/Berlin [default: that of the control plane, mostly UTC]
    #[arg(long, value_name = "ZONE")]
    pub time_zone: Option<String>,
    /// Name of the objects [default: scale-gpu-nodes]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace of the objects [default: kube-system]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Image with the command line of the cloud
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Service account that may scale; created if absent
    #[arg(long, value_name = "NAME")]
    pub service_account: Option<String>,
}

impl Scaler {
    /// Cron jobs that grow and shrink the pool.
    pub fn objects(&self, catalogue: &Catalogue) -> Result<[CronJob; 2], BuildError> {
        let (up, down) = self.counts(catalogue)?;
        let name = self.name()?;
        let at_up = values::schedule("up", self.up.as_deref().unwrap_or("0 9 * * 1-5"))?;
        let at_down = values::schedule("down", self.down.as_deref().unwrap_or("0 19 * * 1-5"))?;
        if at_up == at_down {
            return refuse("down", "both schedules are the same");
        }
        Ok([
            self.cron_job(name.clone(), at_up, self.command(up, up)?)?,
            self.cron_job(format!("{name}-down"), at_down, self.command(down, up)?)?,
        ])
    }

    /// Cron jobs, service account and notes.
    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        let [up, down] = self.objects(catalogue)?;
        let mut made = BuildOutput::default();
        if self.service_account.is_none() {
            let metadata = self.metadata(self.name()?)?;
            made.push(&ServiceAccount { metadata, ..ServiceAccount::default() })?;
        }
        if self.cloud()? == Cloud::Karpenter && self.service_account.is_none() {
            let (role, binding) = self.role()?;
            made.push(&role)?;
            made.push(&binding)?;
        }
        made.push(&up)?;
        made.push(&down)?;
        made.notes = self.notes(catalogue)?;
        Ok(made)
    }

    /// Counts of the grown and the shrunk pool.
    fn counts(&self, catalogue: &Catalogue) -> Result<(u32, u32), BuildError> {
        let machine = match self.karpenter_pool(catalogue)? {
            Some(pool) => pool.smallest(catalogue)?,
            None => None,
        };
        let each = machine.map_or(1, |machine| machine.gpus);
        // Karpenter adds whole machines only, below the limit or at it.
        let up = self.nodes.unwrap_or(USUAL.next_multiple_of(each));
        let down = self.down_to.unwrap_or(0);
        match (up, down) {
            (0 | 10_001.., _) => refuse("nodes", "must be 1 to 10000"),
            _ if up < each => refuse("nodes", limit_too_small(up, machine)),
            _ if down >= up => {
                refuse("down-to", format!("{down} is not less than the {up} of --nodes"))
            }
            _ if (1..each).contains(&down) => {
                refuse("down-to", format!("{}: use 0 for none", limit_too_small(down, machine)))
            }
            counts => Ok(counts),
        }
    }

    /// Karpenter's pool, if its machines are given; other clouds count nodes.
    fn karpenter_pool(&self, catalogue: &Catalogue) -> Result<Option<NodePool>, BuildError> {
        if self.gpu.is_none() && self.instance_type.is_empty() {
            return Ok(None);
        }
        if self.cloud()? != Cloud::Karpenter {
            let flag = if self.gpu.is_some() { "gpu" } else { "instance-type" };
            return refuse(flag, "only for karpenter: on this cloud --nodes counts nodes");
        }
        // Karpenter runs on two clouds; the machine types determine which.
        let mut known = self.instance_type.iter().filter_map(|name| catalogue.named(name, None));
        let azure = known.next().is_some_and(|machine| machine.cloud == Cloud::Aks);
        Ok(Some(NodePool {
            cloud: azure.then_some(Cloud::Aks),
            gpu: self.gpu.clone(),
            instance_type: self.instance_type.clone(),
            ..NodePool::default()
        }))
    }

    fn cloud(&self) -> Result<Cloud, BuildError> {
        match self.cloud {
            Some(cloud @ (Cloud::Eks | Cloud::Gke | Cloud::Aks | Cloud::Karpenter)) => Ok(cloud),
            _ => refuse("cloud", "required: eks, gke, aks or karpenter"),
        }
    }

    fn name(&self) -> Result<String, BuildError> {
        let name = self.name.as_deref().unwrap_or("scale-gpu-nodes");
        names::name_within("name", Some(name), LONGEST_NAME)
    }

    fn metadata(&self, name: String) -> Result<ObjectMeta, BuildError> {
        let namespace = self.namespace.as_deref().unwrap_or("kube-system");
        let namespace = Some(names::name("namespace", Some(namespace))?);
        Ok(ObjectMeta { name: Some(name), namespace, ..ObjectMeta::default() })
    }

    fn account(&self) -> Result<String, BuildError> {
        match &self.service_account {
            Some(account) => names::name("service-account", Some(account)),
            None => self.name(),
        }
    }

    fn cron_job(
        &self,
        name: String,
        schedule: String,
        command: Vec<String>,
    ) -> Result<CronJob, BuildError> {
        let time_zone =
            self.time_zone.as_deref().map(|text| zone("time-zone", text)).transpose()?;
        let template = self.template(command)?;
        let job = JobSpec {
            active_deadline_seconds: Some(600),
            backoff_limit: Some(3),
            template,
            ttl_seconds_after_finished: Some(3600),
            ..JobSpec::default()
        };
        let spec = CronJobSpec {
            concurrency_policy: Some("Forbid".to_owned()),
            job_template: JobTemplateSpec { metadata: None, spec: Some(job) },
            schedule,
            // Scales even if the control plane was down at the scheduled time.
            starting_deadline_seconds: Some(3600),
            time_zone,
            ..CronJobSpec::default()
        };
        Ok(CronJob { metadata: self.metadata(name)?, spec: Some(spec), status: None })
    }

    fn template(&self, command: Vec<String>) -> Result<PodTemplateSpec, BuildError> {
        let cloud = self.cloud()?;
        let image = image("image", self.image.as_deref().unwrap_or_else(|| tool(cloud)))?;
        let amounts = |amounts: &[(&str, &str)]| {
            let amount = |(name, text): &(&str, &str)| ((*name).into(), Quantity((*text).into()));
            Some(amounts.iter().map(amount).collect::<BTreeMap<_, _>>())
        };
        let container = Container {
            name: "scaler".to_owned(),
            image: Some(image),
            command: Some(command),
            resources: Some(ResourceRequirements {
                limits: amounts(&[("memory", "1Gi")]),
                requests: amounts(&[("cpu", "100m"), ("memory", "256Mi")]),
                claims: None,
            }),
            ..Container::default()
        };
        let spec = PodSpec {
            containers: vec![container],
            restart_policy: Some("OnFailure".to_owned()),
            service_account_name: Some(self.account()?),
            ..PodSpec::default()
        };
        // Azure assigns identities to pods with this label.
        let labels = (cloud == Cloud::Aks).then(|| {
            BTreeMap::from([("azure.workload.identity/use".to_owned(), "true".to_owned())])
        });
        let metadata =
            labels.map(|labels| ObjectMeta { labels: Some(labels), ..ObjectMeta::default() });
        Ok(PodTemplateSpec { metadata, spec: Some(spec) })
    }

    /// Command that sets the node count; `most` is the larger count.
    fn command(&self, nodes: u32, most: u32) -> Result<Vec<String>, BuildError> {
        let pool = self.pool()?;
        let cluster = || word("cluster", self.cluster.as_deref());
        let location = || word("location", self.location.as_deref());
        let count = nodes.to_string();
        Ok(match self.cloud()? {
            Cloud::Karpenter => {
                let limit = BTreeMap::from([(GPU_RESOURCE, count)]);
                let patch = serde_json::json!({"spec": {"limits": limit}}).to_string();
                words("kubectl patch nodepool", &[pool, "--type=merge", "--patch", &patch])
            }
            Cloud::Gke => words(
                "gcloud container clusters resize",
                &[
                    &[cluster()?, "--node-pool", pool, "--num-nodes", &count][..],
                    &["--location", location()?, "--quiet"],
                ]
                .concat(),
            ),
            Cloud::Aks => {
                let group = word("resource-group", self.resource_group.as_deref())?;
                let place = ["--resource-group", group, "--cluster-name", cluster()?];
                let what = ["--name", pool, "--node-count", &count];
                words("sh -c", &[&[AZURE, "scale"][..], &place, &what].concat())
            }
            _ => {
                let scaling = format!("minSize={nodes},maxSize={most},desiredSize={nodes}");
                let place = ["--cluster-name", cluster()?, "--region", location()?];
                let what = ["--nodegroup-name", pool, "--scaling-config", &scaling];
                words("aws eks update-nodegroup-config", &[place, what].concat())
            }
        })
    }

    fn pool(&self) -> Result<&str, BuildError> {
        let azure = self.cloud()? == Cloud::Aks;
        let default = if azure { "gpupool" } else { "gpu-pool" };
        let pool = word("node-pool", self.node_pool.as_deref().or(Some(default)))?;
        if azure { names::azure_pool("node-pool", pool) } else { Ok(pool) }
    }

    /// May change this one pool and nothing else.
    fn role(&self) -> Result<(ClusterRole, ClusterRoleBinding), BuildError> {
        let (name, account) = (self.name()?, self.metadata(self.account()?)?);
        let pool = self.pool()?;
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let text = |text: &str| Some(vec![text.to_owned()]);
        let may = PolicyRule {
            api_groups: text("karpenter.sh"),
            resources: text("nodepools"),
            resource_names: text(pool),
            verbs: vec!["get".to_owned(), "patch".to_owned()],
            non_resource_urls: None,
        };
        let role = ClusterRole {
            metadata: metadata.clone(),
            rules: Some(vec![may]),
            aggregation_rule: None,
        };
        let subject = Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.name.unwrap_or_default(),
            namespace: account.namespace,
            api_group: None,
        };
        let role_ref = RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name,
        };
        Ok((role, ClusterRoleBinding { metadata, role_ref, subjects: Some(vec![subject]) }))
    }

    fn notes(&self, catalogue: &Catalogue) -> Result<Vec<String>, BuildError> {
        let account = self.account()?;
        let may = |what: &str| {
            format!("give the service account `{account}` an identity with permission to {what}")
        };
        let mut notes = vec![match self.cloud()? {
            Cloud::Karpenter => {
                "a lower limit stops new nodes; existing nodes are removed when empty, if the pool consolidates"
                    .to_owned()
            }
            Cloud::Gke => may("`container.clusters.update` (workload identity)"),
            Cloud::Aks => may("scale the pool, and annotate it for workload identity"),
            _ => may("`eks:UpdateNodegroupConfig` (IAM role or pod identity)"),
        }];
        match self.karpenter_pool(catalogue)? {
            Some(pool) => {
                notes.extend(pool.machine_notes(catalogue)?);
                let counts = [("--nodes", self.nodes), ("--down-to", self.down_to)];
                notes.extend(pool.count_notes(&counts, catalogue)?);
            }
            None if self.cloud()? == Cloud::Karpenter => notes.push(
                "--nodes counts GPUs here: below the GPUs of the pool's smallest machine no node is added; --gpu or \
                 --instance-type checks the value"
                    .to_owned(),
            ),
            None => {}
        }
        notes.extend(node_count_notes(self.cloud()?, self.location.as_deref()));
        if self.time_zone.is_none() {
            notes.push("the schedules use the time zone of the control plane, usually UTC; change it with \
                        --time-zone".to_owned());
        }
        Ok(notes)
    }
}

/// Notes about unexpected behaviour of a cloud's node counts.
fn node_count_notes(cloud: Cloud, location: Option<&str>) -> Vec<String> {
    // `us-central1-a` is a zone of the region `us-central1`.
    let zone = location.is_some_and(|location| location.matches('-').count() > 1);
    let each_zone = "in a region --nodes counts per zone of the pool: three zones have three times as many nodes";
    let autoscaled = "the cluster autoscaler must not scale the same pool";
    match cloud {
        Cloud::Gke if !zone => {
            vec![each_zone.into(), format!("{autoscaled}: it would revert the change")]
        }
        Cloud::Gke => vec![format!("{autoscaled}: it would revert the change")],
        Cloud::Aks => vec![format!("{autoscaled}: `az` cannot scale such a pool")],
        _ => Vec::new(),
    }
}

/// Logs in with the token that workload identity mounts. Values are passed as arguments, not as shell text.
const AZURE: &str = "az login --service-principal --username \"$AZURE_CLIENT_ID\" --tenant \"$AZURE_TENANT_ID\" \
                     --federated-token \"$(cat \"$AZURE_FEDERATED_TOKEN_FILE\")\" --output none \
                     && exec az aks nodepool scale \"$@\"";

/// Image with the command line of a cloud.
fn tool(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::Karpenter => "registry.k8s.io/kubectl:v1.34.1",
        Cloud::Gke => "gcr.io/google.com/cloudsdktool/google-cloud-cli:540.0.0-slim",
        Cloud::Aks => "mcr.microsoft.com/azure-cli:2.77.0",
        _ => "public.ecr.aws/aws-cli/aws-cli:2.31.0",
    }
}

/// Command split at spaces, then its arguments.
fn words(command: &str, arguments: &[&str]) -> Vec<String> {
    command.split(' ').chain(arguments.iter().copied()).map(str::to_owned).collect()
}

/// Cloud resource name that no command line can mistake for an option.
fn word<'a>(flag: &'static str, text: Option<&'a str>) -> Result<&'a str, BuildError> {
    match text {
        None => refuse(flag, "required for this cloud"),
        Some(text) if !text.is_empty() && is_label_value(text) => Ok(text),
        Some(text) => refuse(flag, format!("`{}` is not a valid cloud resource name", short(text))),
    }
}

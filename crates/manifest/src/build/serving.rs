//! Servers: deployments that answer requests, with time to load a model.

use k8s_openapi::api::apps::v1::{
    Deployment as DeploymentObject, DeploymentSpec, DeploymentStrategy,
};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, HTTPGetAction, PersistentVolumeClaim, Probe, Service, ServicePort,
    ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};

use super::claim::{AccessMode, Claim};
use super::names::{self, short};
use super::placement::Placement;
use super::pod::{PodShape, Role, ShapedPod};
use super::values::{self, Mount, is_mount_path};
use super::{BuildError, BuildOutput, refuse};
use crate::catalogue::Catalogue;

/// Default port of servers.
const PORT: u16 = 8000;
const MOST_REPLICAS: u32 = 10_000;
/// Seconds between two startup probes.
const PERIOD: u32 = 10;

/// `generate deployment`: servers on GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Deployment {
    #[command(flatten)]
    #[serde(flatten)]
    pub serving: Serving,
    #[command(flatten)]
    #[serde(flatten)]
    pub pod: PodShape,
    #[command(flatten)]
    #[serde(flatten)]
    pub placement: Placement,
}

/// Service and probes of servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Serving")]
pub struct Serving {
    /// Replicas [default: 1]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub replicas: Option<u32>,
    /// Container port [default: 8000]
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    pub port: Option<u16>,
    /// Path of the health check, or none [default: /health]
    #[arg(long, value_name = "PATH")]
    pub health: Option<String>,
    /// Startup time limit, for loading the model [default: 10m; for a model server 20m]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub load_time: Option<String>,
    /// Delay before the first probe
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub startup_delay: Option<String>,
    /// Period of the liveness probe, or none [default: 30s]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub liveness: Option<String>,
    /// Also create a service for the pods
    #[arg(long)]
    pub service: bool,
}

/// `generate model-server`: servers on GPUs, with a claim for their models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModelServer {
    /// Name of the claim for models [default: NAME-models]
    #[arg(long, value_name = "NAME")]
    pub cache_claim: Option<String>,
    /// Mount path of the model cache [default: /root/.cache/huggingface]
    #[arg(long, value_name = "PATH")]
    pub cache_path: Option<String>,
    /// Size of the model cache [default: 100Gi]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub cache_size: Option<String>,
    /// Storage class of the claim [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    pub storage_class: Option<String>,
    /// Access mode of the claim [default: ReadWriteOnce for one replica, ReadWriteMany for more]
    #[arg(long, value_enum, value_name = "MODE")]
    pub access_mode: Option<AccessMode>,
    #[command(flatten)]
    #[serde(flatten)]
    pub serving: Serving,
    #[command(flatten)]
    #[serde(flatten)]
    pub pod: PodShape,
    #[command(flatten)]
    #[serde(flatten)]
    pub placement: Placement,
}

impl Deployment {
    pub fn object(&self, catalogue: &Catalogue) -> Result<DeploymentObject, BuildError> {
        self.serving.deployment(self.shaped(catalogue)?, self.pod.bare, "10m")
    }

    /// Deployment, service and notes.
    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        let shaped = self.shaped(catalogue)?;
        let notes = shaped.notes_for(self.serving.replicas()?);
        let deployment = self.serving.deployment(shaped, self.pod.bare, "10m")?;
        let mut made = BuildOutput::of(&deployment, notes)?;
        self.serving.add_service(&deployment, &mut made)?;
        Ok(made)
    }

    fn shaped(&self, catalogue: &Catalogue) -> Result<ShapedPod, BuildError> {
        shape(&self.pod, &self.placement, "inference", catalogue)
    }
}

impl ModelServer {
    pub fn objects(
        &self,
        catalogue: &Catalogue,
    ) -> Result<(DeploymentObject, PersistentVolumeClaim), BuildError> {
        Ok((self.deployment(self.shaped(catalogue)?)?, self.claim()?))
    }

    /// Deployment, claim, service and notes.
    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        let shaped = self.shaped(catalogue)?;
        let mut notes = shaped.notes_for(self.serving.replicas()?);
        let deployment = self.deployment(shaped)?;
        if self.serving.replicas()? > 1 && self.mode()? == AccessMode::ReadWriteOnce {
            let why = "all replicas must run on the node with the volume";
            notes.push(format!(
                "the claim is ReadWriteOnce: {why}; --access-mode ReadWriteMany allows several nodes"
            ));
        }
        let mut made = BuildOutput::of(&deployment, notes)?;
        made.push(&self.claim()?)?;
        self.serving.add_service(&deployment, &mut made)?;
        Ok(made)
    }

    /// Uses the `Recreate` strategy: a rolling update would wait for the volume and the GPU of the old pod.
    fn deployment(&self, shaped: ShapedPod) -> Result<DeploymentObject, BuildError> {
        let mut deployment = self.serving.deployment(shaped, self.pod.bare, "20m")?;
        if let (Some(spec), false, false) =
            (&mut deployment.spec, self.pod.bare, self.mode()?.many())
        {
            let recreate = Some("Recreate".to_owned());
            spec.strategy = Some(DeploymentStrategy { type_: recreate, rolling_update: None });
        }
        Ok(deployment)
    }

    fn shaped(&self, catalogue: &Catalogue) -> Result<ShapedPod, BuildError> {
        let path = self.cache_path.as_deref().unwrap_or("/root/.cache/huggingface");
        if !is_mount_path(path) {
            return refuse("cache-path", format!("`{}` is not an absolute path", short(path)));
        }
        let taken = [
            ("/dev/shm", true),
            ("/workspace", self.pod.workspace.is_some()),
            ("/models", self.pod.model_cache.is_some()),
        ];
        if taken.contains(&(path, true)) {
            return refuse("cache-path", format!("`{path}` is already mounted: use another"));
        }
        let mut pod = self.pod.clone();
        let (volume, claim, path) = ("models".to_owned(), self.claim_name()?, path.to_owned());
        pod.mount.insert(0, Mount { volume, claim, path });
        shape(&pod, &self.placement, "server", catalogue)
    }

    fn claim(&self) -> Result<PersistentVolumeClaim, BuildError> {
        let claim = Claim {
            name: Some(self.claim_name()?),
            namespace: self.pod.namespace.clone(),
            size: self.cache_size.clone(),
            storage_class: self.storage_class.clone(),
            access_mode: Some(self.mode()?),
        };
        claim.object().map_err(|error| match error {
            BuildError::Refused { flag: "size", reason } => {
                BuildError::Refused { flag: "cache-size", reason }
            }
            other => other,
        })
    }

    fn claim_name(&self) -> Result<String, BuildError> {
        if let Some(claim) = &self.cache_claim {
            return names::name("cache-claim", Some(claim));
        }
        Ok(names::name_within("name", self.pod.name.as_deref(), 56)? + "-models")
    }

    fn mode(&self) -> Result<AccessMode, BuildError> {
        let many = self.serving.replicas()? > 1;
        let default = if many { AccessMode::ReadWriteMany } else { AccessMode::ReadWriteOnce };
        Ok(self.access_mode.unwrap_or(default))
    }
}

impl Serving {
    fn replicas(&self) -> Result<u32, BuildError> {
        match self.replicas.unwrap_or(1) {
            replicas @ 0..=MOST_REPLICAS => Ok(replicas),
            _ => refuse("replicas", format!("must be 0 to {MOST_REPLICAS}")),
        }
    }

    fn port(&self) -> Result<i32, BuildError> {
        match self.port.unwrap_or(PORT) {
            0 => refuse("port", "must be 1 to 65535"),
            port => Ok(port.into()),
        }
    }

    fn deployment(
        &self,
        shaped: ShapedPod,
        bare: bool,
        load_time: &str,
    ) -> Result<DeploymentObject, BuildError> {
        let ShapedPod { metadata, mut template, .. } = shaped;
        for container in template.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
            self.listen(container, bare, load_time)?;
        }
        let selector =
            LabelSelector { match_labels: metadata.labels.clone(), match_expressions: None };
        let replicas = Some(self.replicas()? as i32);
        let spec = DeploymentSpec { replicas, selector, template, ..DeploymentSpec::default() };
        Ok(DeploymentObject { metadata, spec: Some(spec), status: None })
    }

    /// Adds the port and the probes.
    fn listen(
        &self,
        container: &mut Container,
        bare: bool,
        load_time: &str,
    ) -> Result<(), BuildError> {
        let port = self.port()?;
        container.ports =
            Some(vec![ContainerPort { container_port: port, ..ContainerPort::default() }]);
        let path = match self.health.as_deref().unwrap_or("/health") {
            "none" => return Ok(()),
            path if path.starts_with('/') && !path.contains(char::is_whitespace) => path,
            path => {
                return refuse(
                    "health",
                    format!("`{}` is not a path: use a form such as /health", short(path)),
                );
            }
        };
        let action = HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(port),
            ..HTTPGetAction::default()
        };
        let probe = |period: u32| Probe {
            http_get: Some(action.clone()),
            period_seconds: Some(period as i32),
            ..Probe::default()
        };
        let load = values::seconds("load-time", self.load_time.as_deref().unwrap_or(load_time))?;
        let delay = self.startup_delay.as_deref();
        let delay = delay.map(|text| values::seconds("startup-delay", text)).transpose()?;
        container.startup_probe = Some(Probe {
            failure_threshold: Some(load.div_ceil(PERIOD) as i32),
            initial_delay_seconds: delay.map(|delay| delay as i32),
            ..probe(PERIOD)
        });
        let liveness = self.liveness.as_deref().or((!bare).then_some("30s"));
        if let Some(text) = liveness.filter(|text| *text != "none") {
            container.liveness_probe = Some(probe(values::seconds("liveness", text)?));
        }
        if !bare {
            container.readiness_probe = Some(probe(PERIOD));
        }
        Ok(())
    }

    fn add_service(
        &self,
        server: &DeploymentObject,
        made: &mut BuildOutput,
    ) -> Result<(), BuildError> {
        if !self.service {
            return Ok(());
        }
        let port = self.port()?;
        let ports = vec![ServicePort {
            port,
            target_port: Some(IntOrString::Int(port)),
            ..ServicePort::default()
        }];
        let spec = ServiceSpec {
            selector: server.metadata.labels.clone(),
            ports: Some(ports),
            ..ServiceSpec::default()
        };
        // A service name is a DNS label of RFC 1035, which cannot start with a digit.
        if server
            .metadata
            .name
            .as_deref()
            .is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        {
            return refuse("name", "must start with a letter if --service is set");
        }
        made.push(&Service { metadata: server.metadata.clone(), spec: Some(spec), status: None })
    }
}

fn shape(
    pod: &PodShape,
    placement: &Placement,
    container: &'static str,
    catalogue: &Catalogue,
) -> Result<ShapedPod, BuildError> {
    let role = Role { container, worker: false, restart: None, labelled: true };
    pod.shape(pod.name.as_deref(), placement, role, catalogue)
}

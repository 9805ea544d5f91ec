//! Short form of a job file, with the names of the command-line options.

use std::collections::BTreeMap;

use agentaflow_api::job::{JobCreate, JobSpec, Runtime};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::amount;
use crate::job_args::image_and_tag;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ShortJob {
    name: Option<String>,
    image: Option<String>,
    command: Option<CommandLine>,
    gpus: Option<u32>,
    gpu_memory: Option<Memory>,
    gpu_type: Option<String>,
    fraction: Option<Fraction>,
    mig: Option<String>,
    cpu: Option<CpuCores>,
    memory: Option<Memory>,
    shm: Option<Memory>,
    replicas: Option<u32>,
    env: BTreeMap<String, Scalar>,
    timeout: Option<Time>,
    estimated_duration: Option<Time>,
    priority: Option<i32>,
    queue: Option<String>,
    retries: Option<u32>,
    preemptible: bool,
    exclusive: Option<bool>,
    working_dir: Option<String>,
}

impl ShortJob {
    pub(super) fn job(self) -> JobCreate {
        let (docker_image, docker_tag) = match self.image.as_deref().map(image_and_tag) {
            Some((image, tag)) => (Some(image), tag),
            None => (None, None),
        };
        let spec = JobSpec {
            runtime: Some(if docker_image.is_some() { Runtime::Docker } else { Runtime::Process }),
            docker_image,
            docker_tag,
            job_name: self.name,
            command: self.command.map(CommandLine::list),
            gpu_count: self.gpus,
            gpu_memory_required: self.gpu_memory.map(|amount| amount.0),
            gpu_type: self.gpu_type,
            gpu_fraction: self.fraction.map(|fraction| fraction.0),
            mig_profile: self.mig,
            cpu_cores_required: self.cpu.map(|amount| amount.0),
            memory_required: self.memory.map(|amount| amount.0),
            shm_size: self.shm.map(|amount| amount.0),
            replicas: self.replicas,
            env: self.env.into_iter().map(|(key, value)| (key, value.text())).collect(),
            timeout_seconds: self.timeout.map(|time| time.0),
            estimated_duration_seconds: self.estimated_duration.map(|time| time.0),
            priority: self.priority,
            queue: self.queue,
            max_retries: self.retries,
            preemptible: self.preemptible,
            exclusive: self.exclusive,
            working_dir: self.working_dir,
            // The short form does not have these fields.
            job_type: None,
            docker_registry: None,
            docker_username: None,
            job_config: Map::new(),
            input_data: Value::Null,
            storage_required: None,
            endpoint_id: None,
            volumes: Vec::new(),
            on_node_lost: None,
            stop_grace_seconds: None,
            read_only: false,
        };
        JobCreate { spec, ..JobCreate::default() }
    }
}

/// A list of arguments, or a shell command.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "use a list of arguments, or one shell command")]
enum CommandLine {
    List(Vec<String>),
    Line(String),
}

impl CommandLine {
    fn list(self) -> Vec<String> {
        match self {
            Self::List(words) => words,
            Self::Line(line) => ["sh", "-c", &line].map(str::to_owned).to_vec(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "use a string, a number or true/false")]
enum Scalar {
    Text(String),
    Flag(bool),
    Number(serde_json::Number),
}

impl Scalar {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Flag(flag) => flag.to_string(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// A field parsed like the option of the same name.
macro_rules! parsed_as_option {
    ($name:ident, $of:ty, $read:expr) => {
        #[derive(Debug)]
        struct $name($of);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = Scalar::deserialize(from)?.text();
                $read(&text).map(Self).map_err(serde::de::Error::custom)
            }
        }
    };
}

parsed_as_option!(Memory, u64, amount::mib);
parsed_as_option!(Fraction, f64, amount::fraction);
parsed_as_option!(CpuCores, agentaflow_api::Cores, amount::cores);
parsed_as_option!(Time, u64, |text: &str| {
    amount::positive_duration(text).map(|time| time.as_secs_f64().ceil() as u64)
});

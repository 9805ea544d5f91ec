//! The short form of work: a few lines with the words of the command line's options.

use std::collections::BTreeMap;

use agentaflow_api::job::{JobCreate, JobSpec, Runtime};
use serde::Deserialize;

use crate::amount;
use crate::job_args::image_and_tag;

/// Work in a few lines, with the words of the command line's options.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ShortJob {
    name: Option<String>,
    image: Option<String>,
    command: Option<Words>,
    gpus: Option<u32>,
    gpu_memory: Option<Amount>,
    gpu_type: Option<String>,
    fraction: Option<Share>,
    mig: Option<String>,
    cpu: Option<CpuAmount>,
    memory: Option<Amount>,
    shm: Option<Amount>,
    replicas: Option<u32>,
    env: BTreeMap<String, Scalar>,
    timeout: Option<Time>,
    estimated_duration: Option<Time>,
    priority: Option<u32>,
    queue: Option<String>,
    retries: Option<u32>,
    preemptible: bool,
    exclusive: Option<bool>,
    working_dir: Option<String>,
}

impl ShortJob {
    /// The job that it stands for.
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
            command: self.command.map(Words::list),
            gpu_count: self.gpus,
            gpu_memory_required: self.gpu_memory.map(|amount| amount.0),
            gpu_type: self.gpu_type,
            gpu_fraction: self.fraction.map(|share| share.0),
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
            ..JobSpec::default()
        };
        JobCreate { spec, ..JobCreate::default() }
    }
}

/// A list of words, or one line for the shell.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "write it as a list of words, or as one line for the shell")]
enum Words {
    List(Vec<String>),
    Line(String),
}

impl Words {
    fn list(self) -> Vec<String> {
        match self {
            Self::List(words) => words,
            Self::Line(line) => ["sh", "-c", &line].map(str::to_owned).to_vec(),
        }
    }
}

/// A value that becomes text.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "write a text, a number or true/false")]
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

/// Reads a value through the function that reads the same option of the command line.
macro_rules! as_on_the_command_line {
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

as_on_the_command_line!(Amount, u64, amount::mib);
as_on_the_command_line!(Share, f64, amount::share);
as_on_the_command_line!(CpuAmount, agentaflow_api::Cores, amount::cores);
as_on_the_command_line!(Time, u64, |text: &str| {
    amount::some_duration(text).map(|time| time.as_secs_f64().ceil() as u64)
});

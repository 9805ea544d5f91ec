//! Jobs: work that ends.

use k8s_openapi::api::batch::v1::{Job as JobObject, JobSpec};
use serde::{Deserialize, Serialize};

use super::names::{job_name, short};
use super::placement::Placement;
use super::pod::{PodShape, Role, Shaped};
use super::values::{self, Pair};
use super::{BuildError, Made, refuse};
use crate::catalogue::Catalogue;

/// When nobody says how long a job may take, a job that hangs does not hold its GPUs for longer.
const TIMEOUT: &str = "24h";
/// Seconds for which a job that ended is kept when nobody says.
const TTL: &str = "1h";
/// How often a failed pod is tried again when nobody says.
const BACKOFF: u32 = 3;

/// `generate job`: a job on GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Job {
    /// Id of the task; the job is named after it, and TASK_ID tells the container
    #[arg(long, value_name = "ID")]
    #[serde(deserialize_with = "values::text")]
    pub task_id: Option<String>,
    /// How often a failed pod is tried again [default: 3]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub backoff_limit: Option<u32>,
    /// How long the job may take in all, such as 24h, or none [default: 24h]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub timeout: Option<String>,
    /// How long a job that ended is kept, or none [default: 1h]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub ttl: Option<String>,
    /// What becomes of a container that failed [default: OnFailure]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub restart_policy: Option<RestartPolicy>,
    /// What runs.
    #[command(flatten)]
    #[serde(flatten)]
    pub pod: PodShape,
    /// Where.
    #[command(flatten)]
    #[serde(flatten)]
    pub placement: Placement,
}

/// What becomes of a container of a job that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum RestartPolicy {
    /// It is started again in its pod
    #[default]
    #[value(name = "OnFailure", alias = "on-failure")]
    OnFailure,
    /// A new pod is made
    #[value(name = "Never", alias = "never")]
    Never,
}

/// What [`create_gpu_job`] takes, as callers of the documented function give it.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuJobAsk {
    /// Id of the task: the job is named after it.
    pub task_id: String,
    /// Container image.
    pub image: String,
    /// How many GPUs.
    pub gpu_count: u32,
    /// `v100`, `a100` or any other model.
    pub gpu_type: String,
    /// Limit of memory; the request is half. Without it the preset of the model.
    pub memory: Option<String>,
    /// Limit of CPU; the request is half. Without it the preset of the model.
    pub cpu: Option<String>,
    /// Command of the container.
    pub command: Vec<String>,
    /// Environment, beside `WORKER_TYPE`, `TASK_ID` and `CUDA_VISIBLE_DEVICES`.
    pub env: Vec<(String, String)>,
}

impl Default for GpuJobAsk {
    fn default() -> Self {
        Self {
            task_id: String::new(),
            image: String::new(),
            gpu_count: 1,
            gpu_type: "v100".to_owned(),
            memory: None,
            cpu: None,
            command: Vec::new(),
            env: Vec::new(),
        }
    }
}

/// What [`create_gpu_job`] answers.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuJob {
    /// The name under which the job is found.
    pub job_name: String,
    /// The job.
    pub job: JobObject,
}

/// The documented function: a job for one task on nodes labelled `accelerator` and tainted `nvidia.com/gpu=true`.
/// Three retries, kept for an hour after its end, no deadline of its own.
pub fn create_gpu_job(ask: &GpuJobAsk, catalogue: &Catalogue) -> Result<GpuJob, BuildError> {
    let recipe = Job {
        task_id: Some(ask.task_id.clone()),
        timeout: Some("none".to_owned()),
        pod: PodShape {
            image: Some(ask.image.clone()),
            gpus: Some(ask.gpu_count),
            memory: ask.memory.clone(),
            cpu: ask.cpu.clone(),
            command: ask.command.clone(),
            env: ask.env.iter().map(|(key, value)| Pair::new(key, value)).collect(),
            ..PodShape::default()
        },
        placement: Placement {
            gpu: Some(ask.gpu_type.clone()),
            taint: Some("true".to_owned()),
            ..Placement::default()
        },
        ..Job::default()
    };
    let job = recipe.object(catalogue)?;
    Ok(GpuJob { job_name: job.metadata.name.clone().unwrap_or_default(), job })
}

impl Job {
    /// The job.
    pub fn object(&self, catalogue: &Catalogue) -> Result<JobObject, BuildError> {
        self.object_of(self.shaped(catalogue)?)
    }

    /// The job, with notes.
    pub fn make(&self, catalogue: &Catalogue) -> Result<Made, BuildError> {
        let shaped = self.shaped(catalogue)?;
        let mut notes = shaped.notes_for(1);
        if self.timeout.is_none() && !self.pod.bare {
            notes.push(format!("the job is stopped after {TIMEOUT}: --timeout says otherwise"));
        }
        Made::of(&self.object_of(shaped)?, notes)
    }

    fn shaped(&self, catalogue: &Catalogue) -> Result<Shaped, BuildError> {
        let restart = match self.restart_policy.unwrap_or_default() {
            RestartPolicy::OnFailure => "OnFailure",
            RestartPolicy::Never => "Never",
        };
        let role =
            Role { container: "worker", worker: true, restart: Some(restart), labelled: false };
        let Some(task_id) = &self.task_id else {
            return self.pod.shape(self.pod.name.as_deref(), &self.placement, role, catalogue);
        };
        if task_id.contains('\0') {
            return refuse("task-id", format!("`{}` has a zero byte", short(task_id)));
        }
        let named = job_name(task_id)?;
        let mut pod = self.pod.clone();
        pod.env.insert(0, Pair::new("TASK_ID", task_id));
        let name = pod.name.clone().unwrap_or(named);
        pod.shape(Some(&name), &self.placement, role, catalogue)
    }

    fn object_of(&self, shaped: Shaped) -> Result<JobObject, BuildError> {
        let fill = |given: &Option<String>, default: &str| {
            given.clone().or_else(|| (!self.pod.bare).then(|| default.to_owned()))
        };
        let timeout = time("timeout", fill(&self.timeout, TIMEOUT))?;
        let ttl = time("ttl", fill(&self.ttl, TTL))?;
        let backoff = self.backoff_limit.or((!self.pod.bare).then_some(BACKOFF));
        if backoff.is_some_and(|backoff| backoff > 1000) {
            return refuse("backoff-limit", "it lies between 0 and 1000");
        }
        let spec = JobSpec {
            active_deadline_seconds: timeout.map(i64::from),
            backoff_limit: backoff.map(|backoff| backoff as i32),
            template: shaped.template,
            ttl_seconds_after_finished: ttl.map(|ttl| ttl as i32),
            ..JobSpec::default()
        };
        Ok(JobObject { metadata: shaped.metadata, spec: Some(spec), status: None })
    }
}

/// Seconds; none when that was said.
fn time(flag: &'static str, text: Option<String>) -> Result<Option<u32>, BuildError> {
    text.filter(|text| text != "none").map(|text| values::seconds(flag, &text)).transpose()
}

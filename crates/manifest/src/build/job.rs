//! Batch jobs.

use k8s_openapi::api::batch::v1::{Job as JobObject, JobSpec};
use serde::{Deserialize, Serialize};

use super::names::{job_name, short};
use super::placement::Placement;
use super::pod::{PodShape, Role, ShapedPod};
use super::values::{self, Pair};
use super::{BuildError, BuildOutput, refuse};
use crate::catalogue::Catalogue;

/// Default deadline: a hanging job releases its GPUs after this time.
const TIMEOUT: &str = "24h";
/// Default time to live of a finished job.
const TTL: &str = "1h";
/// Default number of retries.
const BACKOFF: u32 = 3;

/// `generate job`: a job on GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Job {
    /// Task id; names the job and sets TASK_ID in the container
    #[arg(long, value_name = "ID")]
    #[serde(deserialize_with = "values::text")]
    pub task_id: Option<String>,
    /// Retries of a failed pod [default: 3]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub backoff_limit: Option<u32>,
    /// Deadline of the job, such as 24h, or none [default: 24h]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub timeout: Option<String>,
    /// Time to keep the job after it finishes, or none [default: 1h]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub ttl: Option<String>,
    /// Restart policy of the container [default: OnFailure]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub restart_policy: Option<RestartPolicy>,
    #[command(flatten)]
    #[serde(flatten)]
    pub pod: PodShape,
    #[command(flatten)]
    #[serde(flatten)]
    pub placement: Placement,
}

/// Restart policy of a job's container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum RestartPolicy {
    /// Restart the container in its pod
    #[default]
    #[value(name = "OnFailure", alias = "on-failure")]
    OnFailure,
    /// Create a new pod
    #[value(name = "Never", alias = "never")]
    Never,
}

/// Arguments of [`create_gpu_job`].
#[derive(Clone, Debug, PartialEq)]
pub struct GpuJobRequest {
    /// Id of the task: the job is named after it.
    pub task_id: String,
    pub image: String,
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

impl Default for GpuJobRequest {
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

/// Result of [`create_gpu_job`].
#[derive(Clone, Debug, PartialEq)]
pub struct GpuJob {
    pub job_name: String,
    pub job: JobObject,
}

/// Builds a job for one task on nodes labelled `accelerator` and tainted `nvidia.com/gpu=true`: three retries, kept
/// for one hour after it finishes, no deadline. Signature and defaults follow the documented Python function of the
/// same name.
pub fn create_gpu_job(ask: &GpuJobRequest, catalogue: &Catalogue) -> Result<GpuJob, BuildError> {
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
    pub fn object(&self, catalogue: &Catalogue) -> Result<JobObject, BuildError> {
        self.object_of(self.shaped(catalogue)?)
    }

    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        let shaped = self.shaped(catalogue)?;
        let mut notes = shaped.notes_for(1);
        if self.timeout.is_none() && !self.pod.bare {
            notes.push(format!("the job has a deadline of {TIMEOUT}; change it with --timeout"));
        }
        BuildOutput::of(&self.object_of(shaped)?, notes)
    }

    fn shaped(&self, catalogue: &Catalogue) -> Result<ShapedPod, BuildError> {
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

    fn object_of(&self, shaped: ShapedPod) -> Result<JobObject, BuildError> {
        let fill = |given: &Option<String>, default: &str| {
            given.clone().or_else(|| (!self.pod.bare).then(|| default.to_owned()))
        };
        let timeout = time("timeout", fill(&self.timeout, TIMEOUT))?;
        let ttl = time("ttl", fill(&self.ttl, TTL))?;
        let backoff = self.backoff_limit.or((!self.pod.bare).then_some(BACKOFF));
        if backoff.is_some_and(|backoff| backoff > 1000) {
            return refuse("backoff-limit", "must be 0 to 1000");
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

/// Seconds; none for the text `none`.
fn time(flag: &'static str, text: Option<String>) -> Result<Option<u32>, BuildError> {
    text.filter(|text| text != "none").map(|text| values::seconds(flag, &text)).transpose()
}

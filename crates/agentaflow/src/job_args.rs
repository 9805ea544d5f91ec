//! Options that describe a job, shared by `run`, `submit` and `what-if`.

use std::collections::BTreeMap;
use std::time::Duration;

use agentaflow_api::job::{JobCreate, JobSpec, Runtime, Volume};
use agentaflow_api::{Cores, Secret};
use anyhow::Result;
use clap::ValueHint;
use clap_complete::engine::ArgValueCandidates;
use serde_json::{Map, Value};

use crate::amount;
use crate::backend::{Submission, SubmissionContent};
use crate::candidates;
use crate::failure::usage;
use crate::files;

#[derive(Debug, clap::Args)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct JobArgs {
    /// Container image, or job files (.yaml, .json, `-` for stdin); without either, COMMAND runs as a process
    #[arg(value_name = "IMAGE|FILE", value_hint = ValueHint::FilePath)]
    operands: Vec<String>,
    /// Command to run, after `--` [default: the command of the image]
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,

    /// Number of whole GPUs
    #[arg(long, value_name = "NUMBER", value_parser = amount::gpus, help_heading = "Resources")]
    gpus: Option<u32>,
    /// Memory on each GPU, in MiB or with a unit, such as 8G
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, help_heading = "Resources")]
    gpu_memory: Option<u64>,
    /// GPU model, such as A100
    #[arg(long, value_name = "MODEL", help_heading = "Resources")]
    gpu_type: Option<String>,
    /// Fraction of one GPU, such as 0.5
    #[arg(long, value_name = "FRACTION", value_parser = amount::fraction, help_heading = "Resources")]
    fraction: Option<f64>,
    /// MIG profile, such as 1g.5gb; --gpus sets the number of slices
    #[arg(long, value_name = "PROFILE", help_heading = "Resources")]
    mig: Option<String>,
    /// CPU cores, such as 4 or 0.5
    #[arg(long, value_name = "CORES", value_parser = amount::cores, help_heading = "Resources")]
    cpu: Option<Cores>,
    /// Memory, in MiB or with a unit, such as 8G
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, help_heading = "Resources")]
    memory: Option<u64>,
    /// Size of /dev/shm, in MiB or with a unit, such as 8G
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, help_heading = "Resources")]
    shm: Option<u64>,
    /// Number of tasks, started as a gang; each gets RANK and WORLD_SIZE
    #[arg(long, value_name = "NUMBER", value_parser = amount::positive::<u32>, help_heading = "Resources")]
    replicas: Option<u32>,

    /// Job file in YAML or JSON, `-` for stdin; repeatable
    #[arg(short, long = "file", value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Job files")]
    files: Vec<String>,
    /// Override a field of the file, such as spec.priority=9; repeatable
    #[arg(long, value_name = "FIELD=VALUE", value_parser = amount::pair, help_heading = "Job files")]
    set: Vec<(String, String)>,

    /// Job name
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    name: Option<String>,
    /// Environment variable; repeatable
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = amount::pair, help_heading = "Job")]
    env: Vec<(String, String)>,
    /// Secret environment variable, with the value from this environment; repeatable
    #[arg(long, value_name = "KEY", help_heading = "Job")]
    secret: Vec<String>,
    /// Mount a host path into the container; repeatable
    #[arg(short, long, value_name = "HOST:PATH[:ro]", value_parser = amount::volume, help_heading = "Job")]
    volume: Vec<Volume>,
    /// Working directory
    #[arg(short, long, value_name = "PATH", help_heading = "Job")]
    workdir: Option<String>,
    /// Expected run time; improves backfill and ETAs
    #[arg(long, value_name = "TIME", value_parser = amount::positive_duration, help_heading = "Job")]
    estimate: Option<Duration>,
    /// Allow preemption by higher-priority jobs; the job restarts later
    #[arg(long, help_heading = "Job")]
    preemptible: bool,
    /// Maximum run time, such as 90s or 1h30m
    #[arg(long, value_name = "TIME", value_parser = amount::positive_duration, help_heading = "Job")]
    timeout: Option<Duration>,
    /// Priority from 0 to 10, higher first [default: 5]
    #[arg(long, value_name = "NUMBER", value_parser = amount::priority::<i32>, help_heading = "Job")]
    priority: Option<i32>,
    /// Queue [default: your default queue]
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Job",
        add = ArgValueCandidates::new(candidates::queues)
    )]
    queue: Option<String>,
    /// Retry up to N times on failure
    #[arg(long, value_name = "N", value_parser = amount::whole::<u32>, help_heading = "Job")]
    retries: Option<u32>,
}

impl JobArgs {
    /// The jobs in the files, or the one job of the options.
    pub(crate) fn submissions(&self) -> Result<Vec<Submission>> {
        let image = self.image()?;
        let named = if image.is_some() { &[] } else { self.operands.as_slice() };
        let files: Vec<&str> = self.files.iter().chain(named).map(String::as_str).collect();
        if files.is_empty() {
            if !self.set.is_empty() {
                return Err(usage("--set overrides fields of a job file: add one with -f"));
            }
            let content = SubmissionContent::Job(Box::new(self.job(image)?));
            return Ok(vec![Submission { content, source: None }]);
        }
        if image.is_some() || !self.command.is_empty() {
            return Err(usage("a job file cannot be combined with IMAGE or COMMAND"));
        }
        if self.options() != JobSpec::default() || !self.secret.is_empty() {
            return Err(usage(
                "a job file cannot be combined with job options: use --set FIELD=VALUE",
            ));
        }
        let mut submissions = Vec::new();
        for file in files {
            submissions.extend(files::read(file, &self.set)?);
        }
        Ok(submissions)
    }

    /// The only job; an error if there are several.
    pub(crate) fn submission(&self) -> Result<Submission> {
        let mut all = self.submissions()?;
        match (all.pop(), all.is_empty()) {
            (Some(submission), true) => Ok(submission),
            _ => Err(usage("the file has several jobs: use `agentaflow submit`")),
        }
    }

    /// The image, unless the operands are files. An operand with a command is an image even if a file of that name
    /// exists, since a file cannot have a command.
    fn image(&self) -> Result<Option<&str>> {
        let has_command = !self.command.is_empty();
        let is_file = |word: &&String| {
            if has_command { files::looks_like_file(word) } else { files::is_file(word) }
        };
        match (self.operands.as_slice(), self.operands.iter().find(|word| !is_file(word))) {
            ([], _) | (_, None) => Ok(None),
            ([image], Some(_)) if has_command => Ok(Some(image)),
            ([image], Some(_)) => files::reject_directory(image).map(|()| Some(image.as_str())),
            ([first, ..], Some(word)) if is_file(&first) => {
                files::reject_directory(word)?;
                Err(usage(format!(
                    "`{word}` is not a job file: several operands must all be job files"
                )))
            }
            ([image, ..], _) => {
                files::reject_directory(image)?;
                Err(usage(format!(
                    "several images given: write the command for `{image}` after `--`"
                )))
            }
        }
    }

    fn job(&self, image: Option<&str>) -> Result<JobCreate> {
        if image.is_none() && self.command.is_empty() {
            return Err(usage("nothing to run: give an IMAGE, or a command after `--`"));
        }
        let (docker_image, docker_tag) = match image.map(image_and_tag) {
            Some((image, tag)) => (Some(image), tag),
            None => (None, None),
        };
        let spec = JobSpec {
            runtime: Some(if image.is_some() { Runtime::Docker } else { Runtime::Process }),
            docker_image,
            docker_tag,
            command: (!self.command.is_empty()).then(|| self.command.clone()),
            ..self.options()
        };
        Ok(JobCreate { spec, secret_env: self.secrets()?, ..JobCreate::default() })
    }

    /// Reads secrets from the environment, since every user of the machine can read a command line.
    fn secrets(&self) -> Result<BTreeMap<String, Secret>> {
        let secret = |name: &String| match std::env::var(name) {
            Ok(value) => Ok((name.clone(), Secret::from(value))),
            Err(_) => Err(usage(format!(
                "--secret {name}: the environment variable is not set or not UTF-8"
            ))),
        };
        self.secret.iter().map(secret).collect()
    }

    /// All fields except image and command.
    fn options(&self) -> JobSpec {
        JobSpec {
            gpu_count: self.gpus,
            gpu_memory_required: self.gpu_memory,
            gpu_type: self.gpu_type.clone(),
            gpu_fraction: self.fraction,
            mig_profile: self.mig.clone(),
            cpu_cores_required: self.cpu,
            memory_required: self.memory,
            shm_size: self.shm,
            replicas: self.replicas,
            job_name: self.name.clone(),
            env: self.env.iter().cloned().collect(),
            volumes: self.volume.clone(),
            working_dir: self.workdir.clone(),
            estimated_duration_seconds: self.estimate.map(seconds),
            preemptible: self.preemptible,
            timeout_seconds: self.timeout.map(seconds),
            priority: self.priority,
            queue: self.queue.clone(),
            max_retries: self.retries,
            // Set by `job`.
            runtime: None,
            docker_image: None,
            docker_tag: None,
            command: None,
            // These fields have no option.
            job_type: None,
            docker_registry: None,
            docker_username: None,
            job_config: Map::new(),
            input_data: Value::Null,
            storage_required: None,
            endpoint_id: None,
            exclusive: None,
            on_node_lost: None,
            stop_grace_seconds: None,
            read_only: false,
        }
    }
}

fn seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil() as u64
}

/// Splits an image into name and tag. A colon before the last slash is a registry port; a digest stays with the name.
pub(crate) fn image_and_tag(image: &str) -> (String, Option<String>) {
    let name = image.rfind('/').map_or(0, |slash| slash + 1);
    match image[name..].split_once(':') {
        Some((_, tag)) if !image.contains('@') && !tag.is_empty() => {
            (image[..image.len() - tag.len() - 1].to_owned(), Some(tag.to_owned()))
        }
        _ => (image.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_and_a_digest_are_not_a_tag() {
        let cases = [
            ("busybox", "busybox", None),
            ("busybox:1.36", "busybox", Some("1.36")),
            ("registry:5000/lab/train", "registry:5000/lab/train", None),
            ("registry:5000/lab/train:v2", "registry:5000/lab/train", Some("v2")),
            ("train@sha256:00ff", "train@sha256:00ff", None),
        ];
        for (written, image, tag) in cases {
            assert_eq!(
                image_and_tag(written),
                (image.to_owned(), tag.map(String::from)),
                "{written}"
            );
        }
    }
}

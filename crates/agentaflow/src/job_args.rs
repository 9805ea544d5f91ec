//! A job as the command line describes it, for `run`, `submit` and `what-if` alike.

use std::collections::BTreeMap;
use std::time::Duration;

use agentaflow_api::job::{JobCreate, JobSpec, Runtime, Volume};
use agentaflow_api::{Cores, Secret};
use anyhow::Result;
use clap::ValueHint;
use clap_complete::engine::ArgValueCandidates;

use crate::amount;
use crate::backend::{Said, Work};
use crate::candidates;
use crate::failure::usage;
use crate::files;

/// What to run, and what it needs.
#[derive(Debug, clap::Args)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct JobArgs {
    /// Image to run, or files with work (.yaml, .json, `-`); without either the command runs as a plain process
    #[arg(value_name = "IMAGE|FILE", value_hint = ValueHint::FilePath)]
    what: Vec<String>,
    /// What to run, after `--`; the image's own command when absent
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,

    /// Whole GPUs
    #[arg(long, value_name = "NUMBER", value_parser = amount::gpus, help_heading = "What it needs")]
    gpus: Option<u32>,
    /// Memory on each GPU, in MiB or like 8G
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, help_heading = "What it needs")]
    gpu_memory: Option<u64>,
    /// Only GPUs of this model, such as A100
    #[arg(long, value_name = "MODEL", help_heading = "What it needs")]
    gpu_type: Option<String>,
    /// A share of one GPU, such as 0.5
    #[arg(long, value_name = "SHARE", value_parser = amount::share, help_heading = "What it needs")]
    fraction: Option<f64>,
    /// MIG slices of this profile, such as 1g.5gb; --gpus says how many
    #[arg(long, value_name = "PROFILE", help_heading = "What it needs")]
    mig: Option<String>,
    /// CPU cores, such as 4 or 0.5
    #[arg(long, value_name = "CORES", value_parser = amount::cores, help_heading = "What it needs")]
    cpu: Option<Cores>,
    /// Memory, in MiB or like 8G
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, help_heading = "What it needs")]
    memory: Option<u64>,
    /// Room in /dev/shm, which data loaders use, in MiB or like 8G
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, help_heading = "What it needs")]
    shm: Option<u64>,
    /// Copies that start together; each knows its RANK and WORLD_SIZE
    #[arg(long, value_name = "NUMBER", value_parser = amount::some::<u32>, help_heading = "What it needs")]
    replicas: Option<u32>,

    /// Read the work from a file: YAML or JSON, `-` is stdin; may be given several times
    #[arg(short, long = "file", value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "From a file")]
    files: Vec<String>,
    /// Change a field of the file, such as spec.priority=9; may be given several times
    #[arg(long, value_name = "FIELD=VALUE", value_parser = amount::pair, help_heading = "From a file")]
    set: Vec<(String, String)>,

    /// Name for people
    #[arg(long, value_name = "NAME", help_heading = "How to treat it")]
    name: Option<String>,
    /// Environment variable; may be given several times
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = amount::pair, help_heading = "How to treat it")]
    env: Vec<(String, String)>,
    /// Environment variable that is secret, with the value it has here; may be given several times
    #[arg(long, value_name = "KEY", help_heading = "How to treat it")]
    secret: Vec<String>,
    /// Folder of the node, and where the container sees it; may be given several times
    #[arg(short, long, value_name = "FOLDER:PATH[:ro]", value_parser = amount::volume, help_heading = "How to treat it")]
    volume: Vec<Volume>,
    /// Folder in which it starts
    #[arg(short, long, value_name = "PATH", help_heading = "How to treat it")]
    workdir: Option<String>,
    /// How long it will probably run; makes places and times of others better
    #[arg(long, value_name = "TIME", value_parser = amount::some_duration, help_heading = "How to treat it")]
    estimate: Option<Duration>,
    /// It may be stopped for more important work, and starts again later
    #[arg(long, help_heading = "How to treat it")]
    preemptible: bool,
    /// Stop it after this time, such as 90s or 1h30m
    #[arg(long, value_name = "TIME", value_parser = amount::some_duration, help_heading = "How to treat it")]
    timeout: Option<Duration>,
    /// 0 to 10, higher first [default: 5]
    #[arg(long, value_name = "NUMBER", value_parser = amount::priority, help_heading = "How to treat it")]
    priority: Option<u32>,
    /// Queue that pays [default: yours]
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "How to treat it",
        add = ArgValueCandidates::new(candidates::queues)
    )]
    queue: Option<String>,
    /// Start it again so often after a failure
    #[arg(long, value_name = "NUMBER", value_parser = amount::whole::<u32>, help_heading = "How to treat it")]
    retries: Option<u32>,
}

impl JobArgs {
    /// All work that is meant: what the files say, or what the options describe.
    pub(crate) fn all(&self) -> Result<Vec<Work>> {
        let image = self.image()?;
        let named = if image.is_some() { &[] } else { self.what.as_slice() };
        let files: Vec<&str> = self.files.iter().chain(named).map(String::as_str).collect();
        if files.is_empty() {
            if !self.set.is_empty() {
                return Err(usage("--set changes a file: name one with -f"));
            }
            let said = Said::Job(Box::new(self.job(image)?));
            return Ok(vec![Work { said, written: None }]);
        }
        if image.is_some() || !self.command.is_empty() {
            return Err(usage("a file says what to run: leave out IMAGE and COMMAND, or the file"));
        }
        if self.options() != JobSpec::default() || !self.secret.is_empty() {
            return Err(usage(
                "a file says what it needs and how to treat it: change it with --set FIELD=VALUE",
            ));
        }
        let mut work = Vec::new();
        for file in files {
            work.extend(files::read(file, &self.set)?);
        }
        Ok(work)
    }

    /// The one piece of work that is meant.
    pub(crate) fn work(&self) -> Result<Work> {
        let mut all = self.all()?;
        match (all.pop(), all.is_empty()) {
            (Some(work), true) => Ok(work),
            _ => Err(usage(
                "there is more than one piece of work: hand them in with `agentaflow submit`",
            )),
        }
    }

    /// The image, where the words name one and not files. What comes with a command is one, even if there is a file of
    /// that name: only an image can be given a command.
    fn image(&self) -> Result<Option<&str>> {
        let commanded = !self.command.is_empty();
        let is_file = |word: &&String| {
            if commanded { files::is_called_file(word) } else { files::is_file(word) }
        };
        match (self.what.as_slice(), self.what.iter().find(|word| !is_file(word))) {
            ([], _) | (_, None) => Ok(None),
            ([image], Some(_)) if commanded => Ok(Some(image)),
            ([image], Some(_)) => files::not_a_folder(image).map(|()| Some(image.as_str())),
            ([first, ..], Some(word)) if is_file(&first) => {
                files::not_a_folder(word)?;
                Err(usage(format!(
                    "`{word}` is no file: several are named only if all are files with work"
                )))
            }
            ([image, ..], _) => {
                files::not_a_folder(image)?;
                Err(usage(format!(
                    "only one image can be named: what to run in `{image}` comes after `--`"
                )))
            }
        }
    }

    /// The job as the API takes it.
    fn job(&self, image: Option<&str>) -> Result<JobCreate> {
        if image.is_none() && self.command.is_empty() {
            return Err(usage("nothing to run: name an IMAGE, or a command after `--`"));
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

    /// Secrets come from our own environment: what stands on a command line, every user of the machine can read.
    fn secrets(&self) -> Result<BTreeMap<String, Secret>> {
        let secret = |name: &String| match std::env::var(name) {
            Ok(value) => Ok((name.clone(), Secret::from(value))),
            Err(_) => Err(usage(format!(
                "--secret {name}: there is no such variable here, or it is not text"
            ))),
        };
        self.secret.iter().map(secret).collect()
    }

    /// Everything but what to run.
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
            ..JobSpec::default()
        }
    }
}

fn seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil() as u64
}

/// An image without its tag, and the tag. A colon before the last slash belongs to a registry's port; a digest
/// stays with the image.
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
    fn a_tag_is_told_from_a_port_and_a_digest() {
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

//! Jobs: single fields, then combinations of fields.

use std::collections::BTreeMap;

use agentaflow_api::job::{JobCreate, JobSpec, Runtime, Volume};
use agentaflow_api::job_runtime::FieldNeed;

use super::{
    Checked, anything, at_most, few, lines, name, object, plain, plain_option, refuse, refuse_both,
};
use crate::api_error::ApiError;
use crate::http::limits;

/// Environment variables that the server sets.
const OWN: [&str; 4] = ["JOB_ID", "JOB_DATA", "JOB_DATA_FILE", "AGENTAFLOW_OUTPUT"];

pub fn check_job(job: &JobCreate) -> Checked {
    let spec = &job.spec;
    // Names every field, so that a new field does not compile before it has a check.
    let JobSpec {
        // Checked by `texts`.
        job_name: _,
        job_type: _,
        docker_username: _,
        gpu_type: _,
        queue: _,
        job_config: _,
        input_data: _,
        endpoint_id: _,
        // Checked by `amounts`.
        gpu_memory_required: _,
        cpu_cores_required: _,
        memory_required: _,
        storage_required: _,
        shm_size: _,
        timeout_seconds: _,
        estimated_duration_seconds: _,
        gpu_count: _,
        replicas: _,
        priority: _,
        max_retries: _,
        stop_grace_seconds: _,
        // Checked by `gpus`.
        gpu_fraction: _,
        mig_profile: _,
        exclusive: _,
        // Checked by `image`.
        docker_image: _,
        docker_tag: _,
        docker_registry: _,
        // Checked by `command`, `environment` and `volumes`.
        command: _,
        working_dir: _,
        env: _,
        volumes: _,
        // Every value of the type is valid.
        runtime: _,
        on_node_lost: _,
        preemptible: _,
        read_only: _,
    } = spec;
    texts(spec)?;
    amounts(spec)?;
    gpus(spec)?;
    image(spec)?;
    if let Some(password) = &job.docker_password {
        lines("docker_password", password.expose(), limits::TEXT)?;
        if spec.docker_username.is_none() {
            return refuse_both("docker_username", "is required by", "docker_password");
        }
    }
    command(spec)?;
    environment(job)?;
    volumes(&spec.volumes)?;
    together(job)
}

fn texts(spec: &JobSpec) -> Checked {
    plain_option("job_name", spec.job_name.as_ref(), limits::NAME)?;
    plain_option("job_type", spec.job_type.as_ref(), limits::NAME)?;
    plain_option("docker_username", spec.docker_username.as_ref(), limits::NAME)?;
    plain_option("gpu_type", spec.gpu_type.as_ref(), limits::NAME)?;
    if let Some(queue) = &spec.queue {
        name("queue", queue, limits::NAME)?;
    }
    if spec.gpu_type.as_ref().is_some_and(|model| model.trim().is_empty()) {
        return refuse("gpu_type", "is empty; omit it for any model");
    }
    object("job_config", &spec.job_config)?;
    anything("input_data", &spec.input_data)?;
    spec.endpoint_id.as_ref().map_or(Ok(()), |id| {
        if id.is_object() || id.is_array() {
            return refuse("endpoint_id", "must be a number or a name");
        }
        anything("endpoint_id", id)
    })
}

fn amounts(spec: &JobSpec) -> Checked {
    at_most("gpu_memory_required", spec.gpu_memory_required, limits::SIZE)?;
    at_most("memory_required", spec.memory_required, limits::SIZE)?;
    at_most("storage_required", spec.storage_required, limits::SIZE)?;
    at_most("shm_size", spec.shm_size, limits::SIZE)?;
    at_most("timeout_seconds", spec.timeout_seconds, limits::SECONDS)?;
    at_most("estimated_duration_seconds", spec.estimated_duration_seconds, limits::SECONDS)?;
    at_most("gpu_count", spec.gpu_count, limits::GPUS)?;
    at_most("replicas", spec.replicas, limits::REPLICAS)?;
    at_most("priority", spec.priority, 10)?;
    at_most("max_retries", spec.max_retries, limits::RETRIES)?;
    at_most("stop_grace_seconds", spec.stop_grace_seconds, limits::GRACE)?;
    if spec.cpu_cores_required.is_some_and(|cores| cores.0 > limits::CPU_MILLI) {
        return refuse("cpu_cores_required", "is more than any machine has");
    }
    if spec.replicas == Some(0) {
        return refuse("replicas", "must be 1 or more");
    }
    if spec.timeout_seconds == Some(0) {
        return refuse("timeout_seconds", "must be 1 or more; omit it for no limit");
    }
    Ok(())
}

fn gpus(spec: &JobSpec) -> Checked {
    if let Some(share) = spec.gpu_fraction {
        // The engine counts in thousandths of a device.
        if !(0.001..=0.999).contains(&share) {
            return refuse(
                "gpu_fraction",
                "must be at least 0.001 and below 1, like 0.25; request whole GPUs by their number",
            );
        }
        if spec.gpu_count.is_some_and(|count| count > 1) {
            return refuse_both(
                "gpu_fraction",
                "is a share of one GPU and requires 1 as",
                "gpu_count",
            );
        }
        if spec.mig_profile.is_some() {
            return refuse_both("gpu_fraction", "cannot be combined with", "mig_profile");
        }
        if spec.exclusive == Some(true) {
            return refuse_both("exclusive", "cannot be combined with", "gpu_fraction");
        }
    }
    if let Some(profile) = &spec.mig_profile {
        mig(profile)?;
    }
    let none = spec.gpu_count == Some(0);
    let wants = [
        ("gpu_memory_required", spec.gpu_memory_required.is_some_and(|mib| mib > 0)),
        ("gpu_fraction", spec.gpu_fraction.is_some()),
        ("mig_profile", spec.mig_profile.is_some()),
        ("exclusive", spec.exclusive == Some(true)),
    ];
    match wants.iter().find(|(_, wanted)| none && *wanted) {
        Some((field, _)) => refuse_both(field, "requires 1 or more as", "gpu_count"),
        None => Ok(()),
    }
}

/// Validates a MIG profile such as `1g.5gb` or `3g.20gb+me`: slices, memory, and attributes of the driver.
fn mig(profile: &str) -> Checked {
    let parts = profile.split_once("g.").and_then(|(slices, rest)| {
        let (memory, more) = rest.split_once("gb")?;
        let digits = |text: &str, most| {
            !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_digit())
        };
        let more = more.is_empty() || matches!(more, "+me" | "+gfx" | "+me.all" | "-me");
        (digits(slices, 1) && digits(memory, 4) && more).then_some(())
    });
    if parts.is_some() {
        return Ok(());
    }
    refuse("mig_profile", "must look like `1g.5gb` or `3g.40gb`")
}

fn image(spec: &JobSpec) -> Checked {
    if let Some(image) = &spec.docker_image {
        reference("docker_image", image, "/:@")?;
        let path = image.split('@').next().unwrap_or_default();
        if image.matches('@').count() > 1 || path.is_empty() || image.contains("//") {
            return refuse("docker_image", "is not an image name such as `pytorch/pytorch`");
        }
    }
    if let Some(tag) = &spec.docker_tag {
        name("docker_tag", tag, 128)?;
    }
    match &spec.docker_registry {
        Some(registry) if !registry.is_empty() => reference("docker_registry", registry, "/:"),
        _ => Ok(()),
    }
}

fn reference(field: &str, text: &str, marks: &str) -> Checked {
    plain(field, text, limits::IMAGE)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || marks.contains(c);
    let edges = |c: char| c.is_ascii_alphanumeric();
    let scheme = text.strip_prefix("https://").or(text.strip_prefix("http://"));
    let bare = if field == "docker_registry" { scheme.unwrap_or(text) } else { text };
    let bare = if field == "docker_registry" { bare.trim_end_matches('/') } else { bare };
    if bare.starts_with(edges) && bare.ends_with(edges) && bare.chars().all(fits) {
        return Ok(());
    }
    let example =
        if field == "docker_image" { "pytorch/pytorch" } else { "registry.example.com:5000" };
    refuse(field, format!("contains invalid characters; use a form such as `{example}`"))
}

fn command(spec: &JobSpec) -> Checked {
    if let Some(words) = &spec.command {
        few("command", words.len(), limits::WORDS)?;
        if words.first().is_none_or(String::is_empty) {
            return refuse("command", "is empty; omit it for the command of the image");
        }
        let long: usize = words.iter().map(String::len).sum();
        at_most("command", Some(long), limits::ENV_ALL)?;
        for (at, word) in words.iter().enumerate() {
            lines(&format!("command[{at}]"), word, limits::WORD)?;
        }
    }
    match &spec.working_dir {
        Some(folder) => absolute("working_dir", folder),
        None => Ok(()),
    }
}

fn environment(job: &JobCreate) -> Checked {
    let secret = job.secret_env.iter().map(|(name, value)| (name, value.expose()));
    let secret: BTreeMap<_, _> = secret.collect();
    let open: BTreeMap<_, _> =
        job.spec.env.iter().map(|(name, value)| (name, value.as_str())).collect();
    few("env", open.len() + secret.len(), limits::ENV)?;
    let mut all = 0;
    for (field, variables) in [("env", &open), ("secret_env", &secret)] {
        for (variable, value) in variables {
            variable_name(field, variable)?;
            lines(&format!("{field}.{variable}"), value, limits::ENV_VALUE)?;
            all += variable.len() + value.len();
        }
    }
    at_most("env", Some(all), limits::ENV_ALL)?;
    match secret.keys().find(|name| open.contains_key(*name)) {
        Some(both) => {
            refuse_both("secret_env", &format!("repeats the variable `{both}` of"), "env")
        }
        None => Ok(()),
    }
}

fn variable_name(field: &str, variable: &str) -> Checked {
    let begins = variable.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let fits = variable.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !begins || !fits || variable.len() > limits::NAME {
        return refuse(
            field,
            "has an invalid variable name: use letters, digits and `_`, and do not begin with a digit",
        );
    }
    if OWN.contains(&variable) {
        return refuse(field, format!("must not contain `{variable}`, which the server sets"));
    }
    Ok(())
}

fn volumes(volumes: &[Volume]) -> Checked {
    few("volumes", volumes.len(), limits::VOLUMES)?;
    for (at, volume) in volumes.iter().enumerate() {
        absolute(&format!("volumes[{at}].source"), &volume.source)?;
        absolute(&format!("volumes[{at}].target"), &volume.target)?;
        if volume.target.trim_matches('/').is_empty() {
            return refuse(
                &format!("volumes[{at}].target"),
                "must not be the root of the container",
            );
        }
        let again = volumes[..at].iter().any(|other| same_path(&other.target, &volume.target));
        if again {
            return refuse(&format!("volumes[{at}].target"), "is the target of an earlier volume");
        }
    }
    Ok(())
}

fn same_path(one: &str, other: &str) -> bool {
    let parts = |path: &'_ str| {
        path.split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    parts(one) == parts(other)
}

fn absolute(field: &str, path: &str) -> Checked {
    plain(field, path, limits::PLACE)?;
    if !path.starts_with('/') {
        return refuse(field, "must be an absolute path, like `/data`");
    }
    if path.split('/').any(|part| part == "..") {
        return refuse(field, "must not contain `..`");
    }
    // Docker's own syntax for mounts splits at colons.
    if path.contains(':') {
        return refuse(field, "must not contain `:`");
    }
    Ok(())
}

/// Rejects combinations of fields that contradict each other.
fn together(job: &JobCreate) -> Checked {
    let spec = &job.spec;
    if spec.effective_runtime() == Runtime::Docker {
        return match &spec.docker_image {
            Some(_) => Ok(()),
            None => refuse(
                "docker_image",
                "is missing: name an image such as `pytorch/pytorch`, or choose the runtime `process` and a command",
            ),
        };
    }
    // `docker_password` needs no entry: it never comes without `docker_username`.
    if let Some(FieldNeed { field, .. }) = spec.field_needs().find(|need| need.container_only) {
        return refuse(field, "requires a container; the job has the runtime `process`");
    }
    if spec.command.is_none() {
        return refuse("command", "is missing: the runtime `process` requires it");
    }
    Ok(())
}

/// Validates an idempotency key: 1 to 255 visible ASCII characters.
pub fn idempotency_key(value: &[u8]) -> Result<String, ApiError> {
    let fits = (1..=255).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(value).ok().filter(|_| fits);
    text.map(str::to_owned).ok_or_else(|| {
        ApiError::malformed("the Idempotency-Key header must be 1 to 255 visible ASCII characters")
    })
}

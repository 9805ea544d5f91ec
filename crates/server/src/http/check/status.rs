//! Status calls of the documented worker protocol. The worker reports a result once: text that cannot be stored is repaired
//! instead of rejected.

use serde_json::Value;

use agentaflow_api::ids::JobId;
use agentaflow_api::job::{JobStatus, JobStatusUpdate};

use super::report::{repair_output, replace_nul};
use super::{Checked, at_most, refuse};
use crate::http::limits;

/// Beginning of the message of the original worker about a container that failed; the exit code and the output follow.
const EXITED: &str = "Container exited with code ";
/// Bytes of the output of a failed container that stay in the message of the job.
const MESSAGE_TAIL: usize = 2 << 10;
/// Bytes of the output that stay in `output_data`; the log has all of it.
const OUTPUT_TAIL: usize = 64 << 10;

/// Validates a status that a worker reports.
pub fn check_status_update(job: JobId, update: &JobStatusUpdate) -> Checked {
    if update.job_id.is_some_and(|id| id != job) {
        return refuse("job_id", "differs from the job in the path");
    }
    let Some(status) = update.status else {
        return refuse("status", "is missing: use `running`, `completed`, `failed` or `cancelled`");
    };
    if matches!(status, JobStatus::Pending | JobStatus::Scheduled) {
        return refuse("status", "must be `running`, `completed`, `failed` or `cancelled`");
    }
    if update
        .duration_seconds
        .is_some_and(|seconds| !(0.0..=limits::SECONDS as f64).contains(&seconds))
    {
        return refuse("duration_seconds", "must be a number of 0 or more");
    }
    if let Some(usage) = &update.resource_usage {
        at_most("resource_usage.gpu_memory", usage.gpu_memory, limits::SIZE)?;
        at_most("resource_usage.memory", usage.memory, limits::SIZE)?;
        at_most("resource_usage.storage", usage.storage, limits::SIZE)?;
    }
    Ok(())
}

/// Takes the output of the job out of a status and repairs the rest for storage. The original worker reports the output
/// as `output_data.logs`, or, with the exit code, in the message about a failure.
pub fn take_output(update: &mut JobStatusUpdate) -> Option<String> {
    let mut output = None;
    if let Some(message) = &mut update.error_message {
        if let Some(failure) = ContainerFailure::read(message) {
            update.exit_code = update.exit_code.or(Some(failure.exit_code));
            output = failure.output.map(str::to_owned);
            *message = failure.message();
        }
        replace_nul(message);
    }
    if let Some(data) = &mut update.output_data {
        if let Some(Value::String(logs)) = data.get_mut("logs") {
            let cut = logs.ceil_char_boundary(logs.len().saturating_sub(OUTPUT_TAIL));
            let tail = logs[cut..].to_owned();
            output = Some(std::mem::replace(logs, tail));
        }
        repair_output(data);
    }
    output.filter(|text| !text.is_empty())
}

/// Failure of a container in the words of the original worker.
struct ContainerFailure<'a> {
    exit_code: i32,
    output: Option<&'a str>,
}

impl<'a> ContainerFailure<'a> {
    fn read(message: &'a str) -> Option<Self> {
        let rest = message.strip_prefix(EXITED)?;
        let (code, output) = match rest.split_once(':') {
            Some((code, output)) => (code, Some(output.strip_prefix(' ').unwrap_or(output))),
            None => (rest, None),
        };
        Some(Self { exit_code: code.trim().parse().ok()?, output })
    }

    /// The message with the last part of the output only.
    fn message(&self) -> String {
        let output = self.output.unwrap_or_default().trim_end();
        let cut = output.ceil_char_boundary(output.len().saturating_sub(MESSAGE_TAIL));
        let (colon, skipped) =
            (if output.is_empty() { "" } else { ": " }, if cut > 0 { "…" } else { "" });
        format!("{EXITED}{}{colon}{skipped}{}", self.exit_code, &output[cut..])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(status: Value) -> (JobStatusUpdate, Option<String>) {
        let mut update: JobStatusUpdate = serde_json::from_value(status).unwrap();
        let output = take_output(&mut update);
        (update, output)
    }

    #[test]
    fn the_message_about_a_failure_has_the_exit_code_and_the_output() {
        let message = "Container exited with code 137: epoch 1\nKilled: 9\n";
        let (update, output) = read(json!({"status": "failed", "error_message": message}));
        assert_eq!(
            (update.exit_code, output.as_deref()),
            (Some(137), Some("epoch 1\nKilled: 9\n"))
        );
        let (update, output) =
            read(json!({"status": "failed", "error_message": "no such image: x"}));
        assert_eq!((update.exit_code, output), (None, None));
        assert_eq!(update.error_message.as_deref(), Some("no such image: x"));
    }

    #[test]
    fn a_long_output_is_kept_whole_for_the_log_and_in_part_for_the_record() {
        let long = "é\0".repeat(100_000);
        let message = format!("Container exited with code 2: {long}");
        let (update, output) = read(json!({"status": "failed", "error_message": message}));
        assert_eq!(output.as_ref(), Some(&long));
        let message = update.error_message.unwrap();
        assert!(message.len() < 8 << 10 && !message.contains('\0'), "{}", message.len());
        let data = json!({"logs": long, "exit_code": 0});
        let (update, output) = read(json!({"status": "completed", "output_data": data}));
        assert_eq!(output.as_ref(), Some(&long));
        let logs = update.output_data.unwrap()["logs"].as_str().unwrap().to_owned();
        assert!(logs.len() <= 4 * OUTPUT_TAIL && !logs.contains('\0'), "{}", logs.len());
    }
}

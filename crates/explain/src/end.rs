//! Ends of jobs: the cause that the output shows, and the text for people.

use agentaflow_api::end::{EndCause, EndReason};

/// End of a job, as data.
#[derive(Clone, Copy, Debug, Default)]
pub struct End<'a> {
    pub reason: Option<EndReason>,
    pub cause: Option<EndCause>,
    pub exit_code: Option<i32>,
    /// Message of the runtime or of the cluster; empty where there is none.
    pub detail: &'a str,
}

/// Text about the end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndText {
    /// One sentence.
    pub summary: String,
    /// A few words, for a column of a table.
    pub short: String,
    pub remedy: String,
}

/// Reason that accounts for the cause: exhausted memory outranks the exit that followed from it.
pub fn end_reason(reason: Option<EndReason>, cause: Option<EndCause>) -> Option<EndReason> {
    match (reason, cause) {
        (
            None
            | Some(
                EndReason::Exited
                | EndReason::Signalled
                | EndReason::StartFailed
                | EndReason::OutOfMemory,
            ),
            Some(EndCause::GpuOutOfMemory),
        ) => Some(EndReason::GpuOutOfMemory),
        (None | Some(EndReason::Exited), Some(EndCause::HostOutOfMemory)) => {
            Some(EndReason::OutOfMemory)
        }
        _ => reason,
    }
}

/// Text for the end of a job.
pub fn end(end: &End<'_>) -> EndText {
    let reason = end_reason(end.reason, end.cause);
    if let Some((cause, remedy)) = end.cause.filter(|_| tells_more(reason)).and_then(known_cause) {
        let summary = with_code(cause, end.exit_code);
        return EndText { summary, short: cause.to_owned(), remedy: remedy.to_owned() };
    }
    EndText {
        summary: summary(reason, end),
        short: short(reason, end),
        remedy: remedy(reason, end).to_owned(),
    }
}

/// True if a cause found in the output is more specific than the reason.
fn tells_more(reason: Option<EndReason>) -> bool {
    matches!(reason, None | Some(EndReason::Exited | EndReason::Signalled))
}

/// Phrases that GPU programs print before they give up, in lower case; the first match counts.
const PHRASES: [(&str, EndCause); 20] = [
    ("cuda out of memory", EndCause::GpuOutOfMemory),
    ("cuda error: out of memory", EndCause::GpuOutOfMemory),
    ("cuda_error_out_of_memory", EndCause::GpuOutOfMemory),
    ("cudaerrormemoryallocation", EndCause::GpuOutOfMemory),
    ("cublas_status_alloc_failed", EndCause::GpuOutOfMemory),
    ("torch.outofmemoryerror", EndCause::GpuOutOfMemory),
    ("resource_exhausted: out of memory", EndCause::GpuOutOfMemory),
    ("cannot allocate memory", EndCause::HostOutOfMemory),
    ("std::bad_alloc", EndCause::HostOutOfMemory),
    ("defaultcpuallocator: can't allocate memory", EndCause::HostOutOfMemory),
    ("memoryerror", EndCause::HostOutOfMemory),
    ("cuda driver version is insufficient", EndCause::DriverTooOld),
    ("no kernel image is available for execution", EndCause::NoKernelImage),
    ("no cuda gpus are available", EndCause::NoGpu),
    ("no cuda-capable device is detected", EndCause::NoGpu),
    ("found no nvidia driver on your system", EndCause::NoGpu),
    (
        "bus error. it is possible that dataloader's workers are out of shared memory",
        EndCause::SharedMemory,
    ),
    ("no module named", EndCause::MissingModule),
    ("no space left on device", EndCause::DiskFull),
    ("enospc", EndCause::DiskFull),
];

/// Cause of a failure according to the last lines of the job's output.
pub fn find_cause(output: &str) -> Option<EndCause> {
    let output = output.to_lowercase();
    PHRASES.iter().find(|(phrase, _)| output.contains(phrase)).map(|(_, cause)| *cause)
}

/// Cause and remedy, for causes that replace the reason in the text.
fn known_cause(cause: EndCause) -> Option<(&'static str, &'static str)> {
    Some(match cause {
        EndCause::DriverTooOld => (
            "The driver of the node is older than the CUDA version of the program",
            "Use an image with an older CUDA version, or a node with a newer driver: `agentaflow describe node NAME`",
        ),
        EndCause::NoKernelImage => (
            "The program is not built for this GPU model",
            "Use a build that supports the model, or request another one with --gpu-type",
        ),
        EndCause::NoGpu => (
            "The program found no GPU",
            "Request a GPU with --gpus 1; if the job has one, run `agentaflow doctor` on the node",
        ),
        EndCause::SharedMemory => (
            "Shared memory (/dev/shm) exhausted",
            "Use fewer data loader workers, or request more with --shm",
        ),
        EndCause::MissingModule => (
            "Python module not found",
            "Install the module in the image; jobs do not see the environment of your shell",
        ),
        EndCause::DiskFull => ("No space left on a disk", "Write less, or to a larger volume"),
        _ => return None,
    })
}

fn with_code(text: &str, exit_code: Option<i32>) -> String {
    match exit_code {
        Some(code) => format!("{text} (exit code {code})"),
        None => text.to_owned(),
    }
}

fn summary(reason: Option<EndReason>, end: &End<'_>) -> String {
    match (reason, end.exit_code) {
        (Some(EndReason::GpuOutOfMemory), code) => with_code("CUDA out of memory", code),
        (Some(EndReason::OutOfMemory), code) => {
            with_code("Out of memory: host memory or the job's memory limit exhausted", code)
        }
        (Some(EndReason::GpuMemoryExceeded), _) => "Exceeded its share of GPU memory".to_owned(),
        (Some(EndReason::GpuApplicationError), _) => {
            "Stopped after a driver error (XID) of its application".to_owned()
        }
        (Some(EndReason::StorageExceeded), _) => "Exceeded its disk limit".to_owned(),
        (Some(EndReason::TimedOut), _) => "Exceeded its timeout".to_owned(),
        // The message of the runtime names the image or the program.
        (Some(EndReason::ImagePull | EndReason::StartFailed), _) if !end.detail.is_empty() => {
            end.detail.to_owned()
        }
        (Some(EndReason::ImagePull), _) => "Image pull failed".to_owned(),
        (Some(EndReason::StartFailed), code) => with_code("Start failed", code),
        (Some(EndReason::NodeLost), _) => "Node lost".to_owned(),
        (Some(EndReason::BudgetExceeded), _) => "Budget of its owner exhausted".to_owned(),
        (Some(EndReason::Cancelled), _) => "Cancelled".to_owned(),
        (Some(EndReason::Completed), _) | (Some(EndReason::Exited), Some(0)) => {
            "Completed".to_owned()
        }
        (Some(EndReason::Signalled), Some(code @ 129..=192)) => {
            format!("Killed by {}", signal(code - 128))
        }
        (Some(EndReason::Exited), Some(code)) => format!("Exited with code {code}"),
        _ if end.detail.is_empty() => "Ended without a reported reason".to_owned(),
        _ => end.detail.to_owned(),
    }
}

fn short(reason: Option<EndReason>, end: &End<'_>) -> String {
    match (reason, end.exit_code) {
        (Some(EndReason::GpuOutOfMemory), _) => "CUDA out of memory".to_owned(),
        (Some(EndReason::OutOfMemory), _) => "Out of memory".to_owned(),
        (Some(EndReason::GpuMemoryExceeded), _) => "GPU memory exceeded".to_owned(),
        (Some(EndReason::GpuApplicationError), _) => "GPU application error".to_owned(),
        (Some(EndReason::StorageExceeded), _) => "Disk limit exceeded".to_owned(),
        (Some(EndReason::TimedOut), _) => "Timed out".to_owned(),
        (Some(EndReason::Signalled), Some(code @ 129..=192)) => {
            format!("Killed by {}", signal_name(code - 128))
        }
        (Some(EndReason::Exited), Some(code)) if code != 0 => format!("Exit code {code}"),
        _ => summary(reason, end),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("signal {signal}{name}")
}

fn signal(signal: i32) -> String {
    let meaning = match signal {
        6 => ": the program aborted",
        11 => ": invalid memory access",
        _ => "",
    };
    format!("{}{meaning}", signal_name(signal))
}

fn remedy(reason: Option<EndReason>, end: &End<'_>) -> &'static str {
    match (reason, end.exit_code) {
        (Some(EndReason::GpuOutOfMemory | EndReason::GpuMemoryExceeded), _) => {
            "Reduce the batch size, enable mixed precision or gradient checkpointing, or request more with \
             --gpu-memory or a larger GPU"
        }
        (Some(EndReason::OutOfMemory), _) => {
            "Request more with --memory, or use less: fewer data loader workers, a smaller batch, streaming instead \
             of loading everything"
        }
        (Some(EndReason::GpuApplicationError), _) => {
            "See the events of the job for the XID. Run the program under compute-sanitizer if the error returns"
        }
        (Some(EndReason::StorageExceeded), _) => {
            "Raise `storage_required`, or write large files to a volume"
        }
        (Some(EndReason::TimedOut), _) => {
            "Raise --timeout, or save checkpoints and resume from the last one"
        }
        (Some(EndReason::ImagePull), _) => {
            "Check the name and tag of the image, its credentials, and access to the registry"
        }
        (Some(EndReason::NodeLost), _) => "Submit it again; --retries permits more lost nodes",
        (Some(EndReason::BudgetExceeded), _) => {
            "Ask an admin for credit or a higher spending limit"
        }
        (Some(EndReason::StartFailed), _) if end.cause == Some(EndCause::RelativeProgram) => {
            "Jobs start in their own folder: use an absolute path, or start in the current folder with \
             --workdir \"$PWD\""
        }
        (Some(EndReason::StartFailed), _) if end.cause == Some(EndCause::ProgramNotFound) => {
            "Check that the program exists on the node and is executable, or use an image that has it"
        }
        (Some(EndReason::StartFailed), _) | (Some(EndReason::Exited), Some(126 | 127)) => {
            "Check that the command exists in the image and is executable"
        }
        (Some(EndReason::Signalled), Some(137)) => {
            "Check the events of the job and its memory usage"
        }
        (Some(EndReason::Signalled), Some(134 | 135 | 139)) => {
            "The program crashed: check its logs, and that the CUDA version of the image fits the driver"
        }
        (Some(EndReason::Signalled), Some(143)) => "Check the events of the job",
        _ => "Check the logs of the job",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB";

    #[test]
    fn output_shows_the_cause() {
        let table = [
            (CUDA, Some(EndCause::GpuOutOfMemory)),
            ("MemoryError", Some(EndCause::HostOutOfMemory)),
            ("No CUDA GPUs are available", Some(EndCause::NoGpu)),
            ("No module named 'torch'", Some(EndCause::MissingModule)),
            ("NO SPACE LEFT on device", Some(EndCause::DiskFull)),
            ("sh: x: not found", None),
        ];
        for (output, cause) in table {
            assert_eq!(find_cause(output), cause, "{output}");
        }
    }

    #[test]
    fn exhausted_memory_outranks_the_exit() {
        let exited = Some(EndReason::Exited);
        let table = [
            (exited, Some(EndCause::GpuOutOfMemory), Some(EndReason::GpuOutOfMemory)),
            (exited, Some(EndCause::HostOutOfMemory), Some(EndReason::OutOfMemory)),
            (exited, Some(EndCause::NoGpu), exited),
            (Some(EndReason::TimedOut), Some(EndCause::GpuOutOfMemory), Some(EndReason::TimedOut)),
            (None, None, None),
        ];
        for (reason, cause, expected) in table {
            assert_eq!(end_reason(reason, cause), expected, "{reason:?} {cause:?}");
        }
    }

    fn message(reason: EndReason, exit_code: Option<i32>, cause: Option<EndCause>) -> EndText {
        end(&End { reason: Some(reason), cause, exit_code, detail: "" })
    }

    #[test]
    fn every_end_has_a_summary_and_a_remedy() {
        let text = message(EndReason::Exited, Some(1), Some(EndCause::GpuOutOfMemory));
        assert_eq!(text.summary, "CUDA out of memory (exit code 1)");
        assert!(text.remedy.contains("batch size"), "{text:?}");
        let text = message(EndReason::Exited, Some(1), Some(EndCause::NoGpu));
        assert_eq!(text.summary, "The program found no GPU (exit code 1)");
        assert!(text.remedy.contains("--gpus 1"), "{text:?}");
        for reason in EndReason::ALL {
            let text = message(*reason, None, None);
            assert!(!text.summary.is_empty() && !text.short.is_empty() && !text.remedy.is_empty());
        }
    }

    #[test]
    fn tables_get_a_few_words() {
        assert_eq!(message(EndReason::Exited, Some(3), None).short, "Exit code 3");
        assert_eq!(
            message(EndReason::Signalled, Some(137), None).short,
            "Killed by signal 9 (SIGKILL)"
        );
        assert_eq!(message(EndReason::TimedOut, None, None).short, "Timed out");
        let detail = "there is no image `a:1`";
        let text = end(&End { reason: Some(EndReason::ImagePull), detail, ..End::default() });
        assert_eq!(text.short, detail);
    }

    #[test]
    fn a_process_that_does_not_start_has_nothing_to_do_with_images() {
        let remedy = |cause| message(EndReason::StartFailed, None, cause).remedy;
        assert!(remedy(Some(EndCause::RelativeProgram)).contains("--workdir"));
        assert!(remedy(Some(EndCause::ProgramNotFound)).contains("on the node"));
        assert!(remedy(None).contains("in the image"));
    }
}

//! What ended a job, and what to do about it.

/// How a job ended, as the API tells it, with the end of what it wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending<'a> {
    /// One word: `Exited`, `Signalled`, `TimedOut`, `OutOfMemory`, `ImagePull`, …
    pub reason: &'a str,
    /// The exit code.
    pub exit_code: Option<i32>,
    /// What was said about it.
    pub detail: &'a str,
    /// The last lines of its output.
    pub output: &'a str,
}

/// What killed a job, in one word and one sentence, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// One word; `GpuOutOfMemory` is told apart from the host's `OutOfMemory`.
    pub reason: String,
    /// What killed it.
    pub cause: String,
    /// The same in few words, for lists.
    pub short: String,
    /// What to do about it.
    pub remedy: String,
}

/// What killed a job, and the remedy.
pub fn verdict(end: &Ending<'_>) -> Verdict {
    // Where nobody has the output at hand, what was said about the end may quote it.
    let says = |test: fn(&str) -> bool| test(end.output) || test(end.detail);
    let reason = match end.reason {
        "Exited" | "Signalled" | "StartFailed" | "OutOfMemory" | "" if says(gpu_was_full) => {
            "GpuOutOfMemory"
        }
        "Exited" | "" if says(host_was_full) => "OutOfMemory",
        reason => reason,
    };
    let told = match reason {
        "Exited" | "Signalled" | "" => sign(end.output).or_else(|| sign(end.detail)),
        _ => None,
    };
    let (cause, short, remedy) = match told {
        Some((cause, remedy)) => (with_code(cause, end), cause.to_owned(), remedy),
        None => (cause(reason, end), short(reason, end), remedy(reason, end)),
    };
    Verdict { reason: reason.to_owned(), cause, short, remedy: remedy.to_owned() }
}

/// What programs on GPUs write when they give up, in lower case: the sign, what it means, what to do. The first that is
/// found counts.
const SIGNS: [(&str, &str, &str); 8] = [
    (
        "cuda driver version is insufficient",
        "the driver of the node is older than the CUDA of the program",
        "take an image with an older CUDA, or a node with a newer driver: `agentaflow describe node NAME` says which it has",
    ),
    (
        "no kernel image is available for execution",
        "the program was not built for this model of GPU",
        "take a build that supports it, or ask for another model with --gpu-type",
    ),
    ("no cuda gpus are available", NO_GPU, ASK_FOR_GPU),
    ("no cuda-capable device is detected", NO_GPU, ASK_FOR_GPU),
    ("found no nvidia driver on your system", NO_GPU, ASK_FOR_GPU),
    (
        "bus error. it is possible that dataloader's workers are out of shared memory",
        "its data loaders ran out of shared memory (/dev/shm)",
        "use fewer data loader workers, or give it more with --shm",
    ),
    (
        "no module named",
        "Python did not find a module that it imports",
        "install it in the image, or take one that has it; jobs do not see the environment of your shell",
    ),
    (
        "no space left on device",
        "a disk that it writes to is full",
        "write less, or to a larger volume",
    ),
];

const NO_GPU: &str = "it looked for a GPU and found none";
const ASK_FOR_GPU: &str = "ask for one with --gpus 1; where it did, `agentaflow doctor` on the node checks driver and container runtime";

/// What the output says about the end; or what was found in it before.
fn sign(output: &str) -> Option<(&'static str, &'static str)> {
    let lower = output.to_lowercase();
    let found =
        SIGNS.iter().find(|(sign, cause, _)| lower.contains(sign) || output.contains(cause))?;
    Some((found.1, found.2))
}

fn with_code(cause: &str, end: &Ending<'_>) -> String {
    match end.exit_code {
        Some(code) => format!("{cause} (exit code {code})"),
        None => cause.to_owned(),
    }
}

/// Whether the output says that the memory of a GPU was used up.
pub fn gpu_was_full(output: &str) -> bool {
    const SIGNS: [&str; 7] = [
        "cuda out of memory",
        "cuda error: out of memory",
        "cuda_error_out_of_memory",
        "cudaerrormemoryallocation",
        "cublas_status_alloc_failed",
        "torch.outofmemoryerror",
        "resource_exhausted: out of memory",
    ];
    let output = output.to_lowercase();
    SIGNS.iter().any(|sign| output.contains(sign))
}

/// Whether the output says that the memory of the host was used up.
fn host_was_full(output: &str) -> bool {
    const SIGNS: [&str; 5] = [
        "cannot allocate memory",
        "std::bad_alloc",
        "defaultcpuallocator: can't allocate memory",
        "memoryerror",
        "it used more of the host's than it may",
    ];
    let output = output.to_lowercase();
    SIGNS.iter().any(|sign| output.contains(sign))
}

fn cause(reason: &str, end: &Ending<'_>) -> String {
    match (reason, end.exit_code) {
        ("GpuOutOfMemory", _) => with_code("CUDA out of memory: its GPU had no more", end),
        ("OutOfMemory", _) => {
            with_code("out of memory: it used more of the host's than it may", end)
        }
        ("GpuMemoryExceeded", _) => "it used more GPU memory than it was given".to_owned(),
        ("TimedOut", _) => "it ran longer than it may (time-out)".to_owned(),
        // What the runtime said names the image or the program, which is half of the remedy.
        ("ImagePull" | "StartFailed", _) if !end.detail.is_empty() => end.detail.to_owned(),
        ("ImagePull", _) => "its image could not be pulled".to_owned(),
        ("NodeLost", _) => "its node was lost".to_owned(),
        ("StartFailed", _) => with_code("it could not be started", end),
        ("Signalled", Some(code @ 129..=192)) => signalled(code - 128),
        ("Exited", Some(code)) => format!("it ended with exit code {code}"),
        _ if end.detail.is_empty() => "it ended without saying why".to_owned(),
        _ => end.detail.to_owned(),
    }
}

/// What lists have room for. What a node said of an image or a program is kept: it names them.
fn short(reason: &str, end: &Ending<'_>) -> String {
    match (reason, end.exit_code) {
        ("GpuOutOfMemory", _) => "CUDA out of memory".to_owned(),
        ("OutOfMemory", _) => "out of memory".to_owned(),
        ("GpuMemoryExceeded", _) => "used more GPU memory than it was given".to_owned(),
        ("TimedOut", _) => "timed out".to_owned(),
        ("NodeLost", _) => "node lost".to_owned(),
        ("Signalled", Some(code @ 129..=192)) => {
            let told = signalled(code - 128);
            let told = told.strip_prefix("it was ended by ").unwrap_or(&told);
            match told.split_once(':') {
                Some((signal, _)) => format!("{signal})"),
                None => told.to_owned(),
            }
        }
        ("Exited", Some(code)) => format!("exit code {code}"),
        _ => cause(reason, end),
    }
}

fn signalled(signal: i32) -> String {
    let name = match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        6 => " (SIGABRT: it gave up by itself)",
        7 => " (SIGBUS)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV: it read or wrote where it may not)",
        15 => " (SIGTERM: it was asked to stop)",
        _ => "",
    };
    format!("it was ended by signal {signal}{name}")
}

fn remedy(reason: &str, end: &Ending<'_>) -> &'static str {
    match (reason, end.exit_code) {
        ("GpuOutOfMemory" | "GpuMemoryExceeded", _) => {
            "reduce the batch size, enable mixed precision or gradient checkpointing, or ask for more with \
             --gpu-memory or a larger GPU"
        }
        ("OutOfMemory", _) => {
            "ask for more with --memory, or use less: fewer data loader workers, a smaller batch, streaming instead \
             of loading everything"
        }
        ("TimedOut", _) => "give it more time with --timeout, or let it save checkpoints and go on",
        ("ImagePull", _) => {
            "check the image's name and tag, that the registry can be reached, and its credentials"
        }
        ("NodeLost", _) => "submit it again; --retries does so by itself",
        ("StartFailed", _) if end.detail.starts_with("cannot start `") => process(end.detail),
        ("StartFailed", _) | ("Exited", Some(126 | 127)) => {
            "check that the command exists in the image and may be executed"
        }
        ("Signalled", Some(137)) => {
            "somebody killed it: look at its events, and at the memory that it used"
        }
        ("Signalled", Some(134 | 135 | 139)) => {
            "the program crashed: look at its logs, and check that CUDA in the image fits the driver"
        }
        ("Signalled", Some(143)) => "it was stopped from outside: look at its events",
        _ => "look at its logs",
    }
}

/// What to do about a plain process that a node could not start: there is no image that could lack it.
fn process(detail: &str) -> &'static str {
    let program = detail.split('`').nth(1).unwrap_or_default();
    if program.contains('/') && !program.starts_with('/') {
        "jobs start in a folder of their own: write the whole path, or start it in the folder where you are with \
         --workdir \"$PWD\""
    } else {
        "check that the program is there on the node and may be executed, or name an image that has it"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_a_job_is_told_apart_with_its_remedy() {
        let cuda = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB";
        let table = [
            ("Exited", Some(1), "", "Exited", "exit code 1", "logs"),
            ("Exited", Some(1), cuda, "GpuOutOfMemory", "CUDA out of memory", "batch size"),
            ("OutOfMemory", Some(137), "", "OutOfMemory", "the host's", "--memory"),
            ("Exited", Some(1), "MemoryError", "OutOfMemory", "the host's", "--memory"),
            ("Exited", Some(1), "No CUDA GPUs are available", "Exited", "found none", "--gpus 1"),
            ("Exited", Some(1), "No module named 'torch'", "Exited", "module", "image"),
            ("Exited", Some(127), "sh: x: not found", "Exited", "127", "command exists"),
            ("Signalled", Some(139), "", "Signalled", "SIGSEGV", "crashed"),
            ("Signalled", Some(137), "", "Signalled", "SIGKILL", "events"),
            ("TimedOut", None, "", "TimedOut", "time-out", "--timeout"),
            ("ImagePull", None, "", "ImagePull", "image", "registry"),
            ("", None, "", "", "without saying why", "logs"),
        ];
        for (reason, exit_code, output, word, cause, remedy) in table {
            let said = verdict(&Ending { reason, exit_code, output, ..Ending::default() });
            assert_eq!(said.reason, word, "{reason} {exit_code:?} {output}");
            assert!(said.cause.contains(cause), "{said:?}");
            assert!(said.remedy.contains(remedy), "{said:?}");
        }
    }

    #[test]
    fn lists_tell_what_killed_a_job_in_few_words() {
        let short = |reason, exit_code, detail, output| {
            verdict(&Ending { reason, exit_code, detail, output }).short
        };
        let cuda = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB";
        assert_eq!(short("Exited", Some(3), "it ended with exit code 3", ""), "exit code 3");
        assert_eq!(short("Exited", Some(1), "", cuda), "CUDA out of memory");
        assert_eq!(short("Exited", Some(1), cuda, ""), "CUDA out of memory");
        assert_eq!(short("OutOfMemory", Some(137), "ask for more", ""), "out of memory");
        assert_eq!(short("Signalled", Some(137), "", ""), "signal 9 (SIGKILL)");
        assert_eq!(short("Signalled", Some(139), "", ""), "signal 11 (SIGSEGV)");
        assert_eq!(short("TimedOut", None, "its time was up", ""), "timed out");
        assert_eq!(
            short("ImagePull", None, "there is no image `a:1`", ""),
            "there is no image `a:1`"
        );
        assert_eq!(short("BudgetExceeded", None, "no money is left", ""), "no money is left");
    }

    #[test]
    fn what_was_found_in_the_output_is_told_again_when_the_output_is_gone() {
        for output in [
            "CUDA out of memory.",
            "MemoryError",
            "No module named 'torch'",
            "NO SPACE LEFT on device",
        ] {
            let end = Ending { reason: "Exited", exit_code: Some(1), output, ..Ending::default() };
            let first = verdict(&end);
            let again = verdict(&Ending { output: "", detail: &first.cause, ..end });
            assert_eq!(again, first);
        }
    }

    #[test]
    fn what_a_node_could_not_start_has_nothing_to_do_with_images() {
        let remedy = |detail| {
            let end = Ending { reason: "StartFailed", detail, ..Ending::default() };
            verdict(&end).remedy
        };
        assert!(remedy("cannot start `./s.sh`: there is no such program").contains("--workdir"));
        assert!(remedy("cannot start `tarin`: there is no such program").contains("on the node"));
        assert!(remedy("no such file in the container").contains("in the image"));
    }
}

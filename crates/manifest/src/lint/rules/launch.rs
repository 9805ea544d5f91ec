//! GPU counts in launcher options, compared with the container's GPUs.

use crate::lint::object::{Container, Pod};
use crate::lint::{Findings, Rule, Set};

pub(super) static AF011: Rule = rule! {
    "AF011" "more-processes-than-gpus" Error;
    title: "The launcher expects more GPUs than the container has",
    why: "The launcher starts one process per GPU; processes beyond the limit find no GPU. The program fails with \
          `invalid device ordinal`, or waits for missing GPUs, and is restarted repeatedly.",
    advice: "Use the same number for both: `--nproc-per-node` and `--tensor-parallel-size` count the GPUs of one \
             pod.",
    check: launcher_gpus,
};

/// Options with the GPUs of one machine, regardless of the rest of the command.
const OF_ONE_MACHINE: [&str; 2] = ["--nproc-per-node", "--nproc_per_node"];

/// Options of servers that may also span several pods.
const OF_A_SERVER: [&str; 3] = ["--tensor-parallel-size", "--tensor_parallel_size", "--tp-size"];

/// Words of commands for servers that span several pods.
const SPREAD: [&str; 4] = ["ray", "nnodes", "leader", "multi"];

fn launcher_gpus(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods() {
        for container in pod.containers() {
            let gpus = container.gpus();
            let largest =
                largest_gpu_option(&pod, &container).filter(|(_, count)| gpus > 0 && *count > gpus);
            let Some((option, count)) = largest else { continue };
            let has = if gpus == 1 { "GPU" } else { "GPUs" };
            let message = format!(
                "`{option}` is {count}, but container `{}` has {gpus} {has}",
                container.name()
            );
            findings.add(&pod.object, &container.path, message);
        }
    }
}

/// Launcher option with the largest GPU count, and the count.
fn largest_gpu_option(pod: &Pod<'_>, container: &Container<'_>) -> Option<(&'static str, u64)> {
    let line = container.command_line();
    let words: Vec<_> = line.split_whitespace().collect();
    let of = |option: &'static str| {
        let numbers = words.iter().enumerate().filter_map(|(at, word)| {
            let rest = word.strip_prefix(option)?;
            let value = if rest.is_empty() { words.get(at + 1) } else { None };
            value.copied().or_else(|| rest.strip_prefix('='))?.parse::<u64>().ok()
        });
        numbers.max().map(|count| (option, count))
    };
    let spread = !pod.object.is_native() || SPREAD.iter().any(|word| line.contains(word));
    let server = OF_A_SERVER.into_iter().filter(|_| !spread);
    OF_ONE_MACHINE.into_iter().chain(server).filter_map(of).max_by_key(|(_, count)| *count)
}

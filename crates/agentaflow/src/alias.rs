//! Other names of this program: installed as `k8s-gpu-scheduler` it takes the documented form
//! `--mode=scheduler|monitor|cli [options]`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The documented name.
const SCHEDULER: &str = "k8s-gpu-scheduler";

/// The arguments as our own commands take them; or what is wrong with them.
pub(crate) fn arguments(given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let called = given.first().map(Path::new).and_then(Path::file_stem);
    let called = called == Some(OsStr::new(SCHEDULER));
    let asks = given.get(1).is_some_and(|first| first.to_string_lossy().starts_with("--mode"));
    if !called && !asks {
        return Ok(given);
    }
    let mut rest = Vec::with_capacity(given.len());
    let mut mode = None;
    let mut words = given.into_iter().skip(1);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        if let Some(named) = text.strip_prefix("--mode=") {
            mode = Some(named.to_owned());
        } else if text == "--mode" {
            mode = words.next().map(|named| named.to_string_lossy().into_owned());
        } else {
            rest.push(word);
        }
    }
    let command = match mode.as_deref() {
        // Help and version are the program's own.
        None if rest.iter().any(|word| word == "--version" || word == "--help" || word == "-h") => {
            ""
        }
        None | Some("scheduler") => "scheduler",
        Some("monitor") => "monitor",
        // Needs no cluster.
        Some("cli") if rest.iter().any(|word| word == "generate-template") => "",
        Some("cli") => {
            return Err(
                "--mode=cli does not speak to Kubernetes yet: use `kubectl get gpuworkloads`, \
                        `kubectl describe` and `kubectl apply`"
                    .to_owned(),
            );
        }
        Some(other) => {
            return Err(format!("there is no mode `{other}`: use scheduler, monitor or cli"));
        }
    };
    let command = (!command.is_empty()).then(|| OsString::from(command));
    Ok([OsString::from("agentaflow")].into_iter().chain(command).chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_form_means_our_commands() {
        let cases = [
            ("agentaflow up", Ok("agentaflow up")),
            ("agentaflow scheduler --mode-of=x", Ok("agentaflow scheduler --mode-of=x")),
            (
                "k8s-gpu-scheduler --mode=scheduler --log-level=debug",
                Ok("agentaflow scheduler --log-level=debug"),
            ),
            ("./k8s-gpu-scheduler --mode scheduler", Ok("agentaflow scheduler")),
            (
                "/usr/bin/k8s-gpu-scheduler --mode=monitor --node n1",
                Ok("agentaflow monitor --node n1"),
            ),
            (
                "k8s-gpu-scheduler --strategy best_fit",
                Ok("agentaflow scheduler --strategy best_fit"),
            ),
            ("k8s-gpu-scheduler --version", Ok("agentaflow --version")),
            (
                "./k8s-gpu-scheduler --mode=cli generate-template my-workload.yaml",
                Ok("agentaflow generate-template my-workload.yaml"),
            ),
            ("agentaflow --mode=scheduler", Ok("agentaflow scheduler")),
            ("k8s-gpu-scheduler --mode=other", Err("there is no mode `other`")),
            (
                "k8s-gpu-scheduler --mode=cli status",
                Err("--mode=cli does not speak to Kubernetes yet"),
            ),
        ];
        for (given, expected) in cases {
            let found = arguments(given.split(' ').map(OsString::from).collect());
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    let words: Vec<_> = found.iter().map(|word| word.to_string_lossy()).collect();
                    assert_eq!(words.join(" "), expected, "{given}");
                }
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                (found, expected) => panic!("{given}: {found:?} instead of {expected:?}"),
            }
        }
    }
}

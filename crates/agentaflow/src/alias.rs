//! Other names of the program: `k8s-gpu-scheduler` takes `--mode=scheduler|monitor|cli [options]`, and
//! `kubectl-agentaflow` is a `kubectl` plugin. Both are translated to agentaflow commands.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use agentaflow_kube_core::names;

use crate::context::variable;

const SCHEDULER_ALIAS: &str = "k8s-gpu-scheduler";

/// `kubectl agentaflow …` starts this program.
const PLUGIN_ALIAS: &str = "kubectl-agentaflow";

/// Options of [`crate::connect::Connect`].
const CONNECT_OPTIONS: [&str; 4] = ["--context", "--namespace", "-n", "--kubeconfig"];

/// Options that `--mode=cli` accepts before its command.
const LEADING_OPTIONS: [&str; 4] = ["--namespace", "--strategy", "--node", "--log-level"];

/// Translates the arguments of any alias to arguments of `agentaflow`.
pub(crate) fn arguments(given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    translate_alias(given).map(attach_negative_values).map(move_help_last)
}

/// Rewrites `help COMMAND` to `COMMAND --help`.
fn move_help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    let first = words.iter().skip(1).position(|word| word != "--kubernetes").map(|at| at + 1);
    if let Some(at) = first.filter(|at| words[*at] == "help") {
        words.remove(at);
        words.push(OsString::from("--help"));
    }
    words
}

/// Rewrites `--memory -16Gi` to `--memory=-16Gi`, so that the error about the value names the flag. No option starts
/// with a digit.
fn attach_negative_values(words: Vec<OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::with_capacity(words.len());
    let mut before_command = true;
    for word in words {
        let text = word.to_string_lossy();
        let negative = text.strip_prefix('-').is_some_and(|rest| rest.starts_with(starts_number));
        let flag = all.last_mut().filter(|last| is_open_flag(&last.to_string_lossy()));
        before_command &= text != "--";
        match flag {
            Some(flag) if before_command && negative => {
                flag.push("=");
                flag.push(&word);
            }
            _ => all.push(word),
        }
    }
    all
}

fn starts_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// A flag whose value may be the next word.
fn is_open_flag(word: &str) -> bool {
    word.len() > 2 && word.starts_with("--") && !word.contains('=')
}

fn translate_alias(given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let called = given.first().map(Path::new).and_then(Path::file_stem).map(OsStr::to_os_string);
    if called.as_deref() == Some(OsStr::new(PLUGIN_ALIAS)) {
        let words = move_connect_options_last(given.into_iter().skip(1).collect());
        let plugin = ["agentaflow", "--kubernetes"].map(OsString::from);
        return Ok(plugin.into_iter().chain(words).collect());
    }
    let called = called.as_deref() == Some(OsStr::new(SCHEDULER_ALIAS));
    let asks = given.get(1).is_some_and(|first| first.to_string_lossy().starts_with("--mode"));
    if !called && !asks {
        let mut words = given.into_iter();
        let program = words.next();
        return Ok(program.into_iter().chain(move_connect_options_last(words.collect())).collect());
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
    // Each mode accepts the options of all modes and ignores options of other modes.
    let ignored = match mode.as_deref() {
        None | Some("scheduler") => "--node",
        _ => "--strategy",
    };
    let rest = if mode.as_deref() == Some("cli") { rest } else { without_option(rest, ignored) };
    let command = match mode.as_deref() {
        None if rest.iter().any(|word| word == "--version" || word == "--help" || word == "-h") => {
            ""
        }
        None | Some("scheduler") => "scheduler",
        Some("monitor") => "monitor",
        Some("cli") => return translate_cli_mode(rest),
        Some(other) => {
            return Err(format!("unknown mode `{other}`: use scheduler, monitor or cli"));
        }
    };
    let command = (!command.is_empty()).then(|| OsString::from(command));
    Ok([OsString::from("agentaflow")].into_iter().chain(command).chain(rest).collect())
}

/// Moves connection options in front of the command behind it, as `kubectl` accepts them there. Words after `--` belong
/// to the job and stay last.
fn move_connect_options_last(words: Vec<OsString>) -> Vec<OsString> {
    let mut moved = 0;
    while let Some(word) = words.get(moved).map(|word| word.to_string_lossy()) {
        let (name, has_value) =
            word.split_once('=').map_or((&*word, false), |(name, _)| (name, true));
        if !CONNECT_OPTIONS.contains(&name) {
            break;
        }
        moved += if has_value { 1 } else { 2 };
    }
    if moved == 0 || moved >= words.len() {
        return words;
    }
    let (options, command) = words.split_at(moved);
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    [&command[..end], options, &command[end..]].concat()
}

fn without_option(words: Vec<OsString>, option: &str) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == option {
            words.next();
        } else if text.strip_prefix(option).is_none_or(|rest| !rest.starts_with('=')) {
            kept.push(word);
        }
    }
    kept
}

/// Translates `--mode=cli [options] COMMAND …`.
fn translate_cli_mode(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut options = Options::default();
    let mut rest = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (text, None),
        };
        if !LEADING_OPTIONS.contains(&name.as_str()) {
            rest.push(word);
            continue;
        }
        let value = value.or_else(|| words.next().map(|word| word.to_string_lossy().into_owned()));
        options.set(&name, value.ok_or_else(|| format!("{name} needs a value"))?);
    }
    let mut rest = rest.into_iter();
    let Some(command) = rest.next() else { return Ok(agentaflow(["--help"])) };
    let rest: Vec<OsString> = rest.collect();
    let named = command.to_string_lossy().into_owned();
    let command = match named.as_str() {
        "help" | "--help" | "-h" => return Ok(agentaflow(["--help"])),
        "workloads" => vec!["get", "workloads"],
        "nodes" => vec!["get", "nodes"],
        "generate-template" => vec!["generate-template"],
        "submit" => vec!["submit"],
        known @ ("status" | "strategy" | "watch" | "health" | "complete" | "metrics") => {
            vec![known]
        }
        other => {
            return Err(format!(
                "unknown command `{other}` in --mode=cli: use status, nodes, workloads, submit FILE, strategy [NAME], \
                 watch, health, generate-template FILE, complete NAME, metrics or help; see `agentaflow --help` for more"
            ));
        }
    };
    let node = options.node.filter(|_| command.ends_with(&["nodes"]));
    let strategy = options.strategy.filter(|_| command == ["submit"]);
    let command: Vec<OsString> = command.into_iter().map(OsString::from).collect();
    let mut all = agentaflow(["--kubernetes"]);
    let is_local = command == ["generate-template"];
    all.extend(command);
    if !is_local {
        let namespace = options.namespace.or_else(|| variable("KUBERNETES_NAMESPACE"));
        let namespace = namespace.unwrap_or_else(|| names::NAMESPACE.to_owned());
        all.extend(["--namespace".into(), namespace.into()]);
    }
    all.extend(rest);
    all.extend(node.map(OsString::from));
    all.extend(strategy.map(|name| format!("--set=spec.schedulingStrategy={name}").into()));
    Ok(all)
}

/// Values of [`LEADING_OPTIONS`].
#[derive(Default)]
struct Options {
    namespace: Option<String>,
    strategy: Option<String>,
    node: Option<String>,
}

impl Options {
    fn set(&mut self, name: &str, value: String) {
        match name {
            "--namespace" => self.namespace = Some(value),
            "--strategy" => self.strategy = Some(value),
            "--node" => self.node = Some(value),
            // Commands do not log.
            _ => {}
        }
    }
}

fn agentaflow<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    ["agentaflow"].into_iter().chain(words).map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_value_is_attached_to_its_flag() {
        for (given, taken) in [
            ("generate pvc --size -5Gi --name c", "generate pvc --size=-5Gi --name c"),
            ("run --gpus -.5 -n -1", "run --gpus=-.5 -n -1"),
            ("run --name=x -1 -- train --rate -5", "run --name=x -1 -- train --rate -5"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(attach_negative_values(words(given)), words(taken));
        }
    }

    #[test]
    fn aliases_translate_to_agentaflow_commands() {
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
            (
                "k8s-gpu-scheduler --mode=scheduler --node n1 --strategy=pack --node=n2",
                Ok("agentaflow scheduler --strategy=pack"),
            ),
            (
                "k8s-gpu-scheduler --mode=monitor --strategy best_fit --node n1",
                Ok("agentaflow monitor --node n1"),
            ),
            ("k8s-gpu-scheduler --version", Ok("agentaflow --version")),
            (
                "./k8s-gpu-scheduler --mode=cli generate-template my-workload.yaml",
                Ok("agentaflow --kubernetes generate-template my-workload.yaml"),
            ),
            ("agentaflow --mode=scheduler", Ok("agentaflow scheduler")),
            ("k8s-gpu-scheduler --mode=other", Err("unknown mode `other`")),
            (
                "k8s-gpu-scheduler --mode=cli status",
                Ok("agentaflow --kubernetes status --namespace agentaflow"),
            ),
            (
                "./k8s-gpu-scheduler --mode=cli nodes",
                Ok("agentaflow --kubernetes get nodes --namespace agentaflow"),
            ),
            (
                "k8s-gpu-scheduler --mode=cli --namespace team --node n1 nodes",
                Ok("agentaflow --kubernetes get nodes --namespace team n1"),
            ),
            (
                "k8s-gpu-scheduler --mode=cli submit w.yaml --strategy=best_fit",
                Ok(
                    "agentaflow --kubernetes submit --namespace agentaflow w.yaml --set=spec.schedulingStrategy=best_fit",
                ),
            ),
            ("k8s-gpu-scheduler --mode=cli --log-level debug", Ok("agentaflow --help")),
            ("k8s-gpu-scheduler --mode=cli help", Ok("agentaflow --help")),
            ("k8s-gpu-scheduler --mode=cli fly", Err("unknown command `fly` in --mode=cli")),
            ("k8s-gpu-scheduler --mode=cli --namespace", Err("--namespace needs a value")),
            ("agentaflow help", Ok("agentaflow --help")),
            ("agentaflow help context use", Ok("agentaflow context use --help")),
            ("agentaflow run help", Ok("agentaflow run help")),
            ("kubectl-agentaflow help run", Ok("agentaflow --kubernetes run --help")),
            ("kubectl-agentaflow get nodes", Ok("agentaflow --kubernetes get nodes")),
            (
                "kubectl-agentaflow -n team get nodes",
                Ok("agentaflow --kubernetes get nodes -n team"),
            ),
            (
                "agentaflow --context lab --namespace=a run x -- y --context z",
                Ok("agentaflow run x --context lab --namespace=a -- y --context z"),
            ),
            ("agentaflow --context lab", Ok("agentaflow --context lab")),
            ("agentaflow --context", Ok("agentaflow --context")),
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

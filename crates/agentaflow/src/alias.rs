//! Other names of this program: installed as `k8s-gpu-scheduler` it takes the documented form
//! `--mode=scheduler|monitor|cli [options]`, installed as `kubectl-agentaflow` it is a plugin of `kubectl`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use agentaflow_kube_core::names;

use crate::context::variable;

/// The documented name.
const SCHEDULER: &str = "k8s-gpu-scheduler";

/// As a plugin of `kubectl`, which runs it for `kubectl agentaflow …`.
const PLUGIN: &str = "kubectl-agentaflow";

/// Options of every command that asks somebody.
const WHERE: [&str; 4] = ["--context", "--namespace", "-n", "--kubeconfig"];

/// Options of the documented form that stand before its command.
const BEFORE: [&str; 4] = ["--namespace", "--strategy", "--node", "--log-level"];

/// The arguments as our own commands take them; or what is wrong with them.
pub(crate) fn arguments(given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    renamed(given).map(with_negative_values).map(help_last)
}

/// `help COMMAND`, as people type it elsewhere, as `COMMAND --help`.
fn help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    let first = words.iter().skip(1).position(|word| word != "--kubernetes").map(|at| at + 1);
    if let Some(at) = first.filter(|at| words[*at] == "help") {
        words.remove(at);
        words.push(OsString::from("--help"));
    }
    words
}

/// `--memory -16Gi` as `--memory=-16Gi`: no option of ours is a digit, and what refuses the amount names the flag then.
fn with_negative_values(words: Vec<OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::with_capacity(words.len());
    let mut ours = true;
    for word in words {
        let text = word.to_string_lossy();
        let negative = text.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_of_number));
        let flag = all.last_mut().filter(|last| is_open_flag(&last.to_string_lossy()));
        ours &= text != "--";
        match flag {
            Some(flag) if ours && negative => {
                flag.push("=");
                flag.push(&word);
            }
            _ => all.push(word),
        }
    }
    all
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// A flag whose value may be the next word.
fn is_open_flag(word: &str) -> bool {
    word.len() > 2 && word.starts_with("--") && !word.contains('=')
}

fn renamed(given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let called = given.first().map(Path::new).and_then(Path::file_stem).map(OsStr::to_os_string);
    if called.as_deref() == Some(OsStr::new(PLUGIN)) {
        let words = where_last(given.into_iter().skip(1).collect());
        let plugin = ["agentaflow", "--kubernetes"].map(OsString::from);
        return Ok(plugin.into_iter().chain(words).collect());
    }
    let called = called.as_deref() == Some(OsStr::new(SCHEDULER));
    let asks = given.get(1).is_some_and(|first| first.to_string_lossy().starts_with("--mode"));
    if !called && !asks {
        let mut words = given.into_iter();
        let program = words.next();
        return Ok(program.into_iter().chain(where_last(words.collect())).collect());
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
    // Each mode takes the options of all, and leaves alone what does not concern it.
    let idle = match mode.as_deref() {
        None | Some("scheduler") => "--node",
        _ => "--strategy",
    };
    let rest = if mode.as_deref() == Some("cli") { rest } else { without(rest, idle) };
    let command = match mode.as_deref() {
        // Help and version are the program's own.
        None if rest.iter().any(|word| word == "--version" || word == "--help" || word == "-h") => {
            ""
        }
        None | Some("scheduler") => "scheduler",
        Some("monitor") => "monitor",
        Some("cli") => return command_line(rest),
        Some(other) => {
            return Err(format!("there is no mode `{other}`: use scheduler, monitor or cli"));
        }
    };
    let command = (!command.is_empty()).then(|| OsString::from(command));
    Ok([OsString::from("agentaflow")].into_iter().chain(command).chain(rest).collect())
}

/// What says where a command goes may stand before it, as with `kubectl`: it is moved behind the command, but not
/// into the words after `--`, which are a job's own.
fn where_last(words: Vec<OsString>) -> Vec<OsString> {
    let mut moved = 0;
    while let Some(word) = words.get(moved).map(|word| word.to_string_lossy()) {
        let (name, has_value) =
            word.split_once('=').map_or((&*word, false), |(name, _)| (name, true));
        if !WHERE.contains(&name) {
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

/// The words without an option and its value.
fn without(words: Vec<OsString>, option: &str) -> Vec<OsString> {
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

/// `--mode=cli [options] COMMAND …`: options may stand before the command, and mean what they mean to it.
fn command_line(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut options = Options::default();
    let mut rest = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (text, None),
        };
        if !BEFORE.contains(&name.as_str()) {
            rest.push(word);
            continue;
        }
        let value = value.or_else(|| words.next().map(|word| word.to_string_lossy().into_owned()));
        options.set(&name, value.ok_or_else(|| format!("{name} needs a value"))?);
    }
    let mut rest = rest.into_iter();
    let Some(command) = rest.next() else { return Ok(ours(["--help"])) };
    let rest: Vec<OsString> = rest.collect();
    let named = command.to_string_lossy().into_owned();
    let command = match named.as_str() {
        "help" | "--help" | "-h" => return Ok(ours(["--help"])),
        "workloads" => vec!["get", "workloads"],
        "nodes" => vec!["get", "nodes"],
        "generate-template" => vec!["generate-template"],
        "submit" => vec!["submit"],
        known @ ("status" | "strategy" | "watch" | "health" | "complete" | "metrics") => {
            vec![known]
        }
        other => {
            return Err(format!(
                "there is no command `{other}` in --mode=cli: status, nodes, workloads, submit FILE, strategy [NAME], \
                 watch, health, generate-template FILE, complete NAME, metrics, help; `agentaflow --help` has more"
            ));
        }
    };
    let node = options.node.filter(|_| command.ends_with(&["nodes"]));
    let strategy = options.strategy.filter(|_| command == ["submit"]);
    let command: Vec<OsString> = command.into_iter().map(OsString::from).collect();
    let mut all = ours(["--kubernetes"]);
    let writes = command == ["generate-template"];
    all.extend(command);
    if !writes {
        let namespace = options.namespace.or_else(|| variable("KUBERNETES_NAMESPACE"));
        let namespace = namespace.unwrap_or_else(|| names::NAMESPACE.to_owned());
        all.extend(["--namespace".into(), namespace.into()]);
    }
    all.extend(rest);
    all.extend(node.map(OsString::from));
    all.extend(strategy.map(|name| format!("--set=spec.schedulingStrategy={name}").into()));
    Ok(all)
}

/// Options that stand before the command.
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
            // Commands have nothing to log.
            _ => {}
        }
    }
}

fn ours<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    ["agentaflow"].into_iter().chain(words).map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_amount_belongs_to_its_flag() {
        for (given, taken) in [
            ("generate pvc --size -5Gi --name c", "generate pvc --size=-5Gi --name c"),
            ("run --gpus -.5 -n -1", "run --gpus=-.5 -n -1"),
            ("run --name=x -1 -- train --rate -5", "run --name=x -1 -- train --rate -5"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(with_negative_values(words(given)), words(taken));
        }
    }

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
            ("k8s-gpu-scheduler --mode=other", Err("there is no mode `other`")),
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
            ("k8s-gpu-scheduler --mode=cli fly", Err("there is no command `fly` in --mode=cli")),
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

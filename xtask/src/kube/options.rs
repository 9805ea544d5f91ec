//! The command line of `cargo xtask kube`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::repo;
use agentaflow_units::{did_you_mean, nearest};

/// Options of `up`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) nodes: u32,
    pub(super) gpus: u32,
    pub(super) model: String,
    /// MiB per GPU.
    pub(super) memory: u32,
    pub(super) pods: u32,
    pub(super) prefix: String,
    /// Seconds without a heartbeat until a node is lost.
    pub(super) grace: Option<u32>,
    pub(super) qps: u32,
    pub(super) scheduler: bool,
    /// Adds a node with a kubelet and containers.
    pub(super) real_node: bool,
    pub(super) dir: PathBuf,
}

impl Options {
    /// Short for fast tests; longer for many nodes, whose leases would load the API server.
    pub(super) fn grace(&self) -> u32 {
        self.grace.unwrap_or(if self.nodes > 200 { 40 } else { 10 })
    }

    pub(super) fn is_default_dir(&self) -> bool {
        self.dir == default_dir()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 0,
            gpus: 8,
            model: "NVIDIA-A100-SXM4-80GB".to_owned(),
            memory: 81_920,
            pods: 110,
            prefix: "gpu".to_owned(),
            grace: None,
            qps: 500,
            scheduler: true,
            real_node: false,
            dir: default_dir(),
        }
    }
}

const NAMES: [&str; 11] = [
    "--nodes",
    "--gpus",
    "--model",
    "--memory",
    "--pods",
    "--prefix",
    "--grace",
    "--qps",
    "--no-scheduler",
    "--real-node",
    "--dir",
];

/// Parses the arguments of one command; only `up` takes more than `--dir`.
pub(super) fn parse(command: &str, arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument.as_str(), None),
        };
        let mut value = || {
            let value = inline.map(str::to_owned).or_else(|| arguments.next().cloned());
            value.ok_or_else(|| format!("`{name}` needs a value"))
        };
        match name {
            "--dir" => options.dir = absolute(&value()?)?,
            _ if command != "up" => {
                return Err(format!("`kube {command}` does not take `{argument}`"));
            }
            "--nodes" => options.nodes = number(name, &value()?)?,
            "--gpus" => options.gpus = number(name, &value()?)?,
            "--model" => options.model = value()?,
            "--memory" => options.memory = number(name, &value()?)?,
            "--pods" => options.pods = number(name, &value()?)?,
            "--prefix" => options.prefix = value()?,
            "--grace" => options.grace = Some(number(name, &value()?)?),
            "--qps" => options.qps = number(name, &value()?)?,
            "--no-scheduler" => options.scheduler = false,
            "--real-node" => options.real_node = true,
            _ => {
                let nearest = did_you_mean(nearest(name, NAMES));
                return Err(format!(
                    "unknown argument `{argument}`{nearest}; see `cargo xtask kube --help`"
                ));
            }
        }
    }
    Ok(options)
}

fn default_dir() -> PathBuf {
    repo::root().join("target/kube")
}

/// Components run in their own folders, so paths must be absolute.
fn absolute(dir: &str) -> Result<PathBuf, String> {
    std::path::absolute(Path::new(dir)).map_err(|error| format!("`--dir {dir}`: {error}"))
}

fn number<N: FromStr>(name: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("`{name} {value}`: not a valid number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(command: &str, line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(command, &words)
    }

    #[test]
    fn a_value_follows_a_space_or_an_equals_sign() {
        let options =
            parsed("up", "--nodes 10 --gpus=4 --model H200 --no-scheduler --real-node").unwrap();
        assert_eq!((options.nodes, options.gpus, &*options.model), (10, 4, "H200"));
        assert!(!options.scheduler && options.real_node);
    }

    #[test]
    fn many_nodes_have_a_longer_default_grace() {
        let grace = |line: &str| parsed("up", line).unwrap().grace();
        assert_eq!(grace("--nodes 200"), 10);
        assert_eq!(grace("--nodes 5000"), 40);
        assert_eq!(grace("--nodes 5000 --grace 15"), 15);
    }

    #[test]
    fn errors_name_the_wrong_argument() {
        let message = |command: &str, line: &str| parsed(command, line).unwrap_err();
        assert!(message("up", "--node 3").contains("did you mean `--nodes`?"));
        assert_eq!(message("up", "--nodes"), "`--nodes` needs a value");
        assert_eq!(message("up", "--gpus many"), "`--gpus many`: not a valid number");
        assert_eq!(message("down", "--nodes 3"), "`kube down` does not take `--nodes`");
    }
}

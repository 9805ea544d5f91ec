//! The command line with the context of a share.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::PROGRAM;
use crate::support::{Program, Scheduler, Share};

pub(crate) struct CommandLine {
    home: PathBuf,
}

impl CommandLine {
    pub(crate) fn new(share: &Share, scheduler: &Scheduler) -> Self {
        let home = share.file("home");
        std::fs::create_dir_all(home.join("agentaflow")).expect("a folder for contexts");
        let text = format!(
            "current = \"kube\"\n[contexts.kube.kubernetes]\nkubeconfig = \"{}\"\n\
             namespace = \"{namespace}\"\nsystem_namespace = \"{namespace}\"\n\
             scheduler = \"http://127.0.0.1:{http}\"\n",
            share.cluster.kubeconfig.display(),
            namespace = share.namespace,
            http = scheduler.http,
        );
        std::fs::write(home.join("agentaflow/config.toml"), text).expect("a list of contexts");
        Self { home }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the program can be started")
    }

    /// Starts a long-running command.
    pub(crate) fn starts(&self, share: &Share, words: &[&str]) -> Program {
        Program::start(self.command(words), &share.file(&format!("{}.log", words[0])))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(words).env("XDG_CONFIG_HOME", &self.home).env("COLUMNS", "200");
        for name in ["AGENTAFLOW_SERVER", "AGENTAFLOW_TOKEN", "AGENTAFLOW_CONTEXT", "KUBECONFIG"] {
            command.env_remove(name);
        }
        command
    }

    /// Stdout of a successful command.
    #[track_caller]
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {told}");
        String::from_utf8(output.stdout).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let text = self.says(words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }
}

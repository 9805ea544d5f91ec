//! Host resources of the real node: a network bridge and control groups with the same name. Creating the bridge claims the
//! name, because the kernel allows one bridge of a name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::run;

/// File with the claimed number.
const RECORD: &str = "host-resources";

const GROUPS: &str = "/sys/fs/cgroup";

/// Longest time between KILL and the end of a process.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A number that is unique on the machine; names and addresses derive from it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostResources(u8);

impl HostResources {
    /// Claims the first free number and records it in the folder of the node.
    pub(super) fn claim(folder: &Path) -> Result<Self> {
        let mut last_error = None;
        for number in 0..=u8::MAX {
            let resources = Self(number);
            match run(&mut ip(&["link", "add", &resources.name(), "type", "bridge"])) {
                Ok(()) => {
                    fs::write(folder.join(RECORD), number.to_string())?;
                    resources.prepare(folder)?;
                    return Ok(resources);
                }
                Err(error) if resources.link().exists() => last_error = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last_error.context("no bridge number is free")?)
    }

    /// Reads the record of an earlier claim.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(RECORD);
        let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
        let number = text.trim().parse();
        Ok(Some(Self(number.with_context(|| format!("`{}` is damaged", file.display()))?)))
    }

    /// Name of the bridge and of the control groups.
    pub(super) fn name(&self) -> String {
        format!("agentaflow-{}", self.0)
    }

    /// Address of the node, from the block reserved for benchmarks (RFC 2544).
    pub(super) fn address(&self) -> String {
        format!("198.18.{}.1", self.0)
    }

    pub(super) fn subnet(&self) -> String {
        format!("198.18.{}.0/24", self.0)
    }

    pub(super) fn first_of_pods(&self) -> String {
        format!("198.18.{}.10", self.0)
    }

    /// Kills processes in the control groups or with the mark, and removes the groups and the bridge. After a reboot a
    /// different node may own the bridge; then both stay.
    pub(super) fn release(&self, folder: &Path, mark: &str) -> Result<()> {
        let is_owner = !self.link().exists() || self.owner() == folder.display().to_string();
        let belongs = |pid: u32| {
            has_variable(pid, mark)
                || (is_owner && is_in_group(&proc_file(pid, "cgroup"), &self.name()))
        };
        let started = Instant::now();
        loop {
            let remaining: Vec<u32> = processes().filter(|pid| belongs(*pid)).collect();
            if remaining.is_empty() {
                break;
            }
            if started.elapsed() > KILL_TIMEOUT {
                bail!("processes of the node do not end: {remaining:?}");
            }
            let pids: Vec<String> = remaining.iter().map(u32::to_string).collect();
            // A process may end before the signal arrives.
            let _ = Command::new("kill").args(["-s", "KILL", "--"]).args(pids).output();
            thread::sleep(Duration::from_millis(50));
        }
        if is_owner {
            for group in self.groups() {
                remove_group(&group)?;
            }
            self.forwarding_rule("--delete");
            if self.link().exists() {
                run(&mut ip(&["link", "delete", &self.name()]))?;
            }
        }
        fs::remove_file(folder.join(RECORD)).context("cannot remove the record of the bridge")
    }

    fn prepare(&self, folder: &Path) -> Result<()> {
        let name = self.name();
        run(ip(&["link", "set", "dev", &name, "alias"]).arg(folder))?;
        run(&mut ip(&["address", "add", &format!("{}/24", self.address()), "dev", &name]))?;
        run(&mut ip(&["link", "set", &name, "up"]))?;
        self.forwarding_rule("--insert");
        for group in self.groups() {
            fs::create_dir_all(&group).with_context(|| {
                format!("cannot create the control group `{}`", group.display())
            })?;
        }
        Ok(())
    }

    /// Packets between pods cross the bridge, and Docker drops forwarded packets of other bridges. Without iptables no such
    /// firewall exists.
    fn forwarding_rule(&self, change: &str) {
        let name = self.name();
        let mut rule = Command::new("iptables");
        rule.args(["--wait", change, "FORWARD", "--in-interface", &name, "--out-interface", &name]);
        let _ = rule.args(["--jump", "ACCEPT"]).output();
    }

    fn link(&self) -> PathBuf {
        Path::new("/sys/class/net").join(self.name())
    }

    /// Folder of the node that owns the bridge, from the alias of the bridge.
    fn owner(&self) -> String {
        let alias = fs::read_to_string(self.link().join("ifalias")).unwrap_or_default();
        alias.trim_end_matches('\n').to_owned()
    }

    /// The control group in each hierarchy; cgroup v2 has one hierarchy.
    fn groups(&self) -> Vec<PathBuf> {
        let root = Path::new(GROUPS);
        if root.join("cgroup.controllers").is_file() {
            return vec![root.join(self.name())];
        }
        let hierarchies = fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
        let real = hierarchies
            .map(|entry| entry.path())
            .filter(|path| path.join("cgroup.procs").is_file() && !path.is_symlink());
        real.map(|hierarchy| hierarchy.join(self.name())).collect()
    }
}

/// True if the environment of a process has this variable.
fn has_variable(pid: u32, variable: &str) -> bool {
    proc_file(pid, "environ").split('\0').any(|one| one == variable)
}

/// Contents of `/proc/<pid>/<file>`; empty if the process has ended.
fn proc_file(pid: u32, file: &str) -> String {
    let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// True if a line of `/proc/<pid>/cgroup` names this top-level group or a group inside it.
fn is_in_group(text: &str, name: &str) -> bool {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.into_iter().any(|path| path.split('/').nth(1) == Some(name))
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Removes inner groups first; the kernel owns the files in them.
fn remove_group(group: &Path) -> Result<()> {
    let Ok(inside) = fs::read_dir(group) else { return Ok(()) };
    for entry in inside.filter_map(Result::ok).filter(|entry| entry.path().is_dir()) {
        remove_group(&entry.path())?;
    }
    let started = Instant::now();
    // The last process may still be exiting.
    while let Err(error) = fs::remove_dir(group) {
        if !group.exists() {
            return Ok(());
        }
        if started.elapsed() > KILL_TIMEOUT {
            return Err(error)
                .with_context(|| format!("cannot remove the control group `{}`", group.display()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn ip(words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_node_of_its_top_level_group() {
        let text = |path: &str| format!("9:name=systemd:/\n4:memory:{path}\n0::/\n");
        assert!(is_in_group(&text("/agentaflow-1/kubepods/burstable/podx/y"), "agentaflow-1"));
        assert!(is_in_group(&text("/agentaflow-1"), "agentaflow-1"));
        for other in ["/", "/agentaflow-10/kubepods", "/x/agentaflow-1/kubepods", ""] {
            assert!(!is_in_group(&text(other), "agentaflow-1"), "{other}");
        }
    }

    #[test]
    fn a_recorded_claim_is_read_back() {
        let folder = std::env::temp_dir().join(format!("agentaflow-host-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        assert_eq!(HostResources::read(&folder).unwrap(), None);
        fs::write(folder.join(RECORD), "7").unwrap();
        let resources = HostResources::read(&folder).unwrap().unwrap();
        assert_eq!(
            (resources.name(), resources.address()),
            ("agentaflow-7".to_owned(), "198.18.7.1".to_owned())
        );
        fs::write(folder.join(RECORD), "many").unwrap();
        assert!(HostResources::read(&folder).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}

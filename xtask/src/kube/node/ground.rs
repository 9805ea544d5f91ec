//! What the real node takes of the machine: a bridge with an address, and control groups. Both have one name, and the
//! bridge is the claim: there cannot be two of that name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::run;

const GROUPS: &str = "/sys/fs/cgroup";

/// How long killed processes may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// A number that nobody else on the machine has, of which names and addresses are made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ground(u8);

impl Ground {
    /// Takes what is free and notes it in the node's folder.
    pub(super) fn claim(folder: &Path) -> Result<Self> {
        let mut refused = None;
        for number in 0..=u8::MAX {
            let ground = Self(number);
            match run(&mut ip(&["link", "add", &ground.name(), "type", "bridge"])) {
                Ok(()) => {
                    fs::write(folder.join("ground"), number.to_string())?;
                    ground.prepare()?;
                    return Ok(ground);
                }
                Err(error) if ground.link().exists() => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(refused.context("there is no number")?)
    }

    /// What an earlier call claimed.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join("ground");
        let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
        let number = text.trim().parse();
        Ok(Some(Self(number.with_context(|| format!("`{}` is damaged", file.display()))?)))
    }

    /// Of the bridge and of the groups.
    pub(super) fn name(&self) -> String {
        format!("agentaflow-{}", self.0)
    }

    /// Of the node; from a block that is kept for measurements, as nobody uses it.
    pub(super) fn address(&self) -> String {
        format!("198.18.{}.1", self.0)
    }

    pub(super) fn subnet(&self) -> String {
        format!("198.18.{}.0/24", self.0)
    }

    pub(super) fn first_of_pods(&self) -> String {
        format!("198.18.{}.10", self.0)
    }

    /// Kills what still runs in our groups or carries our mark, and gives back the groups and the bridge.
    pub(super) fn clear(&self, mark: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            let left: Vec<u32> = processes().filter(|pid| self.owns(*pid, mark)).collect();
            if left.is_empty() {
                break;
            }
            if started.elapsed() > PATIENCE {
                bail!("the processes {left:?} of the node do not end");
            }
            let pids: Vec<String> = left.iter().map(u32::to_string).collect();
            // Some may end before the signal arrives.
            let _ = Command::new("kill").args(["-s", "KILL", "--"]).args(pids).output();
            thread::sleep(Duration::from_millis(50));
        }
        for group in self.groups() {
            remove_group(&group)?;
        }
        if self.link().exists() {
            run(&mut ip(&["link", "delete", &self.name()]))?;
        }
        Ok(())
    }

    fn prepare(&self) -> Result<()> {
        let name = self.name();
        run(&mut ip(&["address", "add", &format!("{}/24", self.address()), "dev", &name]))?;
        run(&mut ip(&["link", "set", &name, "up"]))?;
        for group in self.groups() {
            fs::create_dir_all(&group)
                .with_context(|| format!("cannot make the group `{}`", group.display()))?;
        }
        Ok(())
    }

    fn link(&self) -> PathBuf {
        Path::new("/sys/class/net").join(self.name())
    }

    /// Our group in every hierarchy; on machines with one hierarchy there is one.
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

    fn owns(&self, pid: u32, mark: &str) -> bool {
        let of = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let groups = String::from_utf8_lossy(&of("cgroup")).into_owned();
        is_in_group(&groups, &self.name())
            || of("environ").split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    }
}

/// True when a line of `/proc/<pid>/cgroup` lies in this group of the outermost level.
fn is_in_group(text: &str, name: &str) -> bool {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.into_iter().any(|path| path.split('/').nth(1) == Some(name))
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A group can be removed once it has no groups inside; its files are the kernel's.
fn remove_group(group: &Path) -> Result<()> {
    let Ok(inside) = fs::read_dir(group) else { return Ok(()) };
    for entry in inside.filter_map(Result::ok).filter(|entry| entry.path().is_dir()) {
        remove_group(&entry.path())?;
    }
    let started = Instant::now();
    // The last process may still be leaving.
    while let Err(error) = fs::remove_dir(group) {
        if !group.exists() {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(error)
                .with_context(|| format!("cannot remove the group `{}`", group.display()));
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
    fn only_what_is_in_the_groups_of_this_node_belongs_to_it() {
        let text = |path: &str| format!("9:name=systemd:/\n4:memory:{path}\n0::/\n");
        assert!(is_in_group(&text("/agentaflow-1/kubepods/burstable/podx/y"), "agentaflow-1"));
        assert!(is_in_group(&text("/agentaflow-1"), "agentaflow-1"));
        for other in ["/", "/agentaflow-10/kubepods", "/x/agentaflow-1/kubepods", ""] {
            assert!(!is_in_group(&text(other), "agentaflow-1"), "{other}");
        }
    }

    #[test]
    fn what_was_claimed_is_known_again() {
        let folder = std::env::temp_dir().join(format!("agentaflow-ground-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        assert_eq!(Ground::read(&folder).unwrap(), None);
        fs::write(folder.join("ground"), "7").unwrap();
        let ground = Ground::read(&folder).unwrap().unwrap();
        assert_eq!(
            (ground.name(), ground.address()),
            ("agentaflow-7".to_owned(), "198.18.7.1".to_owned())
        );
        fs::write(folder.join("ground"), "many").unwrap();
        assert!(Ground::read(&folder).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}

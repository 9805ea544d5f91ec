//! Files, crates and commits that differ from the main branch.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repo;

/// Branches that changes are compared with; the first that exists counts.
const MAIN_BRANCHES: [&str; 2] = ["origin/main", "main"];

/// Files whose change affects every crate.
const SHARED: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "rust-toolchain.toml"];

/// The commit that changes are compared with.
pub(crate) struct Base {
    commit: String,
    /// For messages: `main` or `the last commit`.
    pub(crate) name: String,
}

impl Base {
    /// The merge base with the main branch. On the main branch itself: the last commit, or the one before the last
    /// commit if nothing is uncommitted.
    pub(crate) fn find() -> Result<Self> {
        let head = git(&["rev-parse", "HEAD"])?;
        for branch in MAIN_BRANCHES {
            let Ok(base) = git(&["merge-base", "HEAD", branch]) else { continue };
            if base != head {
                return Ok(Self { commit: base, name: branch.to_owned() });
            }
        }
        let is_clean = git(&["status", "--porcelain"])?.is_empty();
        let parent = git(&["rev-parse", "HEAD~1"]);
        Ok(match parent {
            Ok(parent) if is_clean => {
                Self { commit: parent, name: "the commit before the last".to_owned() }
            }
            _ => Self { commit: head, name: "the last commit".to_owned() },
        })
    }

    pub(crate) fn at(revision: &str) -> Result<Self> {
        let commit = git(&["rev-parse", "--verify", &format!("{revision}^{{commit}}")])?;
        Ok(Self { commit, name: revision.to_owned() })
    }

    /// Changed files, with uncommitted and untracked ones.
    pub(crate) fn changed_files(&self) -> Result<BTreeSet<String>> {
        let tracked = git(&["diff", "--name-only", &self.commit])?;
        let untracked = git(&["ls-files", "--others", "--exclude-standard"])?;
        Ok(tracked.lines().chain(untracked.lines()).map(str::to_owned).collect())
    }

    /// Hash and subject of each commit since the base, without merges.
    pub(crate) fn commits(&self) -> Result<Vec<(String, String)>> {
        let range = format!("{}..HEAD", self.commit);
        let log = git(&["log", "--no-merges", "--format=%h %s", &range])?;
        let split = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
        Ok(log.lines().filter_map(split).collect())
    }
}

/// A crate of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Relative to the root, with a slash at the end: `crates/engine/`.
    folder: String,
    pub(crate) has_library: bool,
}

/// Crates that own one of the changed files; all of them when a shared file changed.
pub(crate) fn changed_members(files: &BTreeSet<String>) -> Result<Vec<Member>> {
    Ok(select(&members()?, files))
}

fn select(members: &[Member], files: &BTreeSet<String>) -> Vec<Member> {
    let is_shared = files.iter().any(|file| SHARED.contains(&file.as_str()));
    let is_changed =
        |member: &&Member| is_shared || files.iter().any(|file| file.starts_with(&member.folder));
    members.iter().filter(is_changed).cloned().collect()
}

fn members() -> Result<Vec<Member>> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = repo::cargo(&arguments).output().context("cannot start `cargo metadata`")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages in the metadata")?;
    packages.iter().map(|package| member(package).context("a package without a path")).collect()
}

fn member(package: &serde_json::Value) -> Option<Member> {
    let manifest = package["manifest_path"].as_str()?;
    let folder = manifest.strip_prefix(&format!("{}/", repo::root().display()))?;
    let targets = package["targets"].as_array()?;
    let is_library = |target: &serde_json::Value| {
        target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"))
    };
    Some(Member {
        name: package["name"].as_str()?.to_owned(),
        folder: folder.strip_suffix("Cargo.toml")?.to_owned(),
        has_library: targets.iter().any(is_library),
    })
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        // Containers often mount a checkout that belongs to a different user.
        .args(["-c", "safe.directory=*"])
        .args(arguments)
        .current_dir(repo::root())
        .output()
        .context("cannot start `git`")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("`git {}` failed: {}", arguments.join(" "), error.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(files: &[&str]) -> Vec<String> {
        let member = |name: &str, folder: &str| Member {
            name: name.to_owned(),
            folder: folder.to_owned(),
            has_library: true,
        };
        let members = [
            member("kube", "crates/kube/"),
            member("kube-worker", "crates/kube-worker/"),
            member("xtask", "xtask/"),
        ];
        let files = files.iter().map(ToString::to_string).collect();
        select(&members, &files).into_iter().map(|member| member.name).collect()
    }

    #[test]
    fn a_file_belongs_to_the_crate_of_its_folder() {
        assert_eq!(selected(&["crates/kube-worker/src/lib.rs"]), ["kube-worker"]);
        assert_eq!(selected(&["xtask/src/main.rs", "README.md"]), ["xtask"]);
        assert!(selected(&["README.md"]).is_empty());
    }

    #[test]
    fn a_shared_file_belongs_to_every_crate() {
        assert_eq!(selected(&["Cargo.lock"]).len(), 3);
    }

    #[test]
    fn the_workspace_lists_this_crate_as_a_program() {
        let members = members().unwrap();
        let own = members.iter().find(|member| member.name == "xtask").unwrap();
        assert_eq!((own.folder.as_str(), own.has_library), ("xtask/", false));
    }
}

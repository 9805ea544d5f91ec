//! Programs of the control plane, built once with Go from the versions in `tests/kube`, and cached.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::output::out;
use crate::{process, repo, tools};

struct Program {
    name: &'static str,
    /// Folder in `tests/kube` of the Go module that pins the version.
    module: &'static str,
    package: &'static str,
}

/// Built only for a real node.
const KUBELET: Program =
    Program { name: "kubelet", module: "control-plane", package: "k8s.io/kubernetes/cmd/kubelet" };
/// Built only for a real node: its pods resolve the names of Services.
const COREDNS: Program = Program { name: "coredns", module: CONTROLLERS, package: "./dns" };

/// Built only for a real node: enforces network policies there.
const NETWORK_POLICIES: Program =
    Program { name: "network-policies", module: "network-policies", package: "./agent" };

const PROGRAMS: [Program; 11] = [
    Program { name: "etcd", module: "control-plane", package: "go.etcd.io/etcd/server/v3" },
    Program {
        name: "kube-apiserver",
        module: "control-plane",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
    },
    Program {
        name: "kube-controller-manager",
        module: "control-plane",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
    },
    Program {
        name: "kube-scheduler",
        module: "control-plane",
        package: "k8s.io/kubernetes/cmd/kube-scheduler",
    },
    Program { name: "kubectl", module: "control-plane", package: "k8s.io/kubernetes/cmd/kubectl" },
    Program { name: "kwok", module: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok" },
    Program { name: "jobset-controller", module: CONTROLLERS, package: "sigs.k8s.io/jobset" },
    Program { name: "lws-controller", module: CONTROLLERS, package: "sigs.k8s.io/lws/cmd" },
    Program { name: "kubeflow-controllers", module: CONTROLLERS, package: "./kubeflow" },
    Program {
        name: "kuberay-operator",
        module: OPERATORS,
        package: "github.com/ray-project/kuberay/ray-operator",
    },
    Program {
        name: "trainer-controller",
        module: OPERATORS,
        package: "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    },
];

/// Started by the tests of jobs as units.
const CONTROLLERS: &str = "controllers";

/// As [`CONTROLLERS`], with other versions of the Kubernetes libraries.
const OPERATORS: &str = "operators";

/// Definitions of their kinds, in the sources of Go modules.
struct Definitions {
    module: &'static str,
    source: &'static str,
    folder: &'static str,
    files: &'static [&'static str],
}

const DEFINITIONS: [Definitions; 6] = [
    Definitions {
        module: CONTROLLERS,
        source: "sigs.k8s.io/jobset",
        folder: "config/components/crd/bases",
        files: &["jobset.x-k8s.io_jobsets"],
    },
    Definitions {
        module: CONTROLLERS,
        source: "sigs.k8s.io/lws",
        folder: "config/crd/bases",
        files: &[
            "leaderworkerset.x-k8s.io_leaderworkersets",
            "disaggregatedset.x-k8s.io_disaggregatedsets",
        ],
    },
    Definitions {
        module: CONTROLLERS,
        source: "github.com/kubeflow/mpi-operator",
        folder: "manifests/base",
        files: &["kubeflow.org_mpijobs"],
    },
    Definitions {
        module: CONTROLLERS,
        source: "github.com/kubeflow/training-operator",
        folder: "manifests/base/crds",
        files: &["kubeflow.org_pytorchjobs"],
    },
    Definitions {
        module: OPERATORS,
        source: "github.com/ray-project/kuberay/ray-operator",
        folder: "config/crd/bases",
        files: &["ray.io_rayclusters", "ray.io_rayjobs", "ray.io_rayservices"],
    },
    Definitions {
        module: OPERATORS,
        source: "github.com/kubeflow/trainer/v2",
        folder: "manifests/base/crds",
        files: &[
            "trainer.kubeflow.org_trainjobs",
            "trainer.kubeflow.org_trainingruntimes",
            "trainer.kubeflow.org_clustertrainingruntimes",
        ],
    },
];

#[derive(Debug)]
pub(crate) struct Binaries {
    pub(crate) folder: PathBuf,
    /// Version of Kubernetes: `v1.36.4`.
    pub(crate) version: String,
}

/// Builds missing and outdated programs.
pub(crate) fn ensure() -> Result<Binaries> {
    let binaries = locate()?;
    for program in &PROGRAMS {
        program.ensure(&binaries)?;
    }
    copy_definitions(&binaries)?;
    Ok(binaries)
}

/// Copies the definitions of the built versions to the folder `crds` next to the programs.
fn copy_definitions(binaries: &Binaries) -> Result<()> {
    let mut wanted = requirements(&go_mod(CONTROLLERS)?) + &requirements(&go_mod(OPERATORS)?);
    wanted.extend(DEFINITIONS.iter().flat_map(|all| all.files).map(|file| format!("\n{file}")));
    let folder = binaries.folder.join("crds");
    let stamp = folder.join("requires");
    if fs::read_to_string(&stamp).is_ok_and(|copied| copied == wanted) {
        return Ok(());
    }
    fs::create_dir_all(&folder)?;
    for definitions in &DEFINITIONS {
        let sources = module_sources(definitions.module, definitions.source)?;
        for file in definitions.files.iter().map(|name| format!("{name}.yaml")) {
            let source = sources.join(definitions.folder).join(&file);
            let copy = folder.join(&file);
            // A copy has the read-only mode of the module cache.
            let _ = fs::remove_file(&copy);
            fs::copy(&source, copy)
                .with_context(|| format!("cannot copy `{}`", source.display()))?;
        }
    }
    fs::write(stamp, wanted)?;
    Ok(())
}

/// Folder of a Go module that a module of this repository requires.
fn module_sources(by: &str, name: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.current_dir(module(by)).args(["list", "-m", "-f", "{{.Dir}}", name]);
    let listed = go.output().context("cannot run `go list`")?;
    Ok(PathBuf::from(String::from_utf8_lossy(&listed.stdout).trim()))
}

/// Programs of a real node.
#[derive(Debug)]
pub(super) struct NodePrograms {
    pub(super) kubelet: PathBuf,
    pub(super) coredns: PathBuf,
}

/// Builds the programs of a real node if missing or outdated.
pub(super) fn ensure_node_programs() -> Result<NodePrograms> {
    let binaries = locate()?;
    for program in [&KUBELET, &COREDNS, &NETWORK_POLICIES] {
        program.ensure(&binaries)?;
    }
    let [kubelet, coredns] = [KUBELET, COREDNS].map(|program| binaries.folder.join(program.name));
    Ok(NodePrograms { kubelet, coredns })
}

fn locate() -> Result<Binaries> {
    let version = version_in(&go_mod("control-plane")?, "k8s.io/kubernetes")?;
    let folder = tools::cache("kube")?.join(&version);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    Ok(Binaries { folder, version })
}

impl Program {
    fn ensure(&self, Binaries { folder, version }: &Binaries) -> Result<()> {
        let wanted = requirements(&go_mod(self.module)?) + &self.sources()?;
        let stamp = folder.join(format!("{}.requires", self.name));
        let program = folder.join(self.name);
        if program.is_file() && fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
            return Ok(());
        }
        if !tools::is_on_path("go") {
            bail!(
                "Go is missing and `{}` must be built; install Go from https://go.dev/dl",
                self.name
            );
        }
        out!("   building {} with Go", self.name);
        let started = Instant::now();
        // Rename at the end: a concurrent run sees the old or the new program, never a partial one.
        let unfinished = folder.join(format!("{}.{}.new", self.name, std::process::id()));
        let finished = process::run(&mut self.build(&unfinished, version))?;
        if !finished.succeeded() {
            finished.show_output();
            let _ = fs::remove_file(&unfinished);
            bail!("Go failed to build {}", self.name);
        }
        fs::rename(&unfinished, &program)?;
        fs::write(stamp, wanted)?;
        out!("   built {} in {} s", self.name, started.elapsed().as_secs());
        Ok(())
    }

    /// Source of a program of this repository; empty for one of another module.
    fn sources(&self) -> Result<String> {
        if !self.package.starts_with("./") {
            return Ok(String::new());
        }
        let file = module(self.module).join(self.package).join("main.go");
        fs::read_to_string(&file).with_context(|| format!("cannot read `{}`", file.display()))
    }

    fn build(&self, output: &Path, version: &str) -> Command {
        let mut go = Command::new("go");
        go.current_dir(module(self.module)).env("CGO_ENABLED", "0");
        let mut flags = "-s -w".to_owned();
        if self.module == "control-plane" {
            flags.push_str(" -X k8s.io/component-base/version.gitVersion=");
            flags.push_str(version);
        }
        go.args(["build", "-trimpath", "-ldflags", &flags, "-o"]).arg(output).arg(self.package);
        go
    }
}

fn module(name: &str) -> PathBuf {
    repo::root().join("tests/kube").join(name)
}

fn go_mod(name: &str) -> Result<String> {
    let file = module(name).join("go.mod");
    fs::read_to_string(&file).with_context(|| format!("cannot read `{}`", file.display()))
}

/// Direct requirements of a `go.mod`. Indirect ones follow from them and change with each added program.
fn requirements(go_mod: &str) -> String {
    let is_direct = |line: &&str| line.contains(" v") && !line.ends_with("// indirect");
    go_mod.lines().map(str::trim).filter(is_direct).collect::<Vec<_>>().join("\n")
}

/// Version of a package in a `go.mod`.
fn version_in(go_mod: &str, package: &str) -> Result<String> {
    let mut requirements = go_mod.lines().map(|line| line.trim().trim_start_matches("require "));
    let version = requirements.find_map(|line| line.strip_prefix(package)?.strip_prefix(' '));
    let version = version.and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_owned).with_context(|| format!("no go.mod requires `{package}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_module() {
        let text = "require (\n\tk8s.io/kubernetes-x v1.0.0\n\tk8s.io/kubernetes v1.36.4 // why\n)";
        assert_eq!(version_in(text, "k8s.io/kubernetes").unwrap(), "v1.36.4");
        assert_eq!(version_in("require a.io/b v2.0.0", "a.io/b").unwrap(), "v2.0.0");
        assert!(version_in(text, "k8s.io/api").is_err());
    }

    #[test]
    fn only_a_changed_direct_requirement_rebuilds_a_program() {
        let text = |version: &str, more: &str| {
            format!(
                "module m\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes {version}\n)\n\nrequire (\n\t\
                 a.io/b v1.0.0 // indirect\n{more})\n\nreplace k8s.io/api => k8s.io/api v0.36.4\n"
            )
        };
        let built = requirements(&text("v1.36.4", ""));
        assert_eq!(built, "k8s.io/kubernetes v1.36.4\nreplace k8s.io/api => k8s.io/api v0.36.4");
        assert_eq!(built, requirements(&text("v1.36.4", "\tc.io/d v2.0.0 // indirect\n")));
        assert_ne!(built, requirements(&text("v1.36.5", "")));
    }

    #[test]
    fn the_modules_of_this_repository_pin_kubernetes() {
        let own = version_in(&go_mod("control-plane").unwrap(), "k8s.io/kubernetes").unwrap();
        assert!(own.starts_with("v1."), "{own}");
    }
}

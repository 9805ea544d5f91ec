//! Custom resource definitions of projects whose programs the tests do not run, from their Go modules: KEDA and Karpenter for
//! manifests of `agentaflow generate`.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{RunningService, Service};
use crate::{process, tools};

/// A Go module and the files in it that define kinds.
struct Module {
    name: &'static str,
    /// Checksum in the format of `go.sum`.
    sum: &'static str,
    files: &'static [&'static str],
}

const MODULES: [Module; 2] = [
    Module {
        name: "github.com/kedacore/keda/v2@v2.21.0",
        sum: "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
        files: &["config/crd/bases/keda.sh_scaledobjects.yaml"],
    },
    Module {
        name: "github.com/aws/karpenter-provider-aws@v1.14.1",
        sum: "h1:WGtIQTQcxpElYMdWfWuPwaF2+9muR+hYhPZsTtoY8Gs=",
        files: &[
            "pkg/apis/crds/karpenter.sh_nodepools.yaml",
            "pkg/apis/crds/karpenter.k8s.aws_ec2nodeclasses.yaml",
        ],
    },
];

/// Copies the definitions into the cache. Tests apply them to the control plane, so there must be one.
pub(super) fn start(others: &[Service]) -> Result<RunningService> {
    if !others.iter().any(|service| service.kind.prefix == "kube_" && service.is_running()) {
        bail!("no control plane is running");
    }
    if !tools::is_on_path("go") {
        bail!("Go is missing; install it from https://go.dev/dl");
    }
    let folder = tools::cache("kube")?.join("kinds");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    for module in &MODULES {
        let from = module.fetch()?;
        for file in module.files {
            let (_, name) = file.rsplit_once('/').unwrap_or_default();
            let source = format!("{from}/{file}");
            // A copy would keep the read-only mode of the module cache and could not be replaced.
            let text = fs::read(&source).with_context(|| format!("cannot read `{source}`"))?;
            fs::write(folder.join(name), text)?;
        }
    }
    Ok(RunningService::external(folder.display().to_string()))
}

impl Module {
    /// Downloads the module; returns its folder in Go's cache.
    fn fetch(&self) -> Result<String> {
        let mut go = Command::new("go");
        // Outside any module, whose go.mod could select a different version.
        go.current_dir(std::env::temp_dir()).args(["mod", "download", "-json", self.name]);
        let finished = process::run(&mut go)?;
        if !finished.succeeded() {
            bail!("cannot download {}: {}", self.name, finished.output.trim());
        }
        self.parse(&finished.output)
    }

    /// Parses the output of `go mod download -json`; returns the folder of the module.
    fn parse(&self, output: &str) -> Result<String> {
        let object = output.find('{').map_or("", |start| &output[start..]);
        let module: Value = serde_json::from_str(object).with_context(|| {
            format!("unexpected output of `go mod download` for {}: {output}", self.name)
        })?;
        let text = |field: &str| module[field].as_str().unwrap_or_default();
        if text("Sum") != self.sum {
            bail!("checksum of {} is {}, expected {}", self.name, text("Sum"), self.sum);
        }
        Ok(text("Dir").to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_with_a_different_checksum_is_rejected() {
        let module = Module { name: "a.io/b@v1.0.0", sum: "h1:good=", files: &[] };
        let output =
            |sum: &str| format!("go: downloading\n{{\"Dir\": \"/mod/b\", \"Sum\": \"{sum}\"}}");
        assert_eq!(module.parse(&output("h1:good=")).unwrap(), "/mod/b");
        let error = module.parse(&output("h1:other=")).unwrap_err().to_string();
        assert_eq!(error, "checksum of a.io/b@v1.0.0 is h1:other=, expected h1:good=");
        assert!(module.parse("no").is_err());
    }
}

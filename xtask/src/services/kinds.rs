//! The kinds of KEDA and Karpenter, which `agentaflow generate` writes and a bare API server does not know: their
//! definitions as those projects publish them, from their Go modules.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Service, Started};
use crate::{process, tools};

/// A published module, what it must contain to the last byte, and the files of it that define kinds.
struct Module {
    name: &'static str,
    /// As Go writes it into `go.sum`.
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

/// Puts the definitions into a folder of their own, which is kept. They are of use on a control plane only.
pub(super) fn start(others: &[Service]) -> Result<Started> {
    if !others.iter().any(|service| service.kind.prefix == "kube_" && service.runs()) {
        bail!("there is no control plane for them");
    }
    if !tools::is_on_path("go") {
        bail!("their modules are fetched with Go, which is missing; https://go.dev/dl has it");
    }
    let folder = tools::cache("kube")?.join("kinds");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    for module in &MODULES {
        let from = module.fetch()?;
        for file in module.files {
            let (_, name) = file.rsplit_once('/').unwrap_or_default();
            let source = format!("{from}/{file}");
            // Read and written, not copied: files of modules may not be written to, and so not twice.
            let text = fs::read(&source).with_context(|| format!("cannot read `{source}`"))?;
            fs::write(folder.join(name), text)?;
        }
    }
    Ok(Started::elsewhere(folder.display().to_string()))
}

impl Module {
    /// The folder where Go keeps it.
    fn fetch(&self) -> Result<String> {
        let mut go = Command::new("go");
        // Outside of any module, whose own versions would have a say.
        go.current_dir(std::env::temp_dir()).args(["mod", "download", "-json", self.name]);
        let finished = process::run(&mut go)?;
        if !finished.succeeded() {
            bail!("Go could not fetch {}: {}", self.name, finished.output.trim());
        }
        self.read(&finished.output)
    }

    /// Reads what Go says of it.
    fn read(&self, said: &str) -> Result<String> {
        let object = said.find('{').map_or("", |start| &said[start..]);
        let told: Value = serde_json::from_str(object)
            .with_context(|| format!("what Go says of {} cannot be read: {said}", self.name))?;
        let text = |field: &str| told[field].as_str().unwrap_or_default();
        if text("Sum") != self.sum {
            bail!("{} is not what it was: {} instead of {}", self.name, text("Sum"), self.sum);
        }
        Ok(text("Dir").to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_has_changed_is_not_taken() {
        let module = Module { name: "a.io/b@v1.0.0", sum: "h1:good=", files: &[] };
        let said =
            |sum: &str| format!("go: downloading\n{{\"Dir\": \"/mod/b\", \"Sum\": \"{sum}\"}}");
        assert_eq!(module.read(&said("h1:good=")).unwrap(), "/mod/b");
        let error = module.read(&said("h1:other=")).unwrap_err().to_string();
        assert_eq!(error, "a.io/b@v1.0.0 is not what it was: h1:other= instead of h1:good=");
        assert!(module.read("no").is_err());
    }
}

//! Container images of the real node, built locally because the node reaches no registry.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::{architecture, run};
use crate::tools;

const BUSYBOX: &str = "docker.io/agentaflow-test/busybox:1";

/// Sandbox image: its container only sleeps and holds the namespaces of a pod.
pub(super) const PAUSE: &str = "docker.io/agentaflow-test/pause:1";

/// Commands available to tests.
const APPLETS: [&str; 18] = [
    "cat", "date", "echo", "env", "false", "grep", "head", "mkdir", "nc", "nslookup", "seq", "sh",
    "sleep", "tail", "test", "touch", "tr", "true",
];

/// Builds both images and imports them into the containerd of this folder.
pub(super) fn import(folder: &Path, inside: &str) -> Result<()> {
    let images = folder.join("images");
    build(&images).context("cannot build the images of the node")?;
    let archive = folder.join("images.tar");
    pack(&images, &archive, &["manifest.json", "busybox.json", "pause.json", "layer.tar"])?;
    let mut import = Command::new("nsenter");
    import.args([inside, "ctr", "--namespace=k8s.io"]).arg("--address");
    import.arg(folder.join("containerd.sock")).args(["images", "import"]).arg(&archive);
    run(&mut import)?;
    fs::remove_file(archive)?;
    Ok(fs::remove_dir_all(images)?)
}

/// Writes the format of `docker save`: a list, two configurations and one shared layer.
fn build(images: &Path) -> Result<()> {
    let bin = images.join("root/bin");
    fs::create_dir_all(&bin)?;
    fs::copy(tools::STATIC_BUSYBOX, bin.join("busybox"))?;
    for applet in APPLETS {
        symlink("busybox", bin.join(applet))?;
    }
    // Programs expect a writable /tmp.
    fs::create_dir_all(images.join("root/tmp"))?;
    let layer = images.join("layer.tar");
    pack(&images.join("root"), &layer, &["."])?;
    let digest = digest(&layer)?;
    let describe = |config: serde_json::Value| {
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        })
    };
    let busybox = describe(json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]}));
    let pause = describe(json!({"Entrypoint": ["/bin/busybox", "sleep", "2000000000"]}));
    let entry = |config: &str, name: &str| json!({"Config": config, "RepoTags": [name], "Layers": ["layer.tar"]});
    let list = json!([entry("busybox.json", BUSYBOX), entry("pause.json", PAUSE)]);
    for (name, content) in [("busybox", busybox), ("pause", pause), ("manifest", list)] {
        fs::write(images.join(format!("{name}.json")), serde_json::to_vec(&content)?)?;
    }
    Ok(())
}

fn pack(from: &Path, archive: &Path, names: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--create", "--file"]).arg(archive);
    run(tar.arg("--directory").arg(from).args(names))
}

fn digest(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).output();
    let output = output.context("cannot start `sha256sum`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let digest = text.split_whitespace().next().filter(|digest| digest.len() == 64);
    Ok(digest.context("unexpected output of `sha256sum`")?.to_owned())
}

//! Place of `unsafe` code.

use std::fs;
use std::path::Path;

/// All crates inherit the lints of the workspace, which forbid `unsafe`, except this one.
#[test]
fn no_other_crate_may_contain_unsafe_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    assert!(workspace.contains("unsafe_code = \"forbid\""));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let manifests = crates.chain([root.join("xtask")]).map(|dir| dir.join("Cargo.toml"));
    let others = manifests.filter(|path| path.exists() && !path.ends_with("linux/Cargo.toml"));
    for path in others {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("[lints]\nworkspace = true"), "{}", path.display());
    }
}

/// The other lints of this crate come from the workspace.
#[test]
fn lints_of_the_workspace_apply_here_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let workspace = fs::read_to_string(root.join("../../Cargo.toml")).unwrap();
    let lints = workspace.split("[workspace.lints.rust]").nth(1).unwrap();
    let lints = lints.split("[profile").next().unwrap().lines();
    let expected = lints.filter(|line| line.contains(" = ") && !line.contains("forbid"));
    for line in expected {
        assert!(own.contains(line), "{line}");
    }
}

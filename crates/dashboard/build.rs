//! Compiles the crate again when `cargo xtask web` has built other files.

use std::{env, fs, path::Path};

fn main() {
    let crate_folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let built = Path::new(&crate_folder).join("../../web/dist");
    // Cargo runs this script in every build while the folder is missing. A failure only costs that time.
    let _ = fs::create_dir_all(&built);
    println!("cargo:rerun-if-changed={}", built.display());
}

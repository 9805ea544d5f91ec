//! The engine depends on its arguments alone. Clippy forbids single functions (`clippy.toml`); this test
//! checks dependencies and modules.

// A test may read files; the engine may not.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};

/// Small crates of data and arithmetic, without clocks, files or sockets.
const ALLOWED_DEPENDENCIES: [&str; 5] = ["libm", "rustc-hash", "serde", "smallvec", "thiserror"];

/// Forbidden segments of `std` paths.
const FORBIDDEN_IN_STD: [&str; 10] =
    ["Instant", "RandomState", "SystemTime", "env", "fs", "io", "net", "os", "process", "thread"];

const FORBIDDEN_CRATES: [&str; 7] =
    ["async_std", "chrono", "fastrand", "getrandom", "rand", "rayon", "tokio"];

#[test]
fn the_engine_depends_on_small_data_crates_only() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let strangers: Vec<_> = dependencies(&manifest)
        .into_iter()
        .filter(|name| !ALLOWED_DEPENDENCIES.contains(&name.as_str()))
        .collect();
    assert!(strangers.is_empty(), "the engine may not depend on {strangers:?}");
}

#[test]
fn the_engine_needs_no_build_script() {
    assert!(!root().join("build.rs").exists());
}

#[test]
fn the_engine_uses_no_clock_file_socket_or_thread() {
    let offences: Vec<String> = sources(&root().join("src"))
        .iter()
        .flat_map(|file| {
            let found = offences(&fs::read_to_string(file).unwrap());
            found.into_iter().map(|path| format!("{}: {path}", file.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn the_search_handles_grouped_imports_and_comments() {
    let found = |code| offences(code).join(" ");
    assert_eq!(found("use std::time::{Duration, Instant};"), "std::Instant");
    assert_eq!(found("use std::{\n    fs,\n    fmt,\n};"), "std::fs");
    assert_eq!(found("std::thread::spawn(f);"), "std::thread");
    assert_eq!(found("let x: u8 = rand::random();"), "rand::");
    assert_eq!(found("// std::fs is not for us\nuse std::fmt;"), "");
    assert_eq!(found("use std::time::Duration; let brand = operand::new();"), "");
}

#[test]
fn the_search_finds_every_form_of_dependency() {
    let manifest = "[dependencies]\nserde.workspace = true\nlibm = \"0.2\"\n\n\
                    [dependencies.tokio]\nversion = \"1\"\n\n\
                    [target.'cfg(unix)'.dependencies]\nnix = \"1\"\n\n\
                    [build-dependencies]\ncc = \"1\"\n\n\
                    [dev-dependencies]\nproptest = \"1\"\n";
    let expected = ["serde", "libm", "tokio", "nix", "cc"];
    assert_eq!(dependencies(manifest), expected);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Normal dependencies; dev-dependencies are not checked.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let dev = section.contains("dev-dependencies");
            inside = !dev && section.ends_with("dependencies");
            if let Some((_, name)) = section.split_once("dependencies.")
                && !dev
            {
                names.push(name.to_owned());
            }
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            names.push(name.trim_matches('"').to_owned());
        }
    }
    names
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Forbidden paths in this code, in order.
fn offences(code: &str) -> Vec<String> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: String = code.lines().filter(is_code).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for rest in after_word(&code, "std::") {
        let words = path(rest).split(|c: char| !is_name(c));
        found.extend(
            words.filter(|word| FORBIDDEN_IN_STD.contains(word)).map(|word| format!("std::{word}")),
        );
    }
    for name in FORBIDDEN_CRATES.map(|name| format!("{name}::")) {
        if after_word(&code, &name).next().is_some() {
            found.push(name);
        }
    }
    found
}

/// The text after each whole word `word`.
fn after_word<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    code.match_indices(word)
        .filter(|(at, _)| !code[..*at].ends_with(is_name))
        .map(|(at, word)| &code[at + word.len()..])
}

/// The rest of a path: `time::Instant`, or `{fs, time::{self, Instant}}` up to its last brace.
fn path(rest: &str) -> &str {
    let mut depth = 0;
    let end = rest.find(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth < 0 || (depth == 0 && !is_name(c) && !":}".contains(c))
    });
    &rest[..end.unwrap_or(rest.len())]
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

//! Reads the input of `detect` within limits: directories may be huge, and files large or binary.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use agentaflow_manifest::detect::File;
use anyhow::{Context as _, Result};

use crate::{failure, files};

/// Bytes read per file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Bytes read per notebook; most of a notebook are images, which are skipped.
const MAX_NOTEBOOK_BYTES: u64 = 16 << 20;
const MAX_TOTAL_BYTES: u64 = 32 << 20;
const MAX_FILES: usize = 2_000;
const MAX_ENTRIES: usize = 100_000;
const MAX_DEPTH: usize = 24;
/// Skipped files listed by name.
const MAX_NOTES: usize = 20;

#[derive(Debug)]
pub(super) enum Target {
    Text(String),
    Files(Collected),
}

/// Files, and notes about skipped ones.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) files: Vec<File>,
    pub(super) notes: Vec<String>,
}

/// Reads stdin for `-`, files and directories that exist, and otherwise takes the arguments as text.
pub(super) fn target(arguments: &[String]) -> Result<Target> {
    if arguments == ["-"] {
        return standard_input();
    }
    // A dangling link is an unreadable file, not a text.
    let exists = |argument: &String| fs::symlink_metadata(argument).is_ok();
    if !arguments.iter().any(exists) {
        if let Some(path) = arguments.iter().find(|argument| looks_like_path(argument)) {
            return Err(failure::not_found(format!(
                "cannot read `{path}`: no such file or directory"
            )));
        }
        return Ok(Target::Text(arguments.join(" ")));
    }
    if let Some(missing) = arguments.iter().find(|argument| !exists(argument)) {
        return Err(failure::not_found(format!(
            "cannot read `{missing}`: no such file or directory; text cannot be mixed with files"
        )));
    }
    let mut walk = Walk::default();
    for argument in arguments {
        walk.operand(Path::new(argument))?;
    }
    Ok(Target::Files(walk.end()))
}

fn standard_input() -> Result<Target> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .context("cannot read stdin")?;
    let mut notes = Vec::new();
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bytes.truncate(MAX_FILE_BYTES as usize);
        notes.push(format!("stdin: read only the first {} MiB", MAX_FILE_BYTES >> 20));
    }
    let bytes = as_utf8(bytes);
    if bytes.contains(&0) {
        anyhow::bail!("stdin is not text");
    }
    let content = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Target::Files(Collected { files: vec![File::new("(stdin)", content)], notes }))
}

/// A single word with the form of a path.
fn looks_like_path(argument: &str) -> bool {
    let one_word = !argument.contains(char::is_whitespace);
    let ending = Path::new(argument).extension().and_then(|ending| ending.to_str());
    let known = ending.is_some_and(|ending| {
        ["md", "txt", "py", "ipynb", "toml", "yaml", "yml", "json"].contains(&ending)
    });
    let begins = ["./", "../", "/", "~/"].iter().any(|start| argument.starts_with(start));
    one_word && (begins || known || argument.ends_with('/'))
}

/// Use of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileUse {
    Text,
    /// The name suffices.
    Name,
    Ignored,
}

fn file_use(name: &str) -> FileUse {
    let name = name.to_lowercase();
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    match ending {
        "safetensors" | "gguf" | "onnx" | "pt" | "pth" | "ckpt" => return FileUse::Name,
        "md" | "txt" | "rst" | "adoc" | "py" | "ipynb" | "toml" | "yaml" | "yml" | "cfg" | "in"
        | "sh" | "cu" | "cuh" => return FileUse::Text,
        _ => {}
    }
    let known = ["dockerfile", "containerfile", "readme", "makefile", "pipfile", "requirements"];
    let starts = known.iter().any(|start| name.starts_with(start)) && ending != "lock";
    if starts || name == "package.json" { FileUse::Text } else { FileUse::Ignored }
}

fn is_skipped_directory(path: &Path, name: &str) -> bool {
    name.starts_with('.')
        || matches!(name, "node_modules" | "__pycache__" | "site-packages" | "bower_components")
        || path.join("pyvenv.cfg").exists()
        || path.join("CACHEDIR.TAG").exists()
}

#[derive(Debug, Default)]
struct Walk {
    files: Vec<File>,
    notes: Vec<String>,
    unnamed: usize,
    bytes: u64,
    entries: usize,
    links: usize,
    full: bool,
}

impl Walk {
    /// An operand. Links are followed only here.
    fn operand(&mut self, path: &Path) -> Result<()> {
        let context = || format!("cannot read `{}`", path.display());
        let about = fs::metadata(path).with_context(context)?;
        if about.is_dir() {
            fs::read_dir(path).with_context(context)?;
            self.directory(path);
            return Ok(());
        }
        if !files::is_finite(path, &about) {
            return Err(failure::usage(format!(
                "`{}` is neither a file nor a directory",
                path.display()
            )));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file_use(&name) == FileUse::Name {
            self.files.push(File::new(path.to_string_lossy(), ""));
            return Ok(());
        }
        let most = max_bytes(&name);
        let mut bytes = read(path, most).with_context(context)?;
        if bytes.len() as u64 > most {
            bytes.truncate(most as usize);
            self.note(format!("{}: read only the first {} MiB", path.display(), most >> 20));
        }
        let bytes = as_utf8(bytes);
        if is_binary(&bytes) {
            anyhow::bail!("`{}` is not text", path.display());
        }
        self.text(path, bytes);
        Ok(())
    }

    /// Reads a directory tree in order of names.
    fn directory(&mut self, top: &Path) {
        let mut stack: Vec<(PathBuf, usize)> = vec![(top.to_owned(), 0)];
        while let Some((folder, depth)) = stack.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) => {
                    self.note(format!("{}: {}", folder.display(), error.kind()));
                    continue;
                }
            };
            let room = MAX_ENTRIES.saturating_sub(self.entries);
            let mut paths: Vec<_> =
                entries.flatten().take(room).map(|entry| entry.path()).collect();
            self.entries += paths.len();
            self.full |= paths.len() == room;
            paths.sort();
            let mut below = Vec::new();
            for path in paths {
                if self.entry(&path, depth) {
                    below.push((path, depth + 1));
                }
            }
            stack.extend(below.into_iter().rev());
            if self.full {
                return;
            }
        }
    }

    /// Reads an entry; returns true for a directory to descend into.
    fn entry(&mut self, path: &Path, depth: usize) -> bool {
        let Ok(about) = fs::symlink_metadata(path) else { return false };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if about.is_symlink() {
            self.links += 1;
            return false;
        }
        if about.is_dir() {
            let too_deep = depth >= MAX_DEPTH;
            if too_deep {
                self.note(format!("{}: more than {MAX_DEPTH} directories deep", path.display()));
            }
            return !too_deep && !is_skipped_directory(path, &name);
        }
        if about.is_file() && !self.full {
            self.file(path, &name, about.len());
        } else if !about.is_file() && file_use(&name) != FileUse::Ignored {
            self.note(format!("{}: neither a file nor a directory", path.display()));
        }
        false
    }

    fn file(&mut self, path: &Path, name: &str, size: u64) {
        match file_use(name) {
            FileUse::Ignored => {}
            FileUse::Name => self.files.push(File::new(path.to_string_lossy(), "")),
            FileUse::Text if size > max_bytes(name) => {
                self.note(format!("{}: larger than {} MiB", path.display(), max_bytes(name) >> 20));
            }
            FileUse::Text => match read(path, max_bytes(name)).map(as_utf8) {
                Ok(bytes) if is_binary(&bytes) => {
                    self.note(format!("{}: not text", path.display()));
                }
                Ok(bytes) => self.text(path, bytes),
                Err(error) => self.note(format!("{}: {}", path.display(), error.kind())),
            },
        }
        self.full |= self.files.len() >= MAX_FILES || self.bytes >= MAX_TOTAL_BYTES;
    }

    fn text(&mut self, path: &Path, bytes: Vec<u8>) {
        self.bytes += bytes.len() as u64;
        let content = String::from_utf8(bytes).unwrap_or_else(|error| {
            self.note(format!("{}: replaced invalid UTF-8", path.display()));
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        });
        self.files.push(File::new(path.to_string_lossy(), content));
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(text);
        } else {
            self.unnamed += 1;
        }
    }

    fn end(mut self) -> Collected {
        if self.unnamed > 0 {
            self.notes.push(format!("{} more", self.unnamed));
        }
        if self.links > 0 {
            self.notes.push(format!("{} symbolic links not followed", self.links));
        }
        if self.full {
            self.notes.push(format!(
                "the rest of the directory: limit of {MAX_FILES} files, {MAX_ENTRIES} entries or {} MiB reached",
                MAX_TOTAL_BYTES >> 20
            ));
        }
        if self.files.is_empty() {
            self.notes.push("no document, code, notebook or package list found".to_owned());
        }
        Collected { files: self.files, notes: self.notes }
    }
}

/// Reads at most one byte more than the limit, to detect a longer file.
fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Converts UTF-16, as `pip freeze > requirements.txt` writes on Windows, and removes a byte order mark.
fn as_utf8(mut bytes: Vec<u8>) -> Vec<u8> {
    let unit: fn([u8; 2]) -> u16 = match bytes.as_slice() {
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        [0xef, 0xbb, 0xbf, ..] => return bytes.split_off(3),
        _ => return bytes,
    };
    let units: Vec<_> = bytes[2..].as_chunks().0.iter().map(|pair| unit(*pair)).collect();
    String::from_utf16_lossy(&units).into_bytes()
}

fn max_bytes(name: &str) -> u64 {
    let notebook =
        Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("ipynb"));
    if notebook { MAX_NOTEBOOK_BYTES } else { MAX_FILE_BYTES }
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(8 << 10).any(|byte| *byte == 0)
}

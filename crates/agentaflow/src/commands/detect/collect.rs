//! Reads what `detect` looks at, and no more: folders may be endless, files huge, and neither may be text.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use agentaflow_manifest::detect::File;
use anyhow::{Context as _, Result};

use crate::{failure, files};

/// The most that is read of one file.
const MOST_BYTES: u64 = 1 << 20;
/// The same for a notebook: most of it are pictures, which are left out.
const MOST_OF_NOTEBOOK: u64 = 16 << 20;
/// The most that is read in all.
const MOST_IN_ALL: u64 = 32 << 20;
/// The most files of a folder that are read.
const MOST_FILES: usize = 2_000;
/// The most entries of folders that are looked at.
const MOST_ENTRIES: usize = 100_000;
/// How deep folders are followed.
const DEEPEST: usize = 24;
/// How many files that were left out are named.
const NAMED: usize = 20;

/// What is to be looked at.
#[derive(Debug)]
pub(super) enum Target {
    Text(String),
    Files(Collected),
}

/// Files that were read, and what is to be said about the others.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) files: Vec<File>,
    pub(super) notes: Vec<String>,
}

/// Reads what the arguments name: `-` is standard input, what exists is a file or folder, the rest is a text.
pub(super) fn target(arguments: &[String]) -> Result<Target> {
    if arguments == ["-"] {
        return standard_input();
    }
    // A link to nothing is a file that cannot be read, not a text.
    let exists = |argument: &String| fs::symlink_metadata(argument).is_ok();
    if !arguments.iter().any(exists) {
        if let Some(path) = arguments.iter().find(|argument| is_like_a_path(argument)) {
            return Err(failure::not_there(format!(
                "cannot read `{path}`: there is no such file or folder; a text with spaces is looked at as it stands"
            )));
        }
        return Ok(Target::Text(arguments.join(" ")));
    }
    if let Some(missing) = arguments.iter().find(|argument| !exists(argument)) {
        return Err(failure::not_there(format!(
            "cannot read `{missing}`: there is no such file or folder, and a text cannot be mixed with files"
        )));
    }
    let mut walk = Walk::default();
    for argument in arguments {
        walk.named(Path::new(argument))?;
    }
    Ok(Target::Files(walk.end()))
}

fn standard_input() -> Result<Target> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .context("cannot read standard input")?;
    let mut notes = Vec::new();
    if bytes.len() as u64 > MOST_BYTES {
        bytes.truncate(MOST_BYTES as usize);
        notes.push(format!("standard input: only the first {} MiB were read", MOST_BYTES >> 20));
    }
    let bytes = as_utf8(bytes);
    if bytes.contains(&0) {
        anyhow::bail!("standard input is not text: write a text, or name a file");
    }
    let content = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Target::Files(Collected { files: vec![File::new("(standard input)", content)], notes }))
}

/// One word that looks like the name of a file, and not like a requirement.
fn is_like_a_path(argument: &str) -> bool {
    let one_word = !argument.contains(char::is_whitespace);
    let ending = Path::new(argument).extension().and_then(|ending| ending.to_str());
    let known = ending.is_some_and(|ending| {
        ["md", "txt", "py", "ipynb", "toml", "yaml", "yml", "json"].contains(&ending)
    });
    let begins = ["./", "../", "/", "~/"].iter().any(|start| argument.starts_with(start));
    one_word && (begins || known || argument.ends_with('/'))
}

/// What a file's name says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    /// It is read.
    Text,
    /// Its name is enough.
    Name,
    /// It says nothing about what work needs.
    Nothing,
}

fn worth(name: &str) -> Worth {
    let name = name.to_lowercase();
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    match ending {
        "safetensors" | "gguf" | "onnx" | "pt" | "pth" | "ckpt" => return Worth::Name,
        "md" | "txt" | "rst" | "adoc" | "py" | "ipynb" | "toml" | "yaml" | "yml" | "cfg" | "in"
        | "sh" | "cu" | "cuh" => return Worth::Text,
        _ => {}
    }
    let known = ["dockerfile", "containerfile", "readme", "makefile", "pipfile", "requirements"];
    let starts = known.iter().any(|start| name.starts_with(start)) && ending != "lock";
    if starts || name == "package.json" { Worth::Text } else { Worth::Nothing }
}

fn is_skipped_folder(path: &Path, name: &str) -> bool {
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
    /// A file or folder that the user named: links are followed here, and only here.
    fn named(&mut self, path: &Path) -> Result<()> {
        let context = || format!("cannot read `{}`", path.display());
        let about = fs::metadata(path).with_context(context)?;
        if about.is_dir() {
            fs::read_dir(path).with_context(context)?;
            self.folder(path);
            return Ok(());
        }
        if !files::comes_to_an_end(path, &about) {
            return Err(failure::usage(format!(
                "`{}` is neither a file nor a folder: name one, or write `-` for standard input",
                path.display()
            )));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if worth(&name) == Worth::Name {
            self.files.push(File::new(path.to_string_lossy(), ""));
            return Ok(());
        }
        let most = most(&name);
        let mut bytes = read(path, most).with_context(context)?;
        if bytes.len() as u64 > most {
            bytes.truncate(most as usize);
            self.note(format!("{}: only the first {} MiB were read", path.display(), most >> 20));
        }
        let bytes = as_utf8(bytes);
        if is_binary(&bytes) {
            anyhow::bail!(
                "`{}` is not a text: name a text, a notebook or a folder",
                path.display()
            );
        }
        self.text(path, bytes);
        Ok(())
    }

    /// Everything below a folder, in the order of names.
    fn folder(&mut self, top: &Path) {
        let mut waiting: Vec<(PathBuf, usize)> = vec![(top.to_owned(), 0)];
        while let Some((folder, depth)) = waiting.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) => {
                    self.note(format!("{}: {}", folder.display(), error.kind()));
                    continue;
                }
            };
            let room = MOST_ENTRIES.saturating_sub(self.entries);
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
            waiting.extend(below.into_iter().rev());
            if self.full {
                return;
            }
        }
    }

    /// Reads a file of a folder; true for a folder to go into.
    fn entry(&mut self, path: &Path, depth: usize) -> bool {
        let Ok(about) = fs::symlink_metadata(path) else { return false };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if about.is_symlink() {
            self.links += 1;
            return false;
        }
        if about.is_dir() {
            let too_deep = depth >= DEEPEST;
            if too_deep {
                self.note(format!("{}: more than {DEEPEST} folders deep", path.display()));
            }
            return !too_deep && !is_skipped_folder(path, &name);
        }
        if about.is_file() && !self.full {
            self.file(path, &name, about.len());
        } else if !about.is_file() && worth(&name) != Worth::Nothing {
            self.note(format!("{}: neither a file nor a folder", path.display()));
        }
        false
    }

    fn file(&mut self, path: &Path, name: &str, size: u64) {
        match worth(name) {
            Worth::Nothing => {}
            Worth::Name => self.files.push(File::new(path.to_string_lossy(), "")),
            Worth::Text if size > most(name) => {
                self.note(format!("{}: larger than {} MiB", path.display(), most(name) >> 20));
            }
            Worth::Text => match read(path, most(name)).map(as_utf8) {
                Ok(bytes) if is_binary(&bytes) => {
                    self.note(format!("{}: not a text", path.display()));
                }
                Ok(bytes) => self.text(path, bytes),
                Err(error) => self.note(format!("{}: {}", path.display(), error.kind())),
            },
        }
        self.full |= self.files.len() >= MOST_FILES || self.bytes >= MOST_IN_ALL;
    }

    fn text(&mut self, path: &Path, bytes: Vec<u8>) {
        self.bytes += bytes.len() as u64;
        let content = String::from_utf8(bytes).unwrap_or_else(|error| {
            self.note(format!("{}: not all of it is UTF-8; the rest was read", path.display()));
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        });
        self.files.push(File::new(path.to_string_lossy(), content));
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < NAMED {
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
            self.notes.push(format!("{} symbolic links: not followed", self.links));
        }
        if self.full {
            self.notes.push(format!(
                "the rest of the folder: more than {MOST_FILES} files, {MOST_ENTRIES} entries or {} MiB",
                MOST_IN_ALL >> 20
            ));
        }
        if self.files.is_empty() {
            self.notes.push(
                "there was nothing to read: no document, code, notebook or list of packages"
                    .to_owned(),
            );
        }
        Collected { files: self.files, notes: self.notes }
    }
}

/// At most one byte more than is wanted, so that it shows that there is more.
fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A text of Windows, where `pip freeze > requirements.txt` gives UTF-16 and editors put a mark before UTF-8, as others
/// write it.
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

fn most(name: &str) -> u64 {
    let notebook =
        Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("ipynb"));
    if notebook { MOST_OF_NOTEBOOK } else { MOST_BYTES }
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(8 << 10).any(|byte| *byte == 0)
}

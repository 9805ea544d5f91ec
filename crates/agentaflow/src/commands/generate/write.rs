//! Reads small files, and writes files without overwriting by accident.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write as _};
use std::path::Path;

use agentaflow_manifest::yaml::{self, Limits};
use anyhow::{Context as _, Result};

use crate::failure::{not_found, usage};
use crate::output;

/// Maximum size of a recipe or catalogue.
const MAX_BYTES: u64 = 1 << 20;

/// Writes to stdout or to a file, which must not exist unless `force` is set.
pub(super) fn write(text: &str, file: Option<&Path>, force: bool) -> Result<()> {
    let Some(file) = file.filter(|file| *file != Path::new("-")) else {
        return output::print(text);
    };
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let opened = match options.open(file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(usage(format!("`{}` exists; use --force to overwrite it", file.display())));
        }
        opened => opened,
    };
    let written =
        opened.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.with_context(|| format!("cannot write `{}`", file.display()))
}

pub(super) fn read(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = if is_stdin(file) {
        io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
    };
    let name = name(file);
    if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Err(not_found(format!("cannot read {name}: no such file or directory")));
    }
    read.with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(usage(format!("{name} is too large: limit 1 MiB")));
    }
    let text = yaml::text(&bytes, &Limits::default());
    text.map(str::to_owned).map_err(|error| usage(format!("{name}: {error}")))
}

/// Name of a file in messages.
pub(super) fn name(file: &Path) -> String {
    if is_stdin(file) { "stdin".to_owned() } else { format!("`{}`", file.display()) }
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

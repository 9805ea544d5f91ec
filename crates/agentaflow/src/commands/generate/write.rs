//! Small files in, text out; nothing is overwritten by accident.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::failure::usage;
use crate::output;

/// No recipe and no catalogue is longer.
const MOST: u64 = 1 << 20;

/// Writes to stdout, or to a file that must not be there.
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
            return Err(usage(format!(
                "`{}` is there already: --force overwrites it",
                file.display()
            )));
        }
        opened => opened,
    };
    let written =
        opened.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.with_context(|| format!("cannot write `{}`", file.display()))
}

/// Reads a small file, or stdin.
pub(super) fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(MOST + 1).read_to_string(&mut text)
    } else {
        File::open(file).and_then(|file| file.take(MOST + 1).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read `{}`", file.display()))?;
    if text.len() as u64 > MOST {
        return Err(usage(format!(
            "`{}` is longer than a MiB: is it the right file?",
            file.display()
        )));
    }
    Ok(text)
}

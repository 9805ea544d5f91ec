//! Reads a container's output from the engine; `runtime/transcript.rs` keeps it.

use std::io;
use std::path::Path;

use bollard::Docker as Engine;
use bollard::query_parameters::LogsOptions;
use futures_util::StreamExt;

use super::fault;
use crate::runtime::transcript::{Copy, from_second};

/// How many lines are taken together, at most.
const AT_ONCE: usize = 1024;

/// Copies what there is and what comes, until the container is over.
pub(super) async fn follow(source: &Source<'_>) -> Result<(), String> {
    copy(source, true, 0).await
}

/// Copies what `follow` missed: the engine stops telling soon after the end, however much is left to tell.
pub(super) async fn complete(source: &Source<'_>) -> Result<(), String> {
    copy(source, false, from_second(source.folder)).await
}

/// Whose output goes where.
pub(super) struct Source<'a> {
    pub(super) engine: &'a Engine,
    /// The container.
    pub(super) id: &'a str,
    /// The task's folder.
    pub(super) folder: &'a Path,
    /// Bytes of `output.log` that are kept.
    pub(super) limit: u64,
}

async fn copy(source: &Source<'_>, follow: bool, since: i32) -> Result<(), String> {
    let told = |error: io::Error| format!("cannot write `output.log`: {error}");
    let mut copy = Copy::open(source.folder, source.limit).map_err(told)?;
    let options = LogsOptions {
        follow,
        stdout: true,
        stderr: true,
        timestamps: true,
        since,
        tail: "all".to_owned(),
        ..LogsOptions::default()
    };
    // Many lines at once when they come fast: a write for each would be slower than the engine.
    let mut lines = source.engine.logs(source.id, Some(options)).ready_chunks(AT_ONCE);
    let mut ended = Ok(());
    while let Some(some) = lines.next().await {
        // No pause between taking and writing: when this is dropped, nothing is half done.
        for line in some {
            match line {
                Ok(line) => copy.take(&line.into_bytes()).map_err(told)?,
                Err(error) => ended = Err(fault::cause(&error)),
            }
        }
        copy.flush().map_err(told)?;
    }
    ended.and(copy.save().map_err(told))
}

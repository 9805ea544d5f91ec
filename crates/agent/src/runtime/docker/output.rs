//! Reads a container's output from Docker; `runtime/transcript.rs` stores it.

use std::io;
use std::path::Path;

use bollard::Docker as DockerClient;
use bollard::query_parameters::LogsOptions;
use futures_util::StreamExt;

use super::fault;
use crate::runtime::transcript::{OutputCopy, from_second};

/// Maximum number of lines per write.
const CHUNK_LINES: usize = 1024;

/// Copies existing and new output until the container ends.
pub(super) async fn follow(source: &OutputSource<'_>) -> Result<(), String> {
    copy(source, true, 0).await
}

/// Copies the output that `follow` missed: Docker closes the stream soon after the end, even with output left.
pub(super) async fn complete(source: &OutputSource<'_>) -> Result<(), String> {
    copy(source, false, from_second(source.folder)).await
}

pub(super) struct OutputSource<'a> {
    pub(super) client: &'a DockerClient,
    pub(super) id: &'a str,
    pub(super) folder: &'a Path,
    /// Maximum size of `output.log` in bytes.
    pub(super) limit: u64,
}

async fn copy(source: &OutputSource<'_>, follow: bool, since: i32) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write `output.log`: {error}");
    let mut copy = OutputCopy::open(source.folder, source.limit).map_err(failed)?;
    let options = LogsOptions {
        follow,
        stdout: true,
        stderr: true,
        timestamps: true,
        since,
        tail: "all".to_owned(),
        ..LogsOptions::default()
    };
    // One write for many lines: a write per line would be slower than Docker.
    let mut lines = source.client.logs(source.id, Some(options)).ready_chunks(CHUNK_LINES);
    let mut ended = Ok(());
    while let Some(some) = lines.next().await {
        // No await between `take` and `flush`: a dropped future leaves no partial state.
        for line in some {
            match line {
                Ok(line) => copy.take(&line.into_bytes()).map_err(failed)?,
                Err(error) => ended = Err(fault::cause(&error)),
            }
        }
        copy.flush().map_err(failed)?;
    }
    ended.and(copy.save().map_err(failed))
}

//! Reads a pod's output through the API server; the agent's transcript stores each byte once.

use std::path::Path;

use agentaflow_agent::runtime::transcript::{OutputCopy, from_second};
use futures_util::AsyncBufReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;

use crate::fault;

/// Longer lines are split.
const MAX_LINE: usize = 1 << 20;

pub(crate) struct OutputSource<'a> {
    pub(crate) pods: &'a Api<Pod>,
    pub(crate) pod: &'a str,
    /// Task folder.
    pub(crate) folder: &'a Path,
    /// Maximum size of `output.log` in bytes.
    pub(crate) limit: u64,
}

/// Copies existing and new output until the container ends.
pub(crate) async fn follow(source: &OutputSource<'_>) -> Result<(), String> {
    copy(source, true).await
}

/// Copies the output that `follow` missed.
pub(crate) async fn complete(source: &OutputSource<'_>) -> Result<(), String> {
    copy(source, false).await
}

async fn copy(source: &OutputSource<'_>, follow: bool) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write `output.log`: {error}");
    let since = jiff::Timestamp::from_second(from_second(source.folder).into()).ok();
    let since_time = since.filter(|since| since.as_second() > 0);
    let params = LogParams { follow, timestamps: true, since_time, ..LogParams::default() };
    let stream = source.pods.log_stream(source.pod, &params).await;
    let mut stream = Box::pin(stream.map_err(|error| fault::message(&error))?);
    let mut copy = OutputCopy::open(source.folder, source.limit).map_err(failed)?;
    let mut lines = Lines::default();
    let ended = loop {
        let bytes = match stream.fill_buf().await {
            Ok([]) => break Ok(()),
            Ok(bytes) => bytes,
            Err(error) => break Err(format!("log stream interrupted: {error}")),
        };
        let count = bytes.len();
        // No await between `take` and `flush`: a dropped future leaves no partial state.
        for line in lines.split(bytes) {
            copy.take(&line).map_err(failed)?;
        }
        copy.flush().map_err(failed)?;
        stream.as_mut().consume_unpin(count);
    };
    if ended.is_ok() && !lines.rest.is_empty() {
        copy.take(&lines.rest).map_err(failed)?;
        copy.flush().map_err(failed)?;
    }
    ended.and(copy.save().map_err(failed))
}

/// Splits a stream into lines, and long lines into parts with the timestamp of the line.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Returns the complete lines.
    fn split(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            while self.rest.len() > MAX_LINE {
                let time = time_of(&self.rest).to_vec();
                let tail = self.rest.split_off(MAX_LINE);
                whole.push(std::mem::replace(&mut self.rest, [time, tail].concat()));
            }
            if self.rest.ends_with(b"\n") {
                whole.push(std::mem::take(&mut self.rest));
            }
        }
        whole
    }
}

/// Leading timestamp of a line with the following space.
fn time_of(line: &[u8]) -> &[u8] {
    let space = line.iter().take(40).position(|byte| *byte == b' ');
    space.map_or(&[], |at| &line[..=at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_complete_for_any_chunk_size_and_parts_of_long_lines_have_the_timestamp() {
        let time = "2026-11-15T06:43:29.120456789Z ";
        let text = format!("{time}one\n{time}two\n{time}rest");
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let parts = text.as_bytes().chunks(size).flat_map(|bytes| lines.split(bytes));
            let parts: Vec<Vec<u8>> = parts.collect();
            assert_eq!(parts, [format!("{time}one\n"), format!("{time}two\n")].map(Vec::from));
            assert_eq!(lines.rest, format!("{time}rest").into_bytes(), "{size}");
        }
        let mut lines = Lines::default();
        let long = format!("{time}{}\n", "x".repeat(3 << 20));
        let parts = lines.split(long.as_bytes());
        assert_eq!(parts.len(), 4);
        assert!(parts.iter().all(|part| part.starts_with(time.as_bytes())));
        let length: usize = parts.iter().map(|part| part.len() - time.len()).sum();
        assert_eq!(length, (3 << 20) + 1);
    }
}

//! Reads a pod's output from its kubelet, through the API server; the agent's transcript keeps each byte once.

use std::path::Path;

use agentaflow_agent::runtime::transcript::{Copy, from_second};
use futures_util::AsyncBufReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;

use crate::fault;

/// Lines longer than this are taken in parts.
const LONGEST_LINE: usize = 1 << 20;

/// Whose output goes where.
pub(crate) struct Source<'a> {
    pub(crate) pods: &'a Api<Pod>,
    pub(crate) pod: &'a str,
    /// The task's folder.
    pub(crate) folder: &'a Path,
    /// Bytes of `output.log` that are kept.
    pub(crate) limit: u64,
}

/// Copies what there is and what comes, until the container is over.
pub(crate) async fn follow(source: &Source<'_>) -> Result<(), String> {
    copy(source, true).await
}

/// Copies what `follow` missed.
pub(crate) async fn complete(source: &Source<'_>) -> Result<(), String> {
    copy(source, false).await
}

async fn copy(source: &Source<'_>, follow: bool) -> Result<(), String> {
    let unwritten = |error: std::io::Error| format!("cannot write `output.log`: {error}");
    let since = jiff::Timestamp::from_second(from_second(source.folder).into()).ok();
    let since_time = since.filter(|since| since.as_second() > 0);
    let how = LogParams { follow, timestamps: true, since_time, ..LogParams::default() };
    let stream = source.pods.log_stream(source.pod, &how).await;
    let mut stream = Box::pin(stream.map_err(|error| fault::words(&error))?);
    let mut copy = Copy::open(source.folder, source.limit).map_err(unwritten)?;
    let mut lines = Lines::default();
    let ended = loop {
        let bytes = match stream.fill_buf().await {
            Ok([]) => break Ok(()),
            Ok(bytes) => bytes,
            Err(error) => break Err(format!("the output broke off: {error}")),
        };
        let count = bytes.len();
        // No pause between taking and writing: when this is dropped, nothing is half done.
        for line in lines.split(bytes) {
            copy.take(&line).map_err(unwritten)?;
        }
        copy.flush().map_err(unwritten)?;
        stream.as_mut().consume_unpin(count);
    };
    if ended.is_ok() && !lines.rest.is_empty() {
        copy.take(&lines.rest).map_err(unwritten)?;
        copy.flush().map_err(unwritten)?;
    }
    ended.and(copy.save().map_err(unwritten))
}

/// Cuts a stream into lines, and lines that are too long into parts with the time of the line.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// The lines that are whole by now.
    fn split(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            while self.rest.len() > LONGEST_LINE {
                let time = time_of(&self.rest).to_vec();
                let tail = self.rest.split_off(LONGEST_LINE);
                whole.push(std::mem::replace(&mut self.rest, [time, tail].concat()));
            }
            if self.rest.ends_with(b"\n") {
                whole.push(std::mem::take(&mut self.rest));
            }
        }
        whole
    }
}

/// The time in front of a line, with the space behind it.
fn time_of(line: &[u8]) -> &[u8] {
    let space = line.iter().take(40).position(|byte| *byte == b' ');
    space.map_or(&[], |at| &line[..=at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_the_stream_is_cut_and_long_ones_in_parts_that_keep_their_time() {
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
        let told: usize = parts.iter().map(|part| part.len() - time.len()).sum();
        assert_eq!(told, (3 << 20) + 1);
    }
}

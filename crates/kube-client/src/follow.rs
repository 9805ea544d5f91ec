//! Follows the output of a container to its end; an interrupted connection resumes at the same line.
//!
//! The API server resumes logs only at whole seconds. Each line is therefore requested with its timestamp, and lines of the
//! last second that were delivered before are skipped.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{AsyncBufRead, AsyncBufReadExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::LogParams;
use tokio::time::{Instant, sleep};

use super::Failure;

/// Delay between two connection attempts.
const PAUSE: Duration = Duration::from_millis(300);

/// Longest outage of the API server before following ends.
const PATIENCE: Duration = Duration::from_mins(2);

type Lines = Pin<Box<dyn AsyncBufRead + Send>>;

pub(super) struct Following {
    api: Api<core::Pod>,
    pod: String,
    /// Detects a new pod with the same name.
    uid: Option<String>,
    how: LogParams,
    /// `None` while the connection is interrupted.
    lines: Option<Lines>,
    position: LogPosition,
    /// The container had ended when the connection was opened: the output is complete.
    over: bool,
    /// Start of the current outage.
    away: Option<Instant>,
}

impl Following {
    /// Opens the first connection; returns its error without a retry.
    pub(super) async fn begin(
        api: Api<core::Pod>,
        pod: &core::Pod,
        how: LogParams,
    ) -> Result<Self, Failure> {
        let how = LogParams { timestamps: true, ..how };
        let (pod, uid) = (pod.metadata.name.clone().unwrap_or_default(), pod.metadata.uid.clone());
        let lines: Lines = Box::pin(api.log_stream(&pod, &how).await?);
        let position = LogPosition::default();
        Ok(Self { api, pod, uid, how, lines: Some(lines), position, over: false, away: None })
    }

    pub(super) fn pieces(self) -> BoxStream<'static, Result<Bytes, Failure>> {
        let next =
            |mut this: Self| async move { Ok(this.next().await?.map(|piece| (piece, this))) };
        futures_util::stream::try_unfold(self, next).boxed()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let Some(lines) = &mut self.lines else {
                if !self.reconnect().await? {
                    return Ok(None);
                }
                continue;
            };
            let mut piece = Vec::new();
            match lines.read_until(b'\n', &mut piece).await {
                // A truncated line is delivered again after the reconnection; only the last line may lack a newline.
                Ok(1..) if self.over || piece.ends_with(b"\n") => {
                    if let Some(text) = self.position.take(&piece) {
                        return Ok(Some(text));
                    }
                }
                Ok(0) if self.over => return Ok(None),
                _ => self.lines = None,
            }
        }
    }

    /// Reconnects; returns false at the end of the output.
    async fn reconnect(&mut self) -> Result<bool, Failure> {
        sleep(PAUSE).await;
        let tried = self.open().await;
        if tried.is_ok() {
            self.away = None;
            return Ok(true);
        }
        match tried.err() {
            Some(Failure::NotFound(_)) => Ok(false),
            Some(failure @ Failure::Forbidden(_)) => Err(failure),
            Some(failure) if self.away.get_or_insert_with(Instant::now).elapsed() > PATIENCE => {
                Err(failure)
            }
            _ => Ok(true),
        }
    }

    async fn open(&mut self) -> Result<(), Failure> {
        let pod = self.api.get(&self.pod).await?;
        if pod.metadata.uid != self.uid {
            return Err(Failure::NotFound(format!("the pod `{}` was made again", self.pod)));
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        self.over = matches!(phase, Some("Succeeded" | "Failed"));
        self.how.follow = !self.over;
        if let Some(second) = self.position.resume_second() {
            self.how.since_time = Some(second);
            self.how.tail_lines = None;
        }
        self.lines = Some(Box::pin(self.api.log_stream(&self.pod, &self.how).await?));
        Ok(())
    }
}

/// Position in the output.
#[derive(Debug, Default)]
struct LogPosition {
    /// Time of the first delivered line: earlier lines were not requested.
    first: Option<Timestamp>,
    /// Second of the newest line.
    second: i64,
    /// Delivered lines of that second.
    shown: usize,
    /// Lines of that second still to skip after a reconnection.
    skip: usize,
}

impl LogPosition {
    /// Second from which the output is requested again; `None` before the first line.
    fn resume_second(&mut self) -> Option<Timestamp> {
        self.first?;
        self.skip = self.shown;
        Timestamp::from_second(self.second).ok()
    }

    /// Text of a line without its timestamp; `None` if the line was delivered before.
    fn take(&mut self, line: &[u8]) -> Option<Bytes> {
        let Some((time, text)) = timed(line) else {
            // Messages of the kubelet have no timestamp.
            return Some(Bytes::copy_from_slice(line));
        };
        let second = time.as_second();
        if self.first.is_some_and(|first| time < first) && self.skip > 0 {
            return None;
        }
        if self.skip > 0 && second <= self.second {
            self.skip -= usize::from(second == self.second);
            return None;
        }
        self.skip = 0;
        self.first.get_or_insert(time);
        if second > self.second {
            self.second = second;
            self.shown = 0;
        }
        self.shown += usize::from(second == self.second);
        Some(Bytes::copy_from_slice(text))
    }
}

/// Splits a line into timestamp and text.
fn timed(line: &[u8]) -> Option<(Timestamp, &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let time = std::str::from_utf8(&line[..end]).ok()?.parse().ok()?;
    Some((time, &line[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(position: &mut LogPosition, lines: &[&str]) -> String {
        let taken = lines.iter().filter_map(|line| position.take(line.as_bytes()));
        taken.map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
    }

    #[test]
    fn repeated_lines_are_left_out_and_new_lines_are_not() {
        let all = [
            "2026-01-01T00:00:01.5Z a\n",
            "2026-01-01T00:00:02.100Z b\n",
            "2026-01-01T00:00:02.100Z c\n",
            // Stdout and stderr are interleaved.
            "2026-01-01T00:00:02.099Z d\n",
            "2026-01-01T00:00:03Z e",
        ];
        let from_second_2 = &all[1..];
        for shown in 2..=4 {
            let mut position = LogPosition::default();
            let before = texts(&mut position, &all[..shown]);
            assert_eq!(position.resume_second().unwrap().to_string(), "2026-01-01T00:00:02Z");
            assert_eq!(before + &texts(&mut position, from_second_2), "a\nb\nc\nd\ne", "{shown}");
        }
    }

    #[test]
    fn lines_before_the_requested_ones_are_left_out_when_their_second_is_repeated() {
        let mut position = LogPosition::default();
        let line = |millis: u32, text: &str| format!("2026-01-01T00:00:02.{millis:03}Z {text}\n");
        let (old, wanted, new) = (line(1, "old"), line(2, "wanted"), line(3, "new"));
        assert_eq!(texts(&mut position, &[&wanted]), "wanted\n");
        position.resume_second();
        assert_eq!(texts(&mut position, &[&old, &wanted, &new]), "new\n");
    }

    #[test]
    fn words_without_a_time_and_empty_lines_are_shown() {
        let mut position = LogPosition::default();
        assert!(position.resume_second().is_none(), "nothing to leave out");
        let lines = ["unable to retrieve container logs\n", "2026-01-01T00:00:02Z \n", "x\n"];
        assert_eq!(texts(&mut position, &lines), "unable to retrieve container logs\n\nx\n");
    }
}

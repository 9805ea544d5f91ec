//! What the HTTP library itself says to requests it cannot read, in the form of all other refusals.
//!
//! It answers those before any handler sees them, with an empty body and statuses that the API does not have
//! (414, 431). There is no hook for that, so its answer is recognised on its way out and replaced.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};

/// Longer answers are not the library's own.
const LONGEST: usize = 256;

/// A connection on which the library's own refusals are put into words.
#[derive(Debug)]
pub(super) struct InWords<T> {
    inner: T,
    /// A refusal in words on its way out, and how much of it has gone.
    pending: Option<(&'static [u8], usize)>,
}

impl<T> InWords<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, pending: None }
    }
}

impl<T: Write + Unpin> InWords<T> {
    /// Writes the refusal that stands for what the library wanted to write.
    fn instead(
        &mut self,
        cx: &mut Context<'_>,
        words: &'static [u8],
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        let (words, mut gone) = self.pending.unwrap_or((words, 0));
        while gone < words.len() {
            self.pending = Some((words, gone));
            let more = ready!(Pin::new(&mut self.inner).poll_write(cx, &words[gone..]))?;
            if more == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            gone += more;
        }
        self.pending = None;
        Poll::Ready(Ok(wanted))
    }
}

impl<T: Read + Unpin> Read for InWords<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for InWords<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match in_words(buf) {
            Some(words) => self.instead(cx, words, buf.len()),
            None => Pin::new(&mut self.inner).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            [only] => self.poll_write(cx, only),
            bufs => Pin::new(&mut self.inner).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// The refusal in words, if this is a whole answer of the library's own.
fn in_words(answer: &[u8]) -> Option<&'static [u8]> {
    let head = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    let own = answer.len() <= LONGEST
        && answer.ends_with(b"\r\n\r\n")
        && answer.windows(19).any(|part| part.eq_ignore_ascii_case(b"content-length: 0\r\n"));
    match head {
        b"400" if own => Some(MALFORMED),
        b"414" | b"431" if own => Some(TOO_LONG),
        _ => None,
    }
}

const MALFORMED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\n\
    content-length: 69\r\n\r\n{\"detail\":\"this is not a valid HTTP/1.1 request\",\"code\":\"malformed\"}\n";
const TOO_LONG: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\n\
    content-length: 84\r\n\r\n{\"detail\":\"the path or the headers of the request are too long\",\"code\":\"too_large\"}\n";

/// For a peer that holds too many connections already.
pub(super) const CROWDED: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\nretry-after: 10\r\n\
    content-type: application/json\r\ncontent-length: 92\r\n\r\n\
    {\"detail\":\"this address holds too many connections; close some\",\"code\":\"too_many_requests\"}\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_that_are_told_are_right() {
        for words in [MALFORMED, TOO_LONG, CROWDED] {
            let text = std::str::from_utf8(words).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
            assert!(serde_json::from_str::<agentaflow_api::error::ErrorBody>(body).is_ok());
        }
    }

    #[test]
    fn only_the_librarys_own_answers_are_replaced() {
        let own = |status: &str| {
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        };
        assert_eq!(in_words(own("431 Request Header Fields Too Large").as_bytes()), Some(TOO_LONG));
        assert_eq!(in_words(own("414 URI Too Long").as_bytes()), Some(TOO_LONG));
        assert_eq!(in_words(own("400 Bad Request").as_bytes()), Some(MALFORMED));
        assert_eq!(in_words(own("204 No Content").as_bytes()), None);
        assert_eq!(in_words(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nhello"), None);
        assert_eq!(in_words(b"HTTP/1.1 431 in a log"), None);
        assert_eq!(in_words(b""), None);
    }
}

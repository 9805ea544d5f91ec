//! How a command fails: one line that says what, where and what to do, and an exit code.
//!
//! 0 is success, 1 is a command that failed, 2 is a command line or a file that cannot be meant, 3 is something that is not
//! there, 4 is something that the caller may not do, 5 is a server that cannot be reached.

use std::io::{self, ErrorKind, IsTerminal};
use std::process::ExitCode;

use agentaflow_api::client::ClientError;
use agentaflow_api::error::ErrorCode;
use agentaflow_kube_client::Failure;

use crate::output;

/// The command line contradicts itself or leaves something out; the text says what to do.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Nobody said which server is meant; for scripts that is the same as one that cannot be reached.
#[derive(Debug)]
pub(crate) struct NoServer;

impl std::fmt::Display for NoServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "no server is known yet: `agentaflow up` starts one here, `agentaflow login URL` remembers one \
             elsewhere, `agentaflow login --kubernetes` a cluster, `agentaflow context use NAME` chooses one of \
             several, and AGENTAFLOW_SERVER with AGENTAFLOW_TOKEN names any other",
        )
    }
}

impl std::error::Error for NoServer {}

/// Something that was asked for by name is not there.
#[derive(Debug)]
pub(crate) struct NotThere(pub(crate) String);

impl std::fmt::Display for NotThere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotThere {}

/// What went wrong with some of several things has been said already; this is the exit code for the first.
#[derive(Debug)]
pub(crate) struct Told(u8);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not everything could be done")
    }
}

impl std::error::Error for Told {}

/// Does something with each of several things that the caller named. What goes wrong with one is said and keeps
/// nobody from the others, unless nobody answers at all.
pub(crate) async fn each(
    names: &[String],
    mut act: impl AsyncFnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut first = None;
    for name in names {
        let Err(error) = act(name).await else { continue };
        if names.len() == 1 || is_closed_pipe(&error) || code(&error) == UNREACHABLE {
            return Err(error);
        }
        say(&error);
        first.get_or_insert(code(&error));
    }
    first.map_or(Ok(()), |code| Err(Told(code).into()))
}

/// A file says something that cannot be meant; the text says where and what.
#[derive(Debug)]
pub(crate) struct BadFile(String);

impl std::fmt::Display for BadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadFile {}

/// The error for a file that cannot be meant.
pub(crate) fn bad_file(text: impl Into<String>) -> anyhow::Error {
    BadFile(text.into()).into()
}

/// The error for something that the caller named and that is not there.
pub(crate) fn not_there(text: impl Into<String>) -> anyhow::Error {
    NotThere(text.into()).into()
}

/// A [`Usage`] as the error that commands return.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// Says on stderr what went wrong and returns the exit code for it. A reader who went away
/// (`agentaflow … | head`) is no failure and gets no message.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<Told>() {
        say(error);
    }
    if error.is::<Usage>() {
        eprintln!("\nFor more information, try '--help'.");
    }
    ExitCode::from(code(error))
}

fn say(error: &anyhow::Error) {
    let label = if output::colour(io::stderr().is_terminal()) {
        "\u{1b}[1;31merror:\u{1b}[0m"
    } else {
        "error:"
    };
    eprintln!("{label} {}", sentence(error));
}

/// Whether the reader of the output went away.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(is_broken_pipe)
}

/// The exit code when nobody answers.
const UNREACHABLE: u8 = 5;

/// The exit code that says what kind of failure it is.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    if let Some(Told(code)) = error.downcast_ref() {
        return *code;
    }
    if error.is::<Usage>() || error.is::<BadFile>() {
        return 2;
    }
    if error.is::<NotThere>() {
        return 3;
    }
    if error.is::<NoServer>() {
        return UNREACHABLE;
    }
    if let Some(failure) = error.chain().find_map(|cause| cause.downcast_ref::<Failure>()) {
        return match failure {
            Failure::NotFound(_) => 3,
            Failure::Forbidden(_) => 4,
            Failure::Unreachable(_) => UNREACHABLE,
            Failure::Unsupported(_) => 2,
            Failure::Refused(_) | Failure::Other(_) => 1,
        };
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<ClientError>()) {
        Some(ClientError::Address { .. }) => 2,
        Some(ClientError::Refused { status: 404, .. }) => 3,
        Some(ClientError::Refused { status: 401 | 403, .. }) => 4,
        Some(ClientError::Unreachable { .. }) => UNREACHABLE,
        Some(error) if is_only_a_gateway(error) => UNREACHABLE,
        _ => 1,
    }
}

/// Something between us and the server answered, because the server did not.
fn is_only_a_gateway(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status: 502..=504, body } if body.code == ErrorCode::Unknown)
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// The whole chain as one line; a cause that its parent already repeats is not said twice.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let part = match cause.downcast_ref::<io::Error>() {
            Some(error) => plain(error),
            None => numberless(&with_advice(cause)),
        };
        if text.is_empty() {
            text = part;
        } else if !text.to_lowercase().contains(&part.to_lowercase()) {
            text = format!("{text}: {part}");
        }
    }
    text
}

/// What a cause says, with what to do about it where that is known here.
fn with_advice(cause: &(dyn std::error::Error + 'static)) -> String {
    match cause.downcast_ref::<Failure>() {
        Some(Failure::Unreachable(why)) if why.starts_with("the API server") => {
            return format!(
                "{}; is the cluster running, and is it the one that is meant? `agentaflow doctor` looks",
                numberless(why)
            );
        }
        Some(Failure::Unreachable(why)) if why.starts_with("no answer through service") => {
            return format!(
                "{why}; `agentaflow doctor` says what is missing, and `agentaflow login --kubernetes --scheduler URL` \
                 names a scheduler that answers elsewhere"
            );
        }
        Some(Failure::Forbidden(why)) if why.contains("is forbidden: ") => {
            return format!(
                "{why}; `agentaflow doctor` says what you may do, and which roles there are"
            );
        }
        _ => {}
    }
    match cause.downcast_ref::<ClientError>() {
        Some(ClientError::Unreachable { url, cause }) => unreachable(url, &numberless(cause)),
        Some(error) if is_only_a_gateway(error) => {
            format!("{error}: what is between does not reach the server; is it running?")
        }
        // A server of ours says more than a status.
        Some(ClientError::Refused { body, .. }) if body.code == ErrorCode::Unknown => {
            format!("{cause}, which no agentaflow server says like that; {ANOTHER}")
        }
        Some(ClientError::Garbled { .. }) => format!("{cause}; {ANOTHER}"),
        Some(ClientError::Refused { body, .. })
            if body.detail.ends_with("GET /queues lists them") =>
        {
            body.detail.replace("GET /queues lists them", "`agentaflow queue list` shows them")
        }
        Some(ClientError::Refused { status: 403, body })
            if body.detail.ends_with("a machine's key was sent") =>
        {
            format!("this token belongs to a machine, not to a user; {LOG_IN}")
        }
        Some(ClientError::Refused { status: 401, body }) => {
            // What a program would do next is not what a person does.
            let Some((said, _)) = body.detail.split_once("his call needs a user's token") else {
                return body.detail.clone();
            };
            let said = said.split(", or use the refresh token").next().unwrap_or_default();
            let said = said.strip_suffix(['t', 'T']).unwrap_or(said).trim_end_matches(['.', ' ']);
            let said = if said.is_empty() { "the server wants to know who you are" } else { said };
            format!("{said}; {LOG_IN}")
        }
        _ => cause.to_string(),
    }
}

/// A server that did not answer, and what to do about it.
fn unreachable(url: &str, cause: &str) -> String {
    let (cause, advice) = match cause {
        _ if cause.contains("InvalidContentType") => {
            ("it does not speak TLS", "write http:// where https:// is")
        }
        _ if cause.contains("invalid HTTP version") => {
            ("what answers does not speak HTTP", ANOTHER)
        }
        _ if cause.contains("failed to lookup address") => {
            ("there is no host of that name", ANOTHER)
        }
        _ if is_here(url) => (cause, "is it running? `agentaflow up` starts one"),
        _ => (
            cause,
            "is it running, and is that the one that is meant? `agentaflow context show` tells",
        ),
    };
    format!("cannot reach {url}: {cause}; {advice}")
}

/// Whether a server is to run on this machine.
fn is_here(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|here| host.starts_with(here))
}

/// What to do about an address that is not a server's.
const ANOTHER: &str = "is the address right? `agentaflow context show` tells which is meant";

/// What to do about a token that will not do.
const LOG_IN: &str = "log in with `agentaflow login URL --user NAME`, or set AGENTAFLOW_TOKEN to a key that is valid";

/// A text without the number of the system's error in it.
pub(crate) fn numberless(text: &str) -> String {
    let Some(start) = text.find(" (os error ") else { return text.to_owned() };
    let end = text[start..].find(')').map_or(text.len(), |end| start + end + 1);
    format!("{}{}", &text[..start], &text[end..])
}

/// What the system said, without its number.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::IsADirectory => "it is a folder, not a file".to_owned(),
        ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
        _ => {
            let text = error.to_string();
            let end = text.find(" (os error").unwrap_or(text.len());
            text[..end].to_lowercase()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentaflow_api::error::ErrorBody;
    use anyhow::Context as _;

    #[test]
    fn a_system_error_is_told_without_its_number() {
        let error = std::fs::read("/nowhere/at/all").context("cannot read `x.csv`").unwrap_err();
        assert_eq!(sentence(&error), "cannot read `x.csv`: there is no such file or folder");
    }

    #[test]
    fn a_server_that_nobody_named_is_one_that_cannot_be_reached() {
        assert_eq!(code(&NoServer.into()), 5);
    }

    #[test]
    fn a_server_that_does_not_answer_is_told_with_what_to_do() {
        let told = |url: &str, cause: &str| {
            let error = ClientError::Unreachable { url: url.to_owned(), cause: cause.to_owned() };
            sentence(&error.into())
        };
        let here = told("http://127.0.0.1:1/x", "Connection refused (os error 111)");
        assert!(here.ends_with("Connection refused; is it running? `agentaflow up` starts one"));
        let there = told("http://gpus.example.com/x", "Connection refused");
        assert!(there.contains("`agentaflow context show`") && !there.contains("agentaflow up"));
        let tls =
            told("https://127.0.0.1:1/x", "received corrupt message of type InvalidContentType");
        assert!(tls.ends_with("it does not speak TLS; write http:// where https:// is"), "{tls}");
    }

    #[test]
    fn a_gateway_without_a_server_is_one_that_cannot_be_reached() {
        let refused = |status, code: ErrorCode| {
            let body = ErrorBody::new(code, "http://x answered so");
            super::code(&ClientError::Refused { status, body }.into())
        };
        assert_eq!((refused(502, ErrorCode::Unknown), refused(504, ErrorCode::Unknown)), (5, 5));
        assert_eq!(
            (refused(503, ErrorCode::Unavailable), refused(500, ErrorCode::Unknown)),
            (1, 1)
        );
        let body = ErrorBody::new(ErrorCode::Unknown, "http://x answered 404 Not Found");
        let told = sentence(&ClientError::Refused { status: 404, body }.into());
        assert!(
            told.contains("404 Not Found, which no agentaflow server says like that"),
            "{told}"
        );
    }

    #[test]
    fn a_cause_that_was_said_is_not_repeated() {
        let error = anyhow::anyhow!("too small").context("the cluster is too small");
        assert_eq!(sentence(&error), "the cluster is too small");
        let refused = io::Error::from_raw_os_error(111);
        let error = anyhow::Error::from(refused).context("Connection refused (os error 111)");
        assert_eq!(sentence(&error), "Connection refused");
    }
}

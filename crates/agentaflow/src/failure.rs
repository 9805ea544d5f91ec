//! Error messages and exit codes.
//!
//! 0 success, 1 failure, 2 invalid command line or file, 3 not found, 4 forbidden, 5 unreachable.

use std::io::{self, ErrorKind, IsTerminal};
use std::process::ExitCode;

use agentaflow_api::client::{CertificateProblem, ClientError, UnreachableCause};
use agentaflow_api::error::{Credential, ErrorBody, ErrorCode, TokenProblem};
use agentaflow_kube_client::{Failure, Forbidden, Unreachable};

use crate::output;

#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// No server is configured; the exit code is that of an unreachable server.
#[derive(Debug)]
pub(crate) struct NoServer;

impl std::fmt::Display for NoServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "no server configured: run `agentaflow up` to start one, `agentaflow login URL` to use one, \
             `agentaflow login --kubernetes` to use a cluster, or set AGENTAFLOW_SERVER and AGENTAFLOW_TOKEN",
        )
    }
}

impl std::error::Error for NoServer {}

/// A named resource or file does not exist.
#[derive(Debug)]
pub(crate) struct NotFound(pub(crate) String);

impl std::fmt::Display for NotFound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotFound {}

/// All errors were printed; carries the exit code of the first.
#[derive(Debug)]
pub(crate) struct AlreadyReported(u8);

impl std::fmt::Display for AlreadyReported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("some operations failed")
    }
}

impl std::error::Error for AlreadyReported {}

/// Runs an operation for each name. An error is printed, and the remaining names are processed unless the backend is
/// unreachable.
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
        print_error(&error);
        first.get_or_insert(code(&error));
    }
    first.map_or(Ok(()), |code| Err(AlreadyReported(code).into()))
}

/// Invalid file; the text has position and cause.
#[derive(Debug)]
pub(crate) struct BadFile(String);

impl std::fmt::Display for BadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadFile {}

pub(crate) fn bad_file(text: impl Into<String>) -> anyhow::Error {
    BadFile(text.into()).into()
}

pub(crate) fn not_found(text: impl Into<String>) -> anyhow::Error {
    NotFound(text.into()).into()
}

pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    UsageError(text.into()).into()
}

/// Prints the error and returns its exit code. A closed pipe (`agentaflow … | head`) is not an error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<AlreadyReported>() {
        print_error(error);
    }
    if error.is::<UsageError>() {
        eprintln!("\nFor more information, try '--help'.");
    }
    ExitCode::from(code(error))
}

fn print_error(error: &anyhow::Error) {
    let label = if output::colour(io::stderr().is_terminal()) {
        "\u{1b}[1;31merror:\u{1b}[0m"
    } else {
        "error:"
    };
    let sentence = sentence(error);
    // Sentences may have several lines.
    let lines: Vec<_> = sentence.lines().map(output::stderr_line).collect();
    eprintln!("{label} {}", lines.join("\n"));
}

/// The reader of stdout closed the pipe.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(is_broken_pipe)
}

const UNREACHABLE: u8 = 5;

pub(crate) fn code(error: &anyhow::Error) -> u8 {
    if let Some(AlreadyReported(code)) = error.downcast_ref() {
        return *code;
    }
    if error.is::<UsageError>() || error.is::<BadFile>() {
        return 2;
    }
    if error.is::<NotFound>() {
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
            Failure::Refused { .. } | Failure::Other(_) => 1,
        };
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<ClientError>()) {
        Some(ClientError::Address { .. }) => 2,
        Some(ClientError::Refused { status: 404, .. }) => 3,
        Some(ClientError::Refused { status: 401 | 403, .. }) => 4,
        Some(ClientError::Unreachable { .. } | ClientError::Untrusted { .. }) => UNREACHABLE,
        Some(error) if is_gateway_error(error) => UNREACHABLE,
        _ => 1,
    }
}

/// A gateway responded in place of the server.
fn is_gateway_error(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status: 502..=504, body } if body.code == ErrorCode::Unknown)
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// The error chain on one line, without causes that a parent repeats.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let part = match cause.downcast_ref::<io::Error>() {
            Some(error) => io_message(error),
            None => without_os_code(&with_advice(cause)),
        };
        if text.is_empty() {
            text = part;
        } else if !text.to_lowercase().contains(&part.to_lowercase()) {
            text = format!("{text}: {part}");
        }
    }
    text
}

/// Message of a cause, with a remedy if known.
fn with_advice(cause: &(dyn std::error::Error + 'static)) -> String {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return kubernetes_advice(failure);
    }
    match cause.downcast_ref::<ClientError>() {
        Some(ClientError::Unreachable { url, cause }) => unreachable(url, cause),
        Some(ClientError::Untrusted { problem, .. }) => format!("{cause}; {}", untrusted(problem)),
        Some(error) if is_gateway_error(error) => {
            format!("{error}: the gateway cannot reach the server; is the server running?")
        }
        Some(ClientError::Refused { body, .. }) if body.code == ErrorCode::Unknown => {
            format!("{cause}, which is not a response of an agentaflow server; {ANOTHER}")
        }
        Some(ClientError::Garbled { .. }) => format!("{cause}; {ANOTHER}"),
        Some(ClientError::Refused { body, .. }) => {
            agentaflow_explain::uncapitalised(&refused(body))
        }
        _ => cause.to_string(),
    }
}

fn untrusted(problem: &CertificateProblem) -> &'static str {
    match problem {
        CertificateProblem::OtherKey { .. } => {
            "another machine may answer in place of the server; if the server has a new key, log in again with \
             `--server-fingerprint` from its log"
        }
        CertificateProblem::UnknownIssuer | CertificateProblem::NotPinned { .. } => {
            "log in with `agentaflow login URL`, which shows its fingerprint, or with `--ca-cert FILE`"
        }
        CertificateProblem::Expired | CertificateProblem::Invalid(_) => {
            "replace the certificate of the server"
        }
    }
}

fn kubernetes_advice(failure: &Failure) -> String {
    let advice = match failure {
        Failure::Unreachable(Unreachable::ApiServer(_)) => {
            "is the cluster running, and is it the right one? Run `agentaflow doctor`"
        }
        Failure::Unreachable(Unreachable::Scheduler(_)) => {
            "run `agentaflow doctor`, or name a scheduler with `agentaflow login --kubernetes --scheduler URL`"
        }
        Failure::Forbidden(Forbidden::Rbac(_)) => {
            "run `agentaflow doctor` to list your permissions and the available roles"
        }
        _ => return failure.to_string(),
    };
    format!("{}; {advice}", without_os_code(&failure.to_string()))
}

/// An error of the server, with the command that helps in place of the HTTP call that the server suggests. It continues
/// the line after `error:`, so it starts in lower case like the errors of this program.
fn refused(body: &ErrorBody) -> String {
    let details = &body.details;
    match (body.code, details.needs) {
        (ErrorCode::Unauthenticated, Some(Credential::User)) => {
            let problem = details.token.unwrap_or(TokenProblem::Missing);
            format!("{}; {LOG_IN}", agentaflow_explain::error::token_problem(problem))
        }
        (ErrorCode::Forbidden, Some(Credential::User))
            if details.sent == Some(Credential::Worker) =>
        {
            format!("This token belongs to a node or agent, not to a user; {LOG_IN}")
        }
        _ => match agentaflow_explain::error::advice(body) {
            Some(text) => text,
            None => body.detail.clone(),
        },
    }
}

/// Message for an unreachable server, with advice.
fn unreachable(url: &str, cause: &UnreachableCause) -> String {
    let advice = match cause {
        UnreachableCause::NotTls => "use http:// instead of https://",
        UnreachableCause::NotHttp | UnreachableCause::UnknownHost => ANOTHER,
        _ if is_local(url) => "start a server with `agentaflow up`",
        _ => "check the server and the address; `agentaflow context show` shows the current one",
    };
    format!("cannot reach {url}: {}; {advice}", without_os_code(&cause.to_string()))
}

/// The server is on this machine.
fn is_local(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|here| host.starts_with(here))
}

const ANOTHER: &str = "check the address with `agentaflow context show`";

const LOG_IN: &str =
    "log in with `agentaflow login URL --user NAME`, or set AGENTAFLOW_TOKEN to a valid key";

/// Removes ` (os error N)`.
pub(crate) fn without_os_code(text: &str) -> String {
    let Some(start) = text.find(" (os error ") else { return text.to_owned() };
    let end = text[start..].find(')').map_or(text.len(), |end| start + end + 1);
    format!("{}{}", &text[..start], &text[end..])
}

/// Message of a system error without its code.
fn io_message(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file or directory".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::IsADirectory => "is a directory".to_owned(),
        ErrorKind::InvalidData => "not valid UTF-8".to_owned(),
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
    use anyhow::Context as _;

    #[test]
    fn a_system_error_has_no_code() {
        let error = std::fs::read("/nowhere/at/all").context("cannot read `x.csv`").unwrap_err();
        assert_eq!(sentence(&error), "cannot read `x.csv`: no such file or directory");
    }

    #[test]
    fn a_missing_server_has_the_exit_code_of_an_unreachable_one() {
        assert_eq!(code(&NoServer.into()), 5);
    }

    #[test]
    fn an_unreachable_server_is_reported_with_advice() {
        let text = |url: &str, cause: UnreachableCause| {
            let error = ClientError::Unreachable { url: url.to_owned(), cause };
            sentence(&error.into())
        };
        let refused = |text: &str| UnreachableCause::Other(text.to_owned());
        let here = text("http://127.0.0.1:1/x", refused("Connection refused (os error 111)"));
        assert!(here.ends_with("Connection refused; start a server with `agentaflow up`"));
        let there = text("http://gpus.example.com/x", refused("Connection refused"));
        assert!(there.contains("`agentaflow context show`") && !there.contains("agentaflow up"));
        let tls = text("https://127.0.0.1:1/x", UnreachableCause::NotTls);
        assert!(
            tls.ends_with("the server does not use TLS; use http:// instead of https://"),
            "{tls}"
        );
    }

    #[test]
    fn a_gateway_error_has_the_exit_code_of_an_unreachable_server() {
        let refused = |status, code: ErrorCode| {
            let body = ErrorBody::new(code, "http://x answered so");
            super::code(&ClientError::Refused { status, body: Box::new(body) }.into())
        };
        assert_eq!((refused(502, ErrorCode::Unknown), refused(504, ErrorCode::Unknown)), (5, 5));
        assert_eq!(
            (refused(503, ErrorCode::Unavailable), refused(500, ErrorCode::Unknown)),
            (1, 1)
        );
        let body = ErrorBody::new(ErrorCode::Unknown, "http://x answered 404 Not Found");
        let message = sentence(&ClientError::Refused { status: 404, body: Box::new(body) }.into());
        assert!(message.contains("404 Not Found"), "{message}");
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let error = anyhow::anyhow!("too small").context("the cluster is too small");
        assert_eq!(sentence(&error), "the cluster is too small");
        let refused = io::Error::from_raw_os_error(111);
        let error = anyhow::Error::from(refused).context("Connection refused (os error 111)");
        assert_eq!(sentence(&error), "Connection refused");
    }
}

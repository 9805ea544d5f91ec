//! Text for errors of the API, for users of the command line.

use agentaflow_api::error::{ErrorBody, ErrorCode, ResourceKind, TokenProblem};

/// Defect of a token.
pub fn token_problem(problem: TokenProblem) -> &'static str {
    match problem {
        TokenProblem::Missing => "The server requires a token",
        TokenProblem::Header => "The Authorization header is not `Bearer <token>`",
        TokenProblem::Unrecognised => "The server does not recognise this token",
        TokenProblem::Expired => "This token has expired",
        TokenProblem::Revoked => "This token is revoked",
        TokenProblem::Inactive => "The user of this token is deactivated",
    }
}

/// Text with the command that helps, for errors whose message suggests an HTTP call.
pub fn advice(body: &ErrorBody) -> Option<String> {
    let resource = body.details.resource.as_ref()?;
    let name = resource.name.as_deref().unwrap_or_default();
    match (body.code, resource.kind) {
        (ErrorCode::Invalid | ErrorCode::NotFound, ResourceKind::Queue) => {
            Some(format!("Queue `{name}` not found; run `agentaflow queue list`"))
        }
        (ErrorCode::NodeBusy, ResourceKind::Node) => {
            Some(format!("Node `{name}` has live jobs; run `agentaflow drain {name}` first"))
        }
        _ => None,
    }
}

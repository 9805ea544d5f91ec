//! Text for errors of the API.

use agentaflow_api::error::{
    ErrorBody, ErrorCode, ErrorDetails, ResourceKind, ResourceRef, TokenProblem,
};

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

/// A missing object, and the call of the API that lists objects of its kind.
pub fn not_found(resource: &ResourceRef) -> String {
    let missing = missing(resource);
    match resource.kind {
        ResourceKind::Job => format!("{missing}; list jobs with GET /gpu-workers/jobs"),
        ResourceKind::Node => format!("{missing}; list nodes with GET /gpu-workers/nodes"),
        ResourceKind::Agent => format!("{missing}; list agents with GET /gpu-workers/agents"),
        ResourceKind::Queue => format!("{missing}; list queues with GET /queues"),
        ResourceKind::User => format!("{missing}; list users with GET /users"),
        ResourceKind::Path => format!("{missing}; GET /docs lists all paths"),
        _ => missing,
    }
}

/// Text with the command that helps, for errors whose message suggests an HTTP call.
pub fn advice(body: &ErrorBody) -> Option<String> {
    let resource = body.details.resource.as_ref()?;
    match (body.code, resource.kind) {
        (ErrorCode::Invalid | ErrorCode::NotFound, kind) => {
            let command = match kind {
                ResourceKind::Job => "jobs",
                ResourceKind::Node => "nodes",
                ResourceKind::Queue => "queue list",
                ResourceKind::User => "user list",
                _ => return None,
            };
            Some(format!("{}; run `agentaflow {command}`", missing(resource)))
        }
        (ErrorCode::NodeBusy, ResourceKind::Node) => {
            let name = resource.name.as_deref()?;
            Some(format!("Node `{name}` has live jobs; run `agentaflow drain {name}` first"))
        }
        _ => None,
    }
}

fn missing(resource: &ResourceRef) -> String {
    let kind = match resource.kind {
        ResourceKind::Job => "Job",
        ResourceKind::Node => "Node",
        ResourceKind::Agent => "Agent",
        ResourceKind::Queue => "Queue",
        ResourceKind::User => "User",
        ResourceKind::Key => "Key",
        ResourceKind::Task => "Task",
        ResourceKind::Registration => "Registration of node",
        ResourceKind::Silence => "Silence",
        ResourceKind::Sink => "Sink",
        ResourceKind::Certificate => "Certificate",
        ResourceKind::Path => "Path",
        ResourceKind::Unknown => "Object",
    };
    match &resource.name {
        Some(name) => format!("{kind} `{name}` not found"),
        None => format!("{kind} not found"),
    }
}

/// A value that violates a rule, with fields named by `name`: users may know them by other names than the API.
pub fn violation(details: &ErrorDetails, name: impl Fn(&str) -> String) -> Option<String> {
    let (field, problem) = (details.field.as_deref()?, details.problem.as_deref()?);
    let rule = format!("`{}` {problem}", name(field));
    Some(match &details.other_field {
        Some(other) => format!("{rule} `{}`", name(other)),
        None => rule,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(kind: ResourceKind) -> ResourceRef {
        ResourceRef { kind, name: Some("7".to_owned()) }
    }

    #[test]
    fn a_missing_object_has_advice_for_http_and_for_the_command_line() {
        let body = |kind| {
            let resource = Some(resource(kind));
            let details = ErrorDetails { resource, ..ErrorDetails::default() };
            ErrorBody { details, ..ErrorBody::new(ErrorCode::NotFound, "x") }
        };
        let job = ResourceKind::Job;
        assert_eq!(
            not_found(&resource(job)),
            "Job `7` not found; list jobs with GET /gpu-workers/jobs"
        );
        assert_eq!(advice(&body(job)).unwrap(), "Job `7` not found; run `agentaflow jobs`");
        assert_eq!(not_found(&resource(ResourceKind::Key)), "Key `7` not found");
        assert_eq!(advice(&body(ResourceKind::Key)), None);
    }

    #[test]
    fn a_violation_names_fields_by_the_words_of_the_reader() {
        let text = |value: &str| Some(value.to_owned());
        let mut details = ErrorDetails {
            field: text("gpu_fraction"),
            problem: text("must be below 1"),
            ..ErrorDetails::default()
        };
        assert_eq!(violation(&details, str::to_owned).unwrap(), "`gpu_fraction` must be below 1");
        details.problem = text("cannot be combined with");
        details.other_field = text("gpu_count");
        assert_eq!(
            violation(&details, str::to_uppercase).unwrap(),
            "`GPU_FRACTION` cannot be combined with `GPU_COUNT`"
        );
        assert_eq!(violation(&ErrorDetails::default(), str::to_owned), None);
    }
}

//! Start page of a program without a dashboard: the caller, the nodes and the latest jobs.

use std::fmt::Write as _;

use agentaflow_api::job::Job;
use agentaflow_api::node::{Node, NodeStatus};

use super::html::{document, escaped, prose};
use crate::settings::Settings;
use crate::store::UserRow;
use agentaflow_dashboard::NOT_BUILT;

/// Page without a login. `named` is true if the request used a host name of this server.
pub(crate) fn for_visitors(settings: &Settings, named: bool) -> String {
    let mut body = head(settings);
    if !named {
        body.push_str(
            "<p class=\"note\">This server does not know the name by which you reached it, so browsers cannot log \
             in under it. Use the address it listens on, or start it with <code>--public-host NAME</code>.</p>",
        );
    }
    body.push_str(
        "<p>You are not logged in. Open the one-time link that the server printed when it was started, or log in \
         with a password:</p><form method=\"post\" action=\"/auth/login\"><input name=\"username\" placeholder=\"name\" \
         autocomplete=\"username\" required> <input name=\"password\" type=\"password\" placeholder=\"password\" \
         autocomplete=\"current-password\" required> <button>Log in</button></form><p>Programs use a token:</p><pre>curl -H \"Authorization: Bearer $TOKEN\" …/gpu-workers/jobs/</pre>\
         <p>The token of the first admin is in the file <code>admin-token</code> of the server's data \
         directory.</p>",
    );
    body.push_str(LINKS);
    document("agentaflow", &body)
}

/// Page of a user, with the objects that the user may see.
pub(crate) fn for_user(
    settings: &Settings,
    user: &UserRow,
    nodes: &[Node],
    jobs: &[Job],
) -> String {
    let mut body = head(settings);
    let role = format!("{:?}", user.role).to_lowercase();
    let _ = write!(
        body,
        "<form method=\"post\" action=\"/auth/logout\"><p>Signed in as <strong>{}</strong> ({role}). \
         <button>Log out</button></p></form>",
        escaped(&user.username)
    );
    body.push_str(&node_table(nodes));
    body.push_str(&job_table(jobs));
    body.push_str(LINKS);
    document("agentaflow", &body)
}

const LINKS: &str = "<h2>More</h2><p><a href=\"/docs\">What the API offers</a> · \
    <a href=\"/openapi.json\">the same for programs</a> · <a href=\"/version\">version</a> · \
    <a href=\"/readyz\">health</a></p>";

fn head(settings: &Settings) -> String {
    let notice = settings
        .notice
        .as_deref()
        .map_or_else(String::new, |notice| format!("<p class=\"note\">{}</p>", escaped(notice)));
    format!("<h1>agentaflow</h1>{notice}<p class=\"note\">{}</p>", prose(NOT_BUILT))
}

fn node_table(nodes: &[Node]) -> String {
    let mut out = "<h2>Machines</h2>".to_owned();
    if nodes.is_empty() {
        out.push_str("<p>None has registered yet.</p>");
        return out;
    }
    out.push_str("<table><tr><th>Name<th>Status<th>GPUs<th>Free GPU memory<th>Jobs</tr>");
    for node in nodes.iter().take(50) {
        let simulated = if node.spec.simulated { " (simulated)" } else { "" };
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{} × {}{simulated}<td>{} of {} MiB<td>{}</tr>",
            escaped(&node.spec.node_name),
            status(node),
            node.spec.gpu_count,
            escaped(node.spec.gpu_type.as_deref().unwrap_or("GPU")),
            node.gpu_memory_available,
            node.spec.gpu_memory_total,
            node.current_jobs,
        );
    }
    out.push_str("</table>");
    if nodes.len() > 50 {
        let _ = write!(out, "<p>and {} more</p>", nodes.len() - 50);
    }
    out
}

fn status(node: &Node) -> &'static str {
    match node.status {
        NodeStatus::Pending => "pending",
        NodeStatus::Active => "active",
        NodeStatus::Inactive => "inactive",
        NodeStatus::Error => "error",
        NodeStatus::Maintenance => "maintenance",
    }
}

fn job_table(jobs: &[Job]) -> String {
    let mut out = "<h2>Latest jobs</h2>".to_owned();
    if jobs.is_empty() {
        out.push_str("<p>None yet.</p>");
        return out;
    }
    out.push_str("<table><tr><th>Number<th>Name<th>Status<th>Submitted<th>Cost<th></tr>");
    for job in jobs {
        let _ = write!(
            out,
            "<tr><td>{id}<td>{}<td>{}<td>{}<td>{}<td><a href=\"/gpu-workers/jobs/{id}/logs\">log</a> \
             <a href=\"/gpu-workers/jobs/{id}/explain\">why</a></tr>",
            escaped(job.spec.job_name.as_deref().unwrap_or("")),
            job.status.as_str(),
            job.created_at,
            job.cost,
            id = job.id,
        );
    }
    out.push_str("</table>");
    out
}

//! Requests for which any status is a valid response.

use http::Request;
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;

use super::{Failure, Unreachable};

/// Maximum size of a response body in bytes.
const LARGEST: usize = 16 << 20;

/// Status and body of the response.
pub(super) async fn send(
    client: &kube::Client,
    request: Request<Vec<u8>>,
) -> Result<(u16, String), Failure> {
    let answer = client.send(request.map(Body::from)).await?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body = body.map_err(|error| {
        Failure::Unreachable(Unreachable::Other(format!("the answer broke off: {error}")))
    })?;
    Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}

/// Message of an error response.
pub(super) fn message(text: &str) -> String {
    let reported: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let reported = reported.as_ref().and_then(|reported| reported["message"].as_str());
    reported.unwrap_or(text.trim()).chars().take(500).collect()
}

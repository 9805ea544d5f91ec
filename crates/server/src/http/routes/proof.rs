//! Proof of the server's identity for agents that know only a registration token.

use axum::Json as Answer;
use axum::extract::{Request, State};

use agentaflow_api::agent::{ServerProof, ServerProofRequest};
use agentaflow_api::client;
use agentaflow_api::error::ResourceKind;
use agentaflow_api::units::Stamp;

use crate::api_error::ApiError;
use crate::http::app::App;
use crate::http::caller::peer;
use crate::http::limits;
use crate::http::read::{body, object};
use crate::store::CredentialKind;

/// Proves to the holder of a registration token that this server serves with its own public key. The token stays with
/// the caller.
#[utoipa::path(post, path = "/auth/server-proof", tag = "auth",
    request_body(content = ServerProofRequest, example = json!({"nonce": "4f0c7a5d9e2b4c61"})),
    responses((status = 200, description = "Fingerprint and proofs", body = ServerProof)))]
pub(crate) async fn server_proof(
    State(app): State<App>,
    request: Request,
) -> Result<Answer<ServerProof>, ApiError> {
    let address = peer(request.extensions());
    app.auth.unauthenticated.take(address).map_err(|seconds| {
        ApiError::too_many("too many requests from this address; try again later", seconds)
    })?;
    let asked: ServerProofRequest = object(&body(request, limits::LOGIN).await?)?;
    if !(16..=128).contains(&asked.nonce.len()) {
        return Err(ApiError::invalid("nonce", "`nonce` must have 16 to 128 characters"));
    }
    let Some(certificates) = &app.site.certificates else {
        return Err(ApiError::absent(
            ResourceKind::Certificate,
            "this server has no certificate: it runs without TLS",
        ));
    };
    let fingerprint = certificates.fingerprint();
    let now = Stamp::now();
    let proofs = app.core.directory(|directory| {
        let tokens = directory.credentials.values();
        let tokens = tokens.filter(|row| row.kind == CredentialKind::Registration);
        let valid = tokens.filter(|row| directory.credential(&row.hash, now).is_some());
        valid.map(|row| client::server_proof(&row.hash, &asked.nonce, &fingerprint)).collect()
    });
    Ok(Answer(ServerProof { fingerprint: fingerprint.to_string(), proofs }))
}

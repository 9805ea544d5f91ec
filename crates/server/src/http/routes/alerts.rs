//! Alerts: list, silences, test messages.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;

use agentaflow_api::alert::{
    Alert, AlertReport, AlertTest, AlertTestResult, Silence, SilenceCreate,
};

use crate::api_error::ApiError;
use crate::http::app::App;
use crate::http::caller::{Admin, User, sees_all};
use crate::http::read::{Exact, Segments};

/// Alerts, silences and sinks: of the caller's own jobs and budget; admins and viewers see all.
#[utoipa::path(get, path = "/alerts", tag = "alerts", security(("user" = [])),
    responses((status = 200, description = "Alerts", body = AlertReport)))]
pub(crate) async fn report(
    State(app): State<App>,
    User(caller): User,
) -> Result<Answer<AlertReport>, ApiError> {
    let report = app.alerts.report();
    if sees_all(&caller) {
        return Ok(Answer(report));
    }
    let name = caller.user.username.as_str();
    let own = |alert: &Alert| alert.subject.user.as_deref() == Some(name);
    let alerts = report.alerts.into_iter().filter(own).collect();
    Ok(Answer(AlertReport { alerts, ..AlertReport::default() }))
}

/// Sends a test message to one sink or to all, and waits for the results.
#[utoipa::path(post, path = "/alerts/test", tag = "alerts", security(("user" = [])),
    request_body(content = AlertTest, example = json!({"sink": "ops"})),
    responses((status = 200, description = "Result of each sink", body = [AlertTestResult])))]
pub(crate) async fn test(
    State(app): State<App>,
    _: Admin,
    Exact(test): Exact<AlertTest>,
) -> Result<Answer<Vec<AlertTestResult>>, ApiError> {
    Ok(Answer(app.alerts.test(test.sink.as_deref()).await?))
}

/// Silences matching alerts for a time.
#[utoipa::path(post, path = "/alerts/silences", tag = "alerts", security(("user" = [])),
    request_body(content = SilenceCreate, example = json!({"match": {"kind": "gpu_hot", "node": "node-a"},
        "seconds": 3600, "comment": "Fan is being replaced"})),
    responses((status = 201, description = "Silence", body = Silence)))]
pub(crate) async fn silence(
    State(app): State<App>,
    Admin(caller): Admin,
    Exact(wanted): Exact<SilenceCreate>,
) -> Result<(StatusCode, Answer<Silence>), ApiError> {
    let silence = app.alerts.silence(wanted, &caller.user.username).await?;
    Ok((StatusCode::CREATED, Answer(silence)))
}

/// Ends a silence.
#[utoipa::path(delete, path = "/alerts/silences/{id}", tag = "alerts", security(("user" = [])),
    params(("id" = String, Path, description = "Id of the silence")),
    responses((status = 200, description = "Ended silence", body = Silence)))]
pub(crate) async fn unsilence(
    State(app): State<App>,
    _: Admin,
    path: Segments,
) -> Result<Answer<Silence>, ApiError> {
    Ok(Answer(app.alerts.unsilence(path.name("id")?).await?))
}

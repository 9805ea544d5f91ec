//! Jobs: submission, lists, explanations and cancellation.

use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

use agentaflow_api::account::Role;
use agentaflow_api::error::ResourceKind;
use agentaflow_api::explain::Explanation;
use agentaflow_api::ids::JobId;
use agentaflow_api::job::{Job, JobCreate, JobSpec, JobStatus, JobStatusUpdate, Runtime};
use agentaflow_api::lenient;
use agentaflow_api::trace::{TRACEPARENT, TraceContext};
use agentaflow_api::units::Secret;

use crate::api_error::ApiError;
use crate::auth::sha256_hex;
use crate::core::{Caller, Idempotency};
use crate::http::app::App;
use crate::http::caller::{Admin, ClientAddress, User, WorkerAuth, Writer, sees_all};
use crate::http::check::{check_job, check_status_update, idempotency_key, take_output};
use crate::http::limits;
use crate::http::pages::JobPage;
use crate::http::params::JobList;
use crate::http::read::{QueryParams, Raw, Segments, body, json_object, object, shape};
use crate::http::routes::link::write_piece;
use crate::http::routes::nodes::node_ref;
use crate::store::{JobFilter, JobRow};

/// Submits a job. With an `Idempotency-Key` header, a repeated call returns the job of the first one.
#[utoipa::path(post, path = "/gpu-workers/jobs", tag = "jobs", security(("user" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes retries safe for 24 hours"),
        ("traceparent" = Option<String>, Header, description = "Trace that the job continues (W3C Trace Context)")),
    request_body(content = JobCreate, example = json!({"job_name": "AI Training Job",
        "docker_image": "pytorch/pytorch", "docker_tag": "latest", "gpu_memory_required": 8192,
        "cpu_cores_required": 4, "memory_required": 16384, "input_data": {"dataset": "imagenet", "epochs": 100}})),
    responses((status = 201, description = "Job, stored durably", body = Job),
        (status = 200, description = "Job of an earlier request with this key", body = Job)))]
pub(crate) async fn create(
    State(app): State<App>,
    Writer(caller): Writer,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<(StatusCode, Answer<Job>), ApiError> {
    let mut job = read_job(&body)?;
    job.trace = trace(&headers);
    let idempotency = idempotency(&headers, &job, "")?;
    allowed(&caller, &job)?;
    Ok(answer(app.core.submit(&caller, job, None, idempotency).await?))
}

/// Submits a job for one node.
#[utoipa::path(post, path = "/gpu-workers/nodes/{node_id}/jobs", tag = "jobs", security(("user" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes retries safe for 24 hours")),
    request_body(content = JobCreate, example = json!({"docker_image": "pytorch/pytorch", "gpu_count": 1})),
    responses((status = 201, description = "Job, stored durably", body = Job),
        (status = 200, description = "Job of an earlier request with this key", body = Job)))]
pub(crate) async fn create_on_node(
    State(app): State<App>,
    Admin(caller): Admin,
    path: Segments,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<(StatusCode, Answer<Job>), ApiError> {
    let node = node_ref(&path)?;
    let place = app.core.node(&node)?.node_id;
    let mut job = read_job(&body)?;
    job.trace = trace(&headers);
    let idempotency = idempotency(&headers, &job, &place)?;
    Ok(answer(app.core.submit(&caller, job, Some(node), idempotency).await?))
}

/// Jobs, newest first: the caller's own; admins and viewers see all.
#[utoipa::path(get, path = "/gpu-workers/jobs", tag = "jobs", security(("user" = [])), params(JobList),
    responses((status = 200, description = "Jobs; `X-Total-Count` is the number of matches. A page ends early at about \
        16 MiB. `X-Next-Before`, if it is there, is the `before` of the next page; without it this was the last",
        body = [Job])))]
pub(crate) async fn list(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
) -> Result<JobPage, ApiError> {
    app.pages.jobs(&app.core, job_filter(&caller, &query)?).await
}

/// One job.
#[utoipa::path(get, path = "/gpu-workers/jobs/{job_id}", tag = "jobs", security(("user" = [])),
    params(("job_id" = i64, Path, description = "Job number")),
    responses((status = 200, description = "Job", body = Job)))]
pub(crate) async fn show(
    State(app): State<App>,
    User(caller): User,
    path: Segments,
) -> Result<Answer<Job>, ApiError> {
    let row = visible_job(&app, &caller, path.number("job_id")?).await?;
    Ok(Answer(app.core.show_job(row)))
}

/// Cancels a job: SIGTERM, then SIGKILL after the grace period.
#[utoipa::path(post, path = "/gpu-workers/jobs/{job_id}/cancel", tag = "jobs", security(("user" = [])),
    params(("job_id" = i64, Path, description = "Job number")),
    responses((status = 200, description = "Job; `status` becomes final when it has stopped", body = Job)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Writer(caller): Writer,
    path: Segments,
) -> Result<Answer<Job>, ApiError> {
    let row = visible_job(&app, &caller, path.number("job_id")?).await?;
    app.core.cancel(&caller, row.id).await.map(Answer)
}

/// Stops a job like a cancellation and marks it as completed.
#[utoipa::path(post, path = "/gpu-workers/jobs/{job_id}/complete", tag = "jobs", security(("user" = [])),
    params(("job_id" = i64, Path, description = "Job number")),
    responses((status = 200, description = "Job; `status` becomes final when it has stopped", body = Job)))]
pub(crate) async fn complete(
    State(app): State<App>,
    Writer(caller): Writer,
    path: Segments,
) -> Result<Answer<Job>, ApiError> {
    let row = visible_job(&app, &caller, path.number("job_id")?).await?;
    app.core.complete(&caller, row.id).await.map(Answer)
}

/// Records the status of a job that its worker reports.
#[utoipa::path(post, path = "/gpu-workers/jobs/{job_id}/status", tag = "jobs", security(("worker" = [])),
    params(("job_id" = i64, Path, description = "Job number")),
    request_body(content = JobStatusUpdate, example = json!({"job_id": 17, "status": "completed",
        "output_data": {"accuracy": 0.93}, "duration_seconds": 12.5})),
    responses((status = 200, description = "Updated job", body = Job)))]
pub(crate) async fn status(
    State(app): State<App>,
    WorkerAuth(worker): WorkerAuth,
    ClientAddress(address): ClientAddress,
    path: Segments,
    request: Request,
) -> Result<Answer<Job>, ApiError> {
    let job: JobId = path.number("job_id")?;
    let worker = app.core.identify(worker, address);
    let mut update: JobStatusUpdate = object(&body(request, limits::STATUS).await?)?;
    check_status_update(job, &update)?;
    if let Some(output) = take_output(&mut update)
        && let Some(task) = app.core.reported_task(job, &worker, address).await?
    {
        write_piece(&app, task, 0, output.as_bytes()).await?;
    }
    app.core.job_status(job, update, worker, address).await.map(Answer)
}

/// Pending reason, queue position and expected start of a job.
#[utoipa::path(get, path = "/gpu-workers/jobs/{job_id}/explain", tag = "jobs", security(("user" = [])),
    params(("job_id" = i64, Path, description = "Job number")),
    responses((status = 200, description = "Explanation", body = Explanation)))]
pub(crate) async fn explain(
    State(app): State<App>,
    User(caller): User,
    path: Segments,
) -> Result<Answer<Explanation>, ApiError> {
    check_plan_rate(&app, &caller)?;
    let row = visible_job(&app, &caller, path.number("job_id")?).await?;
    Ok(Answer(app.core.explain(&caller, row).await?))
}

/// Forecast for a job that is not submitted.
#[utoipa::path(post, path = "/gpu-workers/jobs/what-if", tag = "jobs", security(("user" = [])),
    request_body(content = JobCreate, example = json!({"docker_image": "pytorch/pytorch", "gpu_count": 4})),
    responses((status = 200, description = "Explanation", body = Explanation)))]
pub(crate) async fn what_if(
    State(app): State<App>,
    User(caller): User,
    Raw(body): Raw,
) -> Result<Answer<Explanation>, ApiError> {
    check_plan_rate(&app, &caller)?;
    let job = read_job(&body)?;
    app.core.what_if(&caller, job).await.map(Answer)
}

/// Limits the forecasts of an account, because each occupies a processor.
fn check_plan_rate(app: &App, caller: &Caller) -> Result<(), ApiError> {
    app.auth.plans.take(caller.user.id).map_err(|seconds| {
        ApiError::too_many("Too many what-if requests of this account; try again later", seconds)
    })
}

/// A job that the caller may see.
pub(crate) async fn visible_job(app: &App, caller: &Caller, id: JobId) -> Result<JobRow, ApiError> {
    let row = app.core.store().job(id).await?;
    let row = row.filter(|row| sees_all(caller) || row.user_id == caller.user.id);
    row.ok_or_else(|| ApiError::not_found(ResourceKind::Job, id))
}

/// Parses and validates a job. Its two parts are parsed one by one, so that the error can name the field.
pub(crate) fn read_job(body: &[u8]) -> Result<JobCreate, ApiError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Secrets {
        docker_password: Option<Secret>,
        #[serde(deserialize_with = "lenient::or_default")]
        secret_env: BTreeMap<String, Secret>,
    }
    let mut value = json_object(body)?;
    rename_old_fields(&mut value);
    let secrets: Secrets = shape(value.clone())?;
    let mut spec: JobSpec = shape(value)?;
    // Older clients send empty strings for absent values.
    for text in [&mut spec.docker_tag, &mut spec.docker_registry, &mut spec.docker_username] {
        text.take_if(|text| text.is_empty());
    }
    // A blank name cannot identify a job.
    spec.job_name.take_if(|name| name.trim().is_empty());
    let job = JobCreate {
        spec,
        docker_password: secrets.docker_password.filter(|password| !password.expose().is_empty()),
        secret_env: secrets.secret_env,
        trace: None,
    };
    check_job(&job)?;
    Ok(job)
}

/// Trace of the caller. A malformed header starts a new trace, as W3C Trace Context demands.
fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT)?.to_str().ok()?.parse().ok()
}

/// Moves fields of the original API to their present names; a field with the present name wins.
fn rename_old_fields(job: &mut Value) {
    const REQUIREMENTS: [(&str, &str); 5] = [
        ("gpu_memory", "gpu_memory_required"),
        ("cpu_cores", "cpu_cores_required"),
        ("memory", "memory_required"),
        ("storage", "storage_required"),
        ("gpu_count", "gpu_count"),
    ];
    let Value::Object(job) = job else { return };
    let required = job.remove("resource_requirements");
    let required = |name: &str| required.as_ref()?.get(name).cloned();
    let mut old: Vec<(&str, Option<Value>)> =
        REQUIREMENTS.iter().map(|(old, name)| (*name, required(old))).collect();
    old.push(("timeout_seconds", job.remove("timeout")));
    for (name, value) in old {
        let present = job.get(name).is_some_and(|present| !present.is_null());
        if let Some(value) = value.filter(|value| !present && !value.is_null()) {
            job.insert(name.to_owned(), value);
        }
    }
}

/// Rejects a job that the caller may not run.
fn allowed(caller: &Caller, job: &JobCreate) -> Result<(), ApiError> {
    let granted = caller.user.role == Role::Admin
        || caller.user.grants.iter().any(|grant| grant == Runtime::Process.as_str());
    if granted || job.spec.effective_runtime() != Runtime::Process {
        return Ok(());
    }
    Err(ApiError::forbidden(format!(
        "jobs that run as plain processes of a node need the grant `process`, which an admin gives with \
         `agentaflow user set {} --grant process` or PUT /users/{{id}}; or name an image to run in a container",
        caller.user.username
    )))
}

/// Key of the header with a hash of the request: the job, and the node if the path names one.
fn idempotency(
    headers: &HeaderMap,
    job: &JobCreate,
    place: &str,
) -> Result<Option<Idempotency>, ApiError> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = idempotency_key(key.as_bytes())?;
    // The parsed job: `null` and absent, `1` and `1.0` have the same hash.
    let mut bytes = serde_json::to_vec(job)
        .map_err(|_| ApiError::malformed("the job cannot be written as JSON again"))?;
    bytes.extend_from_slice(place.as_bytes());
    Ok(Some(Idempotency { key, body: sha256_hex(&bytes) }))
}

fn answer((job, new): (Job, bool)) -> (StatusCode, Answer<Job>) {
    (if new { StatusCode::CREATED } else { StatusCode::OK }, Answer(job))
}

fn job_filter(caller: &Caller, query: &QueryParams) -> Result<JobFilter, ApiError> {
    let (skip, limit) = query.page()?;
    let asked = query.cursor("user_id")?;
    let user = if sees_all(caller) { asked } else { Some(caller.user.id) };
    Ok(JobFilter {
        user,
        status: statuses(query.text("status")?.unwrap_or_default())?,
        queue: query.text("queue")?.map(str::to_owned),
        name: query.text("name")?.map(str::to_owned),
        before: query.cursor("before")?,
        skip,
        limit,
    })
}

fn statuses(text: &str) -> Result<Vec<JobStatus>, ApiError> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            serde_json::from_value(Value::String(word.to_owned())).map_err(|_| {
                let known: Vec<_> = JobStatus::ALL.iter().map(|status| status.as_str()).collect();
                ApiError::invalid("status", format!("`status` must be one of {}", known.join(", ")))
            })
        })
        .collect()
}

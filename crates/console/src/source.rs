//! Data source of the view.

use agentaflow_api::explain::Explanation;
use agentaflow_api::job::Job;
use futures_util::future::BoxFuture;

use crate::model::Snapshot;

/// A pending request to the source. The error is the text that the view shows.
pub type Request<'a, T> = BoxFuture<'a, Result<T, String>>;

/// Data source of the view. The view bounds the duration of each request.
pub trait Source: Send + Sync + 'static {
    /// Address shown in the header, such as `http://127.0.0.1:8000` or `namespace default`.
    fn address(&self) -> String;

    fn snapshot(&self) -> Request<'_, Snapshot>;

    fn explain<'a>(&'a self, job: &'a str) -> Request<'a, Explanation>;

    /// The last `lines` lines that the job wrote, cut to `bytes` bytes.
    fn logs<'a>(&'a self, job: &'a str, lines: u64, bytes: usize) -> Request<'a, Vec<u8>>;

    fn cancel<'a>(&'a self, job: &'a str) -> Request<'a, Job>;
}

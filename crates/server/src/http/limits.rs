//! All limits on request values.

pub(crate) use agentaflow_api::PAGE_MOST;

/// Bytes of a request body.
pub(crate) const BODY: usize = 1 << 20;
/// Bytes of the body of a login or another call without a token.
pub(crate) const LOGIN: usize = 16 << 10;
/// Bytes of a registration without a token in its header; the body may hold the token.
pub(crate) const STRANGER: usize = 64 << 10;
/// Nesting depth of JSON.
pub(crate) const DEPTH: usize = 64;
/// Bytes at which a page of jobs ends.
pub(crate) const PAGE_BYTES: usize = 16 << 20;
/// Bytes of an agent's report, which carries logs.
pub(crate) const REPORT: usize = 8 << 20;
/// Bytes of a status call, which carries the whole output of a job.
pub(crate) const STATUS: usize = 64 << 20;
/// Time for the transfer of a body.
pub(crate) const BODY_TIME: std::time::Duration = std::time::Duration::from_mins(1);
/// Default entries of a page.
pub(crate) const PAGE: u64 = 100;
/// Bytes of a text in a query.
pub(crate) const QUERY_TEXT: usize = 1024;
/// Bytes of a name.
pub(crate) const NAME: usize = 255;
/// Bytes of a line of human-readable text.
pub(crate) const TEXT: usize = 4096;
/// Bytes of a path or a URL.
pub(crate) const PLACE: usize = 2048;
/// Bytes of an image reference.
pub(crate) const IMAGE: usize = 512;
pub(crate) const ENV: usize = 512;
/// Bytes of the value of a variable: the kernel rejects programs with more than 128 KiB in one.
pub(crate) const ENV_VALUE: usize = 96 << 10;
/// Bytes of all variables together.
pub(crate) const ENV_ALL: usize = 512 << 10;
/// Arguments of a command.
pub(crate) const WORDS: usize = 1024;
/// Bytes of an argument of a command.
pub(crate) const WORD: usize = 96 << 10;
/// Volumes of a job.
pub(crate) const VOLUMES: usize = 64;
/// Tasks of a job.
pub(crate) const REPLICAS: u32 = 1024;
/// GPUs of one task or one node.
pub(crate) const GPUS: u32 = 1024;
/// CPU cores in thousandths.
pub(crate) const CPU_MILLI: u64 = 100_000_000;
/// MiB, or GiB of storage: a pebibyte.
pub(crate) const SIZE: u64 = 1 << 30;
/// Seconds of a timeout or an estimate: ten years.
pub(crate) const SECONDS: u64 = 10 * 366 * 24 * 3600;
/// Seconds between SIGTERM and SIGKILL.
pub(crate) const GRACE: u32 = 3600;
pub(crate) const RETRIES: u32 = 100;
/// Entries of free-form objects and lists.
pub(crate) const ENTRIES: usize = 1000;
/// Millionths of a dollar per hour: above the price of any machine.
pub(crate) const PRICE: i64 = 1_000_000_000_000;
/// Users or grants in a list.
pub(crate) const MEMBERS: usize = 1000;
/// MIG slices on one GPU.
pub(crate) const SLICES: usize = 8;
/// Reports and log chunks in one batch.
pub(crate) const REPORTS: usize = 10_000;
/// Days until a key expires.
pub(crate) const DAYS: u32 = 3650;
/// Millionths of a dollar of one credit.
pub(crate) const CREDIT: u64 = 1_000_000_000_000_000;

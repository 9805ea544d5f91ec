//! How much is too much: every limit on what callers send, in one place.

pub(crate) use agentaflow_api::PAGE_MOST;

/// Bytes of a body.
pub(crate) const BODY: usize = 1 << 20;
/// Bytes of a body of a login and the like, which strangers send.
pub(crate) const LOGIN: usize = 16 << 10;
/// Bytes of a registration whose token, if it has one, is in the body.
pub(crate) const STRANGER: usize = 64 << 10;
/// Levels of lists and objects in each other.
pub(crate) const DEPTH: usize = 64;
/// Bytes of a page of jobs after which it ends.
pub(crate) const PAGE_BYTES: usize = 16 << 20;
/// Bytes of an agent's report, which carries logs.
pub(crate) const REPORT: usize = 8 << 20;
/// How long a body may take to come in.
pub(crate) const BODY_TIME: std::time::Duration = std::time::Duration::from_mins(1);
/// Entries of a page when the caller does not say.
pub(crate) const PAGE: u64 = 100;
/// Bytes of a text in a query.
pub(crate) const QUERY_TEXT: usize = 1024;
/// Bytes of a name.
pub(crate) const NAME: usize = 255;
/// Bytes of a line of text that people read.
pub(crate) const TEXT: usize = 4096;
/// Bytes of a path or an address.
pub(crate) const PLACE: usize = 2048;
/// Bytes of an image reference.
pub(crate) const IMAGE: usize = 512;
/// Environment variables.
pub(crate) const ENV: usize = 512;
/// Bytes of the value of a variable: the kernel refuses to start programs with more than 128 KiB in one.
pub(crate) const ENV_VALUE: usize = 96 << 10;
/// Bytes of all variables together.
pub(crate) const ENV_ALL: usize = 512 << 10;
/// Words of a command.
pub(crate) const WORDS: usize = 1024;
/// Bytes of a word of a command.
pub(crate) const WORD: usize = 96 << 10;
/// Volumes of a job.
pub(crate) const VOLUMES: usize = 64;
/// Copies of a job.
pub(crate) const REPLICAS: u32 = 1024;
/// GPUs of one task or one node.
pub(crate) const GPUS: u32 = 1024;
/// CPU cores in thousandths.
pub(crate) const CPU_MILLI: u64 = 100_000_000;
/// MiB, or GiB of storage: a pebibyte.
pub(crate) const SIZE: u64 = 1 << 30;
/// Seconds of a timeout or an estimate: ten years.
pub(crate) const SECONDS: u64 = 10 * 366 * 24 * 3600;
/// Seconds between TERM and KILL.
pub(crate) const GRACE: u32 = 3600;
/// Tries.
pub(crate) const RETRIES: u32 = 100;
/// Entries of free objects and lists that the server keeps for callers.
pub(crate) const ENTRIES: usize = 1000;
/// Millionths of a dollar an hour: more than any machine.
pub(crate) const PRICE: i64 = 1_000_000_000_000;
/// Users or grants in a list.
pub(crate) const MEMBERS: usize = 1000;
/// MIG slices on one GPU.
pub(crate) const SLICES: usize = 8;
/// Reports and pieces of logs in one batch.
pub(crate) const REPORTS: usize = 10_000;
/// Days until a key ends.
pub(crate) const DAYS: u32 = 3650;
/// Millionths of a dollar that are paid in at once.
pub(crate) const CREDIT: u64 = 1_000_000_000_000_000;

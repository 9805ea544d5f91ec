//! The language of the scripts.
//!
//! A line is a command, arguments, and sections: a word such as `labels` or `taints` makes the arguments
//! behind it belong to that section. Times and spans are `90s`, `10m` or `1h30m`, CPU is cores
//! (`4`, `500m`), everything else is counted or in MiB.

mod arguments;
mod parse;
mod render;
mod run;

pub(crate) use run::ScriptRun;

//! System calls that neither the standard library nor `rustix` offers. The only crate of the workspace with `unsafe`
//! code; every other crate forbids it, and a test checks that.
//!
//! | module | system calls | reason |
//! |---|---|---|
//! | [`process`] | `clone3`, `fork`, `execve`, `close_range`, `keyctl` | a job enters its cgroups and gives up its rights before its program runs |
//! | [`device_filter`] | `bpf` | cgroup v2 filters device files only by a program in the kernel |
//! | [`memory`] | `madvise` | an idle agent keeps only the code in memory that it uses |
//!
//! Each `unsafe` block has a comment with its reason, and makes one call. All modules have safe interfaces: no argument of a
//! caller leads to undefined behaviour.

pub mod device_filter;
pub mod memory;
pub mod process;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;

//! Tests that skip themselves, because only the running machine shows that a condition is missing.
//!
//! The line passes the capture of the test harness: `cargo test` shows it, and `cargo xtask test` counts the test as skipped.

use std::io::Write as _;

/// Reports the enclosing test as skipped, with a reason like that of `format!`, and returns.
macro_rules! skip {
    ($($reason:tt)*) => {{
        fn here() {}
        $crate::skip::report(
            &$crate::skip::test_around(std::any::type_name_of_val(&here)),
            &format!($($reason)*),
        );
        return;
    }};
}
#[allow(unused_imports, reason = "not all test programs use the macro")]
pub(crate) use skip;

/// Path of the test from the type name of a function in it: `crate::module::test::{{closure}}::here`.
#[allow(dead_code, reason = "not all test programs use the macro")]
pub(crate) fn test_around(function: &str) -> String {
    let path = function.replace("::{{closure}}", "");
    let path = path.strip_suffix("::here").unwrap_or(&path);
    path.split_once("::").map_or(path, |(_crate, test)| test).to_owned()
}

/// Reports a test, or a named part of one, as skipped.
pub(crate) fn report(name: &str, reason: &str) {
    // One write, so that lines of other threads stay whole. An unwritable stream must not fail the test.
    let line = format!("test {name} ... skipped, {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

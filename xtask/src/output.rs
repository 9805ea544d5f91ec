//! Standard output that survives a closed pipe: `cargo xtask kube status | head -1` ends without a panic.

use std::fmt;
use std::io::Write;

/// `println!` that ignores write errors.
macro_rules! out {
    ($($argument:tt)*) => {
        $crate::output::line(format_args!($($argument)*))
    };
}

pub(crate) use out;

pub(crate) fn line(text: fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    // A reader that closed the pipe wants no more output; commands still finish their work and cleanup.
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

//! Ports for programs that tests, benches and xtask start.
//!
//! What the kernel gives for port 0 is no port to name to a program that starts later: every outgoing connection takes
//! its own port from the same range, and one of them may have it by then. These lie below that range, and below the
//! ports that Kubernetes gives to services.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// A port on the loopback that nobody uses now, and that this program gives to nobody else soon.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Programs that run at the same time begin in different places.
    let begin = std::process::id().wrapping_mul(101);
    let mut ports =
        std::iter::repeat_with(|| begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
            .take(COUNT as usize)
            .filter_map(|number| u16::try_from(FIRST + number % COUNT).ok());
    ports
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port on the loopback")
}

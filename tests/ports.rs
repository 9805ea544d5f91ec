//! Ports for programs that tests, benchmarks and xtask start.
//!
//! A port that the kernel chooses for port 0 comes from the range of outgoing connections, so a connection may take it
//! before the program starts. These ports are below that range and below the node ports of Kubernetes.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// A free port on the loopback interface. This process returns it once; a later call returns a different one.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes start at different ports.
    let begin = std::process::id().wrapping_mul(101);
    let mut ports =
        std::iter::repeat_with(|| begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
            .take(COUNT as usize)
            .filter_map(|number| u16::try_from(FIRST + number % COUNT).ok());
    ports
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port on the loopback")
}

//! Pauses between attempts: longer each time, and never the same on two machines.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// How long the next pause will be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// Pauses, and next time longer.
    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.step()).await;
    }

    fn step(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(LONGEST);
        jitter(now)
    }
}

/// Between half and the whole of a time.
pub(crate) fn jitter(time: Duration) -> Duration {
    let mut byte = [0_u8; 1];
    // Without randomness the pause is merely not spread.
    let _ = getrandom::fill(&mut byte);
    time / 2 + time / 2 * u32::from(byte[0]) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_ten_seconds_and_no_further() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.step()).collect();
        assert!(pauses[0] <= FIRST && pauses[0] >= FIRST / 2);
        assert!(pauses[19] <= LONGEST && pauses[19] >= LONGEST / 2);
    }
}

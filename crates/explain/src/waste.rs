//! Calculations of wasted GPU time, and of smaller requests.

use agentaflow_api::units::Dollars;

/// Headroom of a smaller request over the highest reading, in percent.
pub const HEADROOM: u64 = 20;

/// Readings behind a smaller share of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareNeeded {
    /// Peak memory in MiB, of the memory of the GPU.
    pub memory_peak: u64,
    pub memory: u64,
    /// Percent.
    pub busiest_minute: f64,
    /// Thousandths of a GPU.
    pub proposed: u64,
    pub requested: u64,
}

/// Cost of allocated GPU hours in which no kernel ran.
pub fn lost(cost: Dollars, hours: f64, used: f64, lost: Dollars) -> String {
    let wasted = (hours - used).max(0.0);
    format!(
        "{} × ({} − {}) / {} GPU h = {} × {} / {} = {}",
        money(cost),
        number(hours),
        number(used),
        number(hours),
        money(cost),
        number(wasted),
        number(hours),
        money(lost)
    )
}

/// Lost amount of several jobs.
pub fn lost_of_jobs(jobs: u64, hours: f64, used: f64, lost: Dollars) -> String {
    let noun = if jobs == 1 { "job" } else { "jobs" };
    format!(
        "Sum of {jobs} {noun}: {} of {} GPU h without a kernel = {}",
        number((hours - used).max(0.0)),
        number(hours),
        money(lost)
    )
}

/// Fewer GPUs: some were never used.
pub fn fewer_gpus(used: u32, requested: u32, cost: Dollars, saved: Dollars) -> String {
    format!(
        "{used} of {requested} GPUs ever ran a kernel or held memory: {} × {} / {requested} = {} saved",
        money(cost),
        requested - used,
        money(saved)
    )
}

/// A smaller share of one GPU.
pub fn smaller_share(needed: &ShareNeeded, cost: Dollars, saved: Dollars) -> String {
    let ShareNeeded { memory_peak, memory, busiest_minute, proposed, requested } = *needed;
    let share = |milli: u64| number(milli as f64 / 1_000.0);
    format!(
        "Peak memory {memory_peak} of {memory} MiB = {} %, busiest minute {} %; the higher + {HEADROOM} %, rounded up = {}; \
         {} × ({} − {}) / {} = {} saved",
        number(memory_peak as f64 * 100.0 / memory.max(1) as f64),
        number(busiest_minute),
        share(proposed),
        money(cost),
        share(requested),
        share(proposed),
        share(requested),
        money(saved)
    )
}

/// Dollars with cents, small amounts with six decimals.
fn money(amount: Dollars) -> String {
    let micros = amount.0.unsigned_abs();
    let sign = if amount.0 < 0 { "-" } else { "" };
    if micros < 1_000_000 && !micros.is_multiple_of(10_000) {
        return format!("{sign}$0.{micros:06}");
    }
    let cents = (micros + 5_000) / 10_000;
    format!("{sign}${}.{:02}", cents / 100, cents % 100)
}

/// A number with up to three decimals; small ones with more.
fn number(value: f64) -> String {
    let decimals = if value != 0.0 && value < 0.1 { 6 } else { 3 };
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calculation_of_a_job_shows_each_number() {
        let text = lost(Dollars(8_000_000), 4.0, 1.2, Dollars(5_600_000));
        assert_eq!(text, "$8.00 × (4 − 1.2) / 4 GPU h = $8.00 × 2.8 / 4 = $5.60");
        let text = lost(Dollars(417), 0.000_25, 0.0, Dollars(417));
        assert_eq!(
            text,
            "$0.000417 × (0.00025 − 0) / 0.00025 GPU h = $0.000417 × 0.00025 / 0.00025 = $0.000417"
        );
    }

    #[test]
    fn a_smaller_request_names_the_readings_behind_it() {
        assert_eq!(
            fewer_gpus(1, 4, Dollars(8_000_000), Dollars(6_000_000)),
            "1 of 4 GPUs ever ran a kernel or held memory: $8.00 × 3 / 4 = $6.00 saved"
        );
        let needed = ShareNeeded {
            memory_peak: 6_144,
            memory: 81_920,
            busiest_minute: 22.5,
            proposed: 300,
            requested: 1_000,
        };
        assert_eq!(
            smaller_share(&needed, Dollars(2_000_000), Dollars(1_400_000)),
            "Peak memory 6144 of 81920 MiB = 7.5 %, busiest minute 22.5 %; the higher + 20 %, rounded up = 0.3; \
             $2.00 × (1 − 0.3) / 1 = $1.40 saved"
        );
    }
}

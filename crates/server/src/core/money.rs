//! Money: prices, costs, and who may still spend. All in integers.

use agentaflow_api::link::GpuGrant;
use agentaflow_api::units::Stamp;
use agentaflow_engine::mig::Geometry;
use agentaflow_engine::{GpuRequest, GpuShare, MicroDollars, Price, Request};

/// What was allocated: thousandths of GPUs, thousandths of cores, MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) gpu_milli: u64,
    pub(crate) cpu_milli: u64,
    pub(crate) memory: u64,
}

/// Hours × (GPUs × price + cores × price + GiB × price), computed from milliseconds without loss and
/// rounded once, half to even.
pub(crate) fn cost(allocation: Allocation, price: Price, ms: u64) -> i64 {
    let product = |amount: u64, price: MicroDollars, scale: i128| {
        i128::from(amount) * i128::from(price.0) * scale
    };
    // GPUs and cores come in thousandths, memory in 1024ths: bring all to 1,024,000ths.
    let hourly = product(allocation.gpu_milli, price.gpu_hour, 1024)
        + product(allocation.cpu_milli, price.cpu_hour, 1024)
        + product(allocation.memory, price.gib_hour, 1000);
    let micros = half_even(hourly * i128::from(ms), 1_024_000 * 3_600_000);
    i64::try_from(micros).unwrap_or(i64::MAX)
}

fn half_even(numerator: i128, denominator: i128) -> i128 {
    let (quotient, rest) = (numerator.div_euclid(denominator), numerator.rem_euclid(denominator));
    let up = match (2 * rest).cmp(&denominator) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => quotient % 2 != 0,
    };
    quotient + i128::from(up)
}

/// The share of a device to pay for, in thousandths.
pub(crate) fn share(part: GpuShare, request: &Request, model: &str, memory: u64) -> u64 {
    if request.exclusive {
        return 1000;
    }
    match part {
        GpuShare::Whole => 1000,
        GpuShare::Fraction { milli, mib } => match request.gpu {
            GpuRequest::Memory(_) => (mib.0 * 1000).div_ceil(memory.max(1)).min(1000),
            _ => milli.into(),
        },
        GpuShare::MigSlice { profile, .. } => {
            let geometry = Geometry::for_gpu(model, memory);
            let compute = geometry.and_then(|geometry| {
                let profile = geometry.get(geometry.profile(profile.as_str())?)?;
                Some(agentaflow_engine::mig::milli(profile.compute, geometry))
            });
            compute.map_or(1000, u64::from)
        }
    }
}

/// What a job would be billed for, before it has a place: the largest share that its request can mean.
pub(crate) fn expected(request: &Request, tasks: u32) -> Allocation {
    let gpu_milli = match request.gpu {
        GpuRequest::None => 0,
        GpuRequest::Whole(count) | GpuRequest::Mig { count, .. } => u64::from(count) * 1000,
        GpuRequest::Fraction(share) if !request.exclusive => share.get().into(),
        GpuRequest::Memory(_) | GpuRequest::Fraction(_) => 1000,
    };
    let tasks = u64::from(tasks);
    Allocation {
        gpu_milli: gpu_milli * tasks,
        cpu_milli: request.cpu.0 * tasks,
        memory: request.memory.0 * tasks,
    }
}

/// What somebody has and has spent, in micro-dollars.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    /// Credits minus costs.
    pub(crate) balance: i64,
    /// Costs of this month.
    pub(crate) spent: i64,
    /// That month.
    pub(crate) month: String,
}

impl Account {
    /// A cost (or, negative, a credit).
    pub(crate) fn book(&mut self, micros: i64, is_cost: bool, at: Stamp) {
        self.turn(at);
        self.balance = self.balance.saturating_sub(micros);
        if is_cost {
            self.spent = self.spent.saturating_add(micros);
        }
    }

    /// Begins a new month if it is one.
    pub(crate) fn turn(&mut self, at: Stamp) {
        let month = at.month();
        if self.month != month {
            self.month = month;
            self.spent = 0;
        }
    }

    /// What may still be spent; none when nothing limits it.
    pub(crate) fn left(&self, limit: Option<i64>, prepaid: bool) -> Option<i64> {
        let by_limit = limit.map(|limit| limit.saturating_sub(self.spent));
        let by_balance = prepaid.then_some(self.balance);
        by_limit.into_iter().chain(by_balance).min()
    }
}

/// The GPUs of a grant list, for people: `0,1` or `0 (500/1000)`.
pub(crate) fn gpu_names(grants: &[GpuGrant]) -> Vec<String> {
    grants.iter().map(|grant| grant.index.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price = Price {
        gpu_hour: MicroDollars(2_000_000),
        cpu_hour: MicroDollars(10_000),
        gib_hour: MicroDollars(1_000),
    };

    fn check(gpu_milli: u64, cpu_milli: u64, memory: u64, ms: u64, expected: i64) {
        assert_eq!(cost(Allocation { gpu_milli, cpu_milli, memory }, PRICE, ms), expected);
    }

    #[test]
    fn a_cost_is_hours_times_what_was_allocated() {
        check(1000, 0, 0, 3_600_000, 2_000_000);
        check(500, 0, 0, 1_800_000, 500_000);
        check(2000, 4000, 16 * 1024, 3_600_000, 4_000_000 + 40_000 + 16_000);
        check(0, 0, 0, 3_600_000, 0);
        // A millisecond of a GPU at two dollars an hour is 0.5555… micro-dollars.
        check(1000, 0, 0, 1, 1);
    }

    #[test]
    fn halves_are_rounded_to_even_once() {
        assert_eq!([5, 15, 25, 26].map(|n| half_even(n, 10)), [0, 2, 2, 3]);
    }

    #[test]
    fn the_largest_job_imaginable_does_not_overflow() {
        let all = Allocation { gpu_milli: 1 << 40, cpu_milli: 1 << 40, memory: 1 << 46 };
        assert!(cost(all, PRICE, u64::from(u32::MAX) * 1000) > 0);
    }

    #[test]
    fn the_smaller_of_limit_and_balance_decides() {
        let account = Account { balance: 50, spent: 70, month: String::new() };
        assert_eq!(account.left(None, false), None);
        assert_eq!(account.left(Some(100), false), Some(30));
        assert_eq!(account.left(Some(200), true), Some(50));
    }
}

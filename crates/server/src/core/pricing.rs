//! Prices and costs, in integers.

use std::iter::Sum;
use std::ops::{Add, Sub};

use agentaflow_api::ids::MicroUsd;
use agentaflow_api::job::TaskState;
use agentaflow_api::link::GpuGrant;
use agentaflow_api::units::Stamp;
use agentaflow_engine::mig::Geometry;
use agentaflow_engine::{GpuRequest, GpuShare, MicroDollars, Price, Request};

use crate::store::{JobRow, TaskAssignment};

pub(crate) const HOUR_MS: u64 = 3_600_000;
/// Denominator of an exact cost: thousandths × 1024ths × milliseconds of an hour.
const DENOMINATOR: i128 = 1_024_000 * HOUR_MS as i128;

/// Resources of a task that its owner pays for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) gpu_milli: u64,
    pub(crate) cpu_milli: u64,
    /// MiB.
    pub(crate) memory: u64,
}

impl Allocation {
    pub(crate) fn of_task(job: &JobRow, task: &TaskAssignment) -> Self {
        Self {
            gpu_milli: task.gpu_milli,
            cpu_milli: job.spec.cpu_cores_required.unwrap_or_default().0,
            memory: job.spec.memory_required.unwrap_or(0),
        }
    }
}

/// Highest price of each resource.
pub(crate) fn highest_price(prices: impl Iterator<Item = Price>) -> Option<Price> {
    prices.reduce(|most, price| Price {
        gpu_hour: most.gpu_hour.max(price.gpu_hour),
        cpu_hour: most.cpu_hour.max(price.cpu_hour),
        gib_hour: most.gib_hour.max(price.gib_hour),
    })
}

/// Hours × (GPUs × price + cores × price + GiB × price), computed from milliseconds without loss and
/// rounded once, half to even.
pub(crate) fn cost(allocation: Allocation, price: Price, ms: u64) -> MicroUsd {
    rounded(hourly_numerator(allocation, price) * i128::from(ms))
}

/// Cost of an hour, times 1,024,000.
fn hourly_numerator(allocation: Allocation, price: Price) -> i128 {
    let product = |amount: u64, price: MicroDollars, scale: i128| {
        i128::from(amount) * i128::from(price.0) * scale
    };
    // GPUs and cores are thousandths, memory is 1024ths: the common unit is 1,024,000ths.
    product(allocation.gpu_milli, price.gpu_hour, 1024)
        + product(allocation.cpu_milli, price.cpu_hour, 1024)
        + product(allocation.memory, price.gib_hour, 1000)
}

fn rounded(numerator: i128) -> MicroUsd {
    MicroUsd(i64::try_from(half_even(numerator, DENOMINATOR)).unwrap_or(i64::MAX))
}

/// Cost of running tasks as a function of time: `rate × now − offset`. Sums of it are exact, so that a counter can add
/// a task when it starts and subtract it when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunningCost {
    rate: i128,
    offset: i128,
}

impl RunningCost {
    pub(crate) fn new(allocation: Allocation, price: Price, started: Stamp) -> Self {
        let rate = hourly_numerator(allocation, price);
        Self { rate, offset: rate * i128::from(started.0) }
    }

    /// Cost of a task since its start; none before that.
    pub(crate) fn of_task(job: &JobRow, task: &TaskAssignment) -> Self {
        let started = task.started_at.filter(|_| task.state == TaskState::Running);
        let cost = |at| Self::new(Allocation::of_task(job, task), task.price, at);
        started.map_or_else(Self::default, cost)
    }

    /// Cost of all running tasks of a job.
    pub(crate) fn of_job(job: &JobRow) -> Self {
        job.state.tasks.iter().map(|task| Self::of_task(job, task)).sum()
    }

    /// Cost of one more hour.
    pub(crate) fn hourly(self) -> MicroUsd {
        rounded(self.rate * i128::from(HOUR_MS))
    }

    pub(crate) fn at(self, now: Stamp) -> MicroUsd {
        rounded((self.rate * i128::from(now.0) - self.offset).max(0))
    }
}

impl Add for RunningCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { rate: self.rate + other.rate, offset: self.offset + other.offset }
    }
}

impl Sub for RunningCost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { rate: self.rate - other.rate, offset: self.offset - other.offset }
    }
}

impl Sum for RunningCost {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

/// Cost of an hour of all tasks that a job has been assigned.
pub(crate) fn hourly_cost(job: &JobRow) -> MicroUsd {
    tasks_cost(job, job.state.tasks.iter(), HOUR_MS)
}

/// Cost of these tasks of a job for a run time.
pub(crate) fn tasks_cost<'a>(
    job: &JobRow,
    tasks: impl Iterator<Item = &'a TaskAssignment>,
    ms: u64,
) -> MicroUsd {
    let costs = tasks.map(|task| cost(Allocation::of_task(job, task), task.price, ms).0);
    MicroUsd(costs.fold(0, i64::saturating_add))
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

/// Billed share of a device, in thousandths.
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

/// Upper bound of the billed resources of a job that is not placed yet.
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

/// Indexes of granted GPUs.
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
        let allocation = Allocation { gpu_milli, cpu_milli, memory };
        assert_eq!(cost(allocation, PRICE, ms), MicroUsd(expected));
    }

    #[test]
    fn a_cost_is_hours_times_allocation() {
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
        assert!(cost(all, PRICE, u64::from(u32::MAX) * 1000).0 > 0);
    }

    #[test]
    fn running_tasks_add_up_to_one_cost_that_is_rounded_once() {
        let task = |started, gpu_milli| {
            RunningCost::new(
                Allocation { gpu_milli, ..Allocation::default() },
                PRICE,
                Stamp(started),
            )
        };
        // Two GPUs at two dollars an hour: 1.1111… micro-dollars a millisecond.
        let sum: RunningCost = [task(1_000, 1000), task(1_000, 1000)].into_iter().sum();
        assert_eq!(sum.at(Stamp(1_001)), MicroUsd(1));
        assert_eq!(sum.at(Stamp(3_601_000)), MicroUsd(4_000_000));
        assert_eq!(sum.at(Stamp(0)), MicroUsd(0), "the wall clock was set back");
        assert_eq!(sum - task(1_000, 1000), task(1_000, 1000));
    }
}

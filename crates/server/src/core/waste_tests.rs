//! Golden arithmetic of the waste report.

use agentaflow_api::job::{GpuUsage, JobSpec};
use agentaflow_api::link::GpuGrant;
use agentaflow_engine::{MicroDollars, Price};

use super::*;
use crate::store::{JobRow, TaskAssignment};

const HOUR_MS: u64 = 3_600_000;
const PRICE: Price = Price {
    gpu_hour: MicroDollars(2_000_000),
    cpu_hour: MicroDollars(0),
    gib_hour: MicroDollars(0),
};

/// Account of a task with GPUs of 80 GiB, of which each has the share `milli`, for an hour.
fn account(gpus: u32, milli: u32, used_ms: u64, more: GpuUsage) -> GpuAccount {
    let grant = |index| GpuGrant {
        index,
        uuid: format!("GPU-{index}"),
        milli,
        memory: 81_920 * u64::from(milli) / 1_000,
        shared: milli < 1_000,
    };
    let task = TaskAssignment {
        grants: (0..gpus).map(grant).collect(),
        price: PRICE,
        gpu_milli: u64::from(gpus * milli),
        ..TaskAssignment::default()
    };
    let allocated_ms = HOUR_MS * u64::from(gpus * milli) / 1_000;
    let usage = GpuUsage { allocated_ms, used_ms, ..more };
    GpuAccount::of_task(&JobRow::default(), &task, HOUR_MS, usage)
}

fn job(id: i64, user: &str, queue: &str, account: GpuAccount) -> WasteJob {
    WasteJob {
        id: JobId(id),
        user: user.into(),
        queue: queue.into(),
        name: Some(format!("job-{id}")),
        running: id == 3,
        account,
    }
}

fn jobs() -> Vec<WasteJob> {
    let memory = |mib| GpuUsage {
        memory_peak: Some(mib),
        memory_peaks: Some(mib),
        gpus_used: 1,
        busiest_minute: 90.0,
        ..GpuUsage::default()
    };
    vec![
        // 4 GPUs for an hour at 30 %: $8.00, of which 70 % are lost.
        job(1, "ana", "vision", account(4, 1_000, 4 * HOUR_MS * 3 / 10, memory(40_960))),
        // One GPU at 100 %, 40 of 80 GiB.
        job(2, "ana", "text", account(1, 1_000, HOUR_MS, memory(40_960))),
        // Half a GPU, idle.
        job(3, "bob", "text", account(1, 500, 0, memory(0))),
    ]
}

#[test]
fn a_job_loses_the_cost_of_the_hours_without_kernels() {
    let rows = report(&jobs(), WasteBy::Job);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            (&*row.key, row.gpu_hours, row.gpu_hours_used, row.lost_micros.0, &*row.arithmetic)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("1", 4.0, 1.2, 5_600_000, "$8.00 × (4 − 1.2) / 4 GPU h = $8.00 × 2.8 / 4 = $5.60"),
            ("3", 0.5, 0.0, 1_000_000, "$1.00 × (0.5 − 0) / 0.5 GPU h = $1.00 × 0.5 / 0.5 = $1.00"),
            ("2", 1.0, 1.0, 0, "$2.00 × (1 − 1) / 1 GPU h = $2.00 × 0 / 1 = $0.00"),
        ]
    );
    assert_eq!((rows[2].gpu_memory_gb_hours, rows[2].gpu_memory_gb_hours_used), (80.0, 40.0));
    assert_eq!((rows[0].gpu_memory_gb_hours, rows[0].gpu_memory_gb_hours_used), (320.0, 40.0));
    assert_eq!((rows[1].running, rows[1].user.as_deref()), (1, Some("bob")));
}

#[test]
fn groups_are_the_sums_of_their_jobs() {
    let users = report(&jobs(), WasteBy::User);
    let shown: Vec<_> =
        users.iter().map(|row| (&*row.key, row.jobs, row.gpu_hours, row.lost.0)).collect();
    assert_eq!(shown, [("ana", 2, 5.0, 5_600_000), ("bob", 1, 0.5, 1_000_000)]);
    assert_eq!(users[0].arithmetic, "Sum of 2 jobs: 2.8 of 5 GPU h without a kernel = $5.60");
    let queues = report(&jobs(), WasteBy::Queue);
    let shown: Vec<_> = queues.iter().map(|row| (&*row.key, row.lost.0)).collect();
    assert_eq!(shown, [("vision", 5_600_000), ("text", 1_000_000)]);
    assert!(queues.iter().all(|row| row.smaller.is_none()));
}

#[test]
fn an_unmeasured_part_counts_with_the_mean_of_the_measured_part() {
    // The agent measured half of the hour, at 40 %.
    let half = account(1, 1_000, 0, GpuUsage::default());
    let usage = GpuUsage { allocated_ms: HOUR_MS / 2, used_ms: HOUR_MS / 5, ..half.usage };
    let half = GpuAccount { usage, ..half };
    assert_eq!((half.wasted(), half.lost()), (HOUR_MS * 600, MicroUsd(1_200_000)));
}

#[test]
fn a_busy_task_does_not_make_up_for_an_idle_one() {
    let busy = account(1, 250, HOUR_MS, GpuUsage::default());
    let idle = account(1, 250, 0, GpuUsage::default());
    let both = busy + idle;
    assert_eq!((both.billed, both.wasted()), (HOUR_MS * 500, HOUR_MS * 250));
    assert_eq!(both.lost(), MicroUsd(500_000));
    let none = GpuAccount::default();
    assert_eq!((none.wasted(), none.lost()), (0, MicroUsd(0)));
}

#[test]
fn unused_gpus_make_a_smaller_request() {
    let usage = GpuUsage { gpus_used: 1, memory_peak: Some(900), ..GpuUsage::default() };
    let found = smaller_request(&account(4, 1_000, HOUR_MS, usage)).unwrap();
    assert_eq!(
        (found.gpu_count, found.gpu_fraction, found.saved),
        (Some(1), None, Dollars(6_000_000))
    );
    let none = smaller_request(&account(2, 1_000, 0, GpuUsage::default())).unwrap();
    assert_eq!((none.gpu_count, none.saved), (Some(0), Dollars(4_000_000)));
}

#[test]
fn a_share_of_a_gpu_covers_the_peak_memory_and_the_busiest_minute() {
    let needs = |milli, mib, busiest| {
        let usage = GpuUsage {
            gpus_used: 1,
            memory_peak: Some(mib),
            memory_peaks: Some(mib),
            busiest_minute: busiest,
            ..GpuUsage::default()
        };
        smaller_request(&account(1, milli, HOUR_MS / 10, usage))
            .and_then(|found| found.gpu_fraction)
    };
    // 22.5 % + 20 % = 27 %, rounded up to 30 %.
    assert_eq!(needs(1_000, 6_144, 22.5), Some(0.3));
    // Memory decides: 50 % + 20 % = 60 %.
    assert_eq!(needs(1_000, 40_960, 22.5), Some(0.6));
    assert_eq!(needs(1_000, 40_960, 80.0), None, "96 % saves too little");
    // The memory of the GPU follows from the granted half.
    assert_eq!(needs(500, 8_192, 5.0), Some(0.15));
    assert_eq!(needs(500, 30_000, 5.0), None);
    assert_eq!(needs(1_000, 1, 0.0), Some(0.05));
}

#[test]
fn no_smaller_request_is_claimed_without_proof() {
    let usage = GpuUsage { gpus_used: 1, busiest_minute: 5.0, ..GpuUsage::default() };
    assert_eq!(smaller_request(&account(1, 1_000, 1, usage)), None, "memory was not measured");
    let several = GpuUsage { gpus_used: 4, memory_peak: Some(100), ..usage };
    assert_eq!(smaller_request(&account(4, 1_000, 1, several)), None, "all GPUs were used");
    let usage = GpuUsage { memory_peak: Some(100), ..usage };
    for spec in [
        JobSpec { exclusive: Some(true), ..JobSpec::default() },
        JobSpec { mig_profile: Some("1g.10gb".into()), ..JobSpec::default() },
    ] {
        let job = JobRow { spec, ..JobRow::default() };
        let grant =
            GpuGrant { index: 0, uuid: "g".into(), milli: 1_000, memory: 81_920, shared: false };
        let task =
            TaskAssignment { grants: vec![grant], gpu_milli: 1_000, ..TaskAssignment::default() };
        assert_eq!(smaller_request(&GpuAccount::of_task(&job, &task, HOUR_MS, usage)), None);
    }
}

//! Resolution, restarts and bounds.

use super::*;

#[test]
fn a_day_has_a_row_every_15_seconds_and_a_month_one_every_5_minutes() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    let end = START + 2 * DAY;
    record(&history, "gpu", START, end, |at| ((at - START) / 300 % 1000) as f64);
    let day = read(&history, "gpu", end - DAY, end, end);
    assert_eq!((day.start, day.step, day.rows.len()), (end - DAY, 15, 5760));
    assert!(day.rows.iter().all(|row| row[0].is_some()));
    let both = read(&history, "gpu", START, end, end);
    assert_eq!((both.start, both.step), (START, 300));
    let expected: Vec<_> = (0..576).map(|slot| Some(f64::from(slot))).collect();
    assert_eq!(first_column(&both), expected);
}

#[test]
fn means_continue_after_a_restart_and_end_with_the_last_reading() {
    let dir = tempfile::tempdir().unwrap();
    record(&open(dir.path()), "gpu", START, START + 3 * HOUR + 130, |_| 4.0);
    // The process was killed within an interval, and the next one starts two hours later.
    let restart = START + 5 * HOUR;
    record(&open(dir.path()), "gpu", restart, restart + 26 * HOUR, |_| 8.0);
    let end = restart + 26 * HOUR;
    let means = first_column(&read(&open(dir.path()), "gpu", START, end, end));
    assert_eq!(means.len(), 31 * 12);
    assert_eq!(means[..37], [Some(4.0); 37]);
    assert_eq!(means[37..60], [None; 23]);
    assert_eq!(means[60..], [Some(8.0); 26 * 12]);
}

#[test]
fn a_short_series_takes_one_block_and_is_found_for_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    record(&history, "job", START, START + 600, |_| 1.0);
    history.write_means(START + DAY / 2).unwrap();
    assert_eq!(history.bytes(), 4096);
    let curve = read(&history, "job", START, START + 600, START + DAY / 2);
    assert_eq!(first_column(&curve), [Some(1.0); 40]);
}

#[test]
fn rows_are_means_when_fewer_points_are_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    record(&history, "gpu", START, START + 600, |at| ((at - START) / 15) as f64);
    let range = Range { from: START, to: START + 600, points: 10, now: START + 600 };
    let curve = history.read(Class::Device, "gpu", range).unwrap();
    assert_eq!((curve.step, curve.rows.len()), (60, 10));
    assert_eq!(first_column(&curve)[..2], [Some(1.5), Some(5.5)]);
}

#[test]
fn unknown_series_and_empty_ranges_have_no_readings() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    assert!(
        first_column(&read(&history, "no", START, START + 60, START)).iter().all(Option::is_none)
    );
    assert_eq!(read(&history, "no", START, START, START).rows.len(), 0);
    assert_eq!(read(&history, "no", START + 60, START, START).rows.len(), 0);
    // From the beginning of time: at most 30 days.
    assert_eq!(read(&history, "no", 0, u64::MAX, START).rows.len(), 8641);
}

#[test]
fn old_blocks_are_reused_so_that_a_file_does_not_grow_with_time() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    record(&history, "gpu", START, START + 40 * DAY, |_| 1.0);
    let size = history.bytes();
    record(&history, "gpu", START + 40 * DAY, START + 80 * DAY, |_| 2.0);
    assert!(history.bytes() <= size + 4096, "{size} {}", history.bytes());
    assert!(size <= History::bytes_for_devices(1), "{size}");
    let end = START + 80 * DAY;
    let month = read(&history, "gpu", end - 30 * DAY, end, end);
    assert!(month.rows.iter().all(|row| row[0] == Some(2.0)));
}

#[test]
fn files_stay_within_their_limits_and_more_devices_keep_less_time() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { devices: History::bytes_for_devices(4), jobs: 1 << 20 };
    let (history, _) = History::open(dir.path(), limits).unwrap();
    let end = START + 30 * HOUR;
    for at in (START..end).step_by(15) {
        for gpu in 0..8 {
            history.record(Class::Device, &format!("gpu-{gpu}"), at, &row(f64::from(gpu))).unwrap();
        }
    }
    assert!(history.bytes() <= limits.devices + limits.jobs);
    for gpu in 0..8 {
        let half = read(&history, &format!("gpu-{gpu}"), end - 11 * HOUR, end, end);
        assert!(half.rows.iter().all(|row| row[0] == Some(f64::from(gpu))), "GPU {gpu}");
    }
}

#[test]
fn jobs_do_not_displace_devices() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { devices: 1 << 20, jobs: 64 << 10 };
    let (history, _) = History::open(dir.path(), limits).unwrap();
    record(&history, "gpu", START, START + HOUR, |_| 5.0);
    for job in 0..10_000 {
        history.record(Class::Job, &format!("job-{job}"), START + HOUR, &row(1.0)).unwrap();
    }
    let curve = read(&history, "gpu", START, START + HOUR, START + HOUR);
    assert_eq!(first_column(&curve), [Some(5.0); 240]);
    assert!(history.bytes() <= limits.jobs + (1 << 20));
}

#[test]
fn a_clock_that_is_set_back_loses_no_later_reading() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    record(&history, "gpu", START + DAY, START + DAY + 600, |_| 9.0);
    record(&history, "gpu", START, START + 600, |_| 1.0);
    let curve = read(&open(dir.path()), "gpu", START, START + 600, START + 600);
    assert_eq!(first_column(&curve), [Some(1.0); 40]);
}

/// Prints the size and the times for 1,000 GPUs over 30 days of means and a day of readings.
#[test]
#[ignore = "needs a minute; a measurement"]
fn measure_1000_gpus() {
    use std::time::Instant;
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { devices: History::bytes_for_devices(1000), jobs: 1 << 20 };
    let (history, _) = History::open(dir.path(), limits).unwrap();
    let names: Vec<String> =
        (0..1000).map(|gpu| format!("gpu/gpu-0123456789ab/GPU-{gpu:036}")).collect();
    let values = [Some(93.0), Some(70_000.0), Some(650.0), Some(61.0), Some(1980.0)];
    let (mut longest, end) = (0.0_f64, START + 25 * HOUR);
    for at in (START..end).step_by(15) {
        let began = Instant::now();
        for name in &names {
            history.record(Class::Device, name, at, &values).unwrap();
        }
        history.write_means(at).unwrap();
        longest = longest.max(began.elapsed().as_secs_f64());
    }
    println!("{} MB after 25 hours, bound {} MB", history.bytes() >> 20, limits.devices >> 20);
    println!("longest sample {:.1} ms", longest * 1e3);
    let began = Instant::now();
    let day = read(&history, &names[7], end - DAY, end, end);
    println!(
        "a day of one GPU, {} rows: {:.1} ms",
        day.rows.len(),
        began.elapsed().as_secs_f64() * 1e3
    );
    let began = Instant::now();
    drop(open(dir.path()));
    println!("open: {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
}

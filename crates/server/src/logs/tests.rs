use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;

use super::*;

fn key(job: i64, epoch: u32, task: u32) -> TaskKey {
    TaskKey { job: JobId(job), epoch, incarnation: 0, task }
}

fn store() -> (tempfile::TempDir, LogStore) {
    let dir = tempfile::tempdir().unwrap();
    let logs = LogStore::new(dir.path().join("logs"));
    (dir, logs)
}

async fn text(logs: &LogStore, job: i64, task: u32) -> String {
    String::from_utf8(logs.read(JobId(job), task, 0, 1 << 20).await.unwrap().bytes).unwrap()
}

#[tokio::test]
async fn pieces_that_come_twice_are_written_once_and_gaps_are_asked_for() {
    let (_dir, logs) = store();
    assert_eq!(logs.append(key(1, 1, 0), 0, b"hello ", None).await.unwrap(), 6);
    assert_eq!(logs.append(key(1, 1, 0), 0, b"hello ", None).await.unwrap(), 6);
    assert_eq!(logs.append(key(1, 1, 0), 9, b"late", None).await.unwrap(), 6);
    assert_eq!(logs.append(key(1, 1, 0), 3, b"lo world\n", None).await.unwrap(), 12);
    assert_eq!(logs.append(key(1, 1, 0), u64::MAX, b"x", None).await.unwrap(), 12);
    assert_eq!(text(&logs, 1, 0).await, "hello world\n");
}

#[tokio::test]
async fn tries_follow_each_other_and_an_old_one_is_refused() {
    let (dir, logs) = store();
    logs.append(key(1, 1, 0), 0, b"one", None).await.unwrap();
    assert_eq!(logs.append(key(1, 3, 0), 0, b"three\n", None).await.unwrap(), 6);
    assert!(matches!(logs.append(key(1, 1, 0), 3, b"!", None).await, Err(LogError::Stale)));
    let again = LogStore::new(dir.path().join("logs"));
    assert!(matches!(again.append(key(1, 2, 0), 0, b"!", None).await, Err(LogError::Stale)));
    assert_eq!(again.append(key(1, 3, 0), 0, b"three\nmore\n", None).await.unwrap(), 11);
    assert_eq!(text(&again, 1, 0).await, "one\n--- attempt 3 ---\nthree\nmore\n");
}

#[tokio::test]
async fn a_restored_backup_repeats_attempts_but_not_their_output() {
    let (dir, logs) = store();
    logs.append(key(1, 1, 0), 0, b"first\n", None).await.unwrap();
    logs.append(key(1, 2, 0), 0, b"lost\n", None).await.unwrap();
    logs.append(key(2, 1, 0), 0, b"of another user\n", None).await.unwrap();
    // The backup was made after job 1 began its first attempt and before job 2 existed.
    let restored = LogStore::new(dir.path().join("logs"));
    assert_eq!(restored.set_aside_after(JobId(1)).unwrap(), 1);
    let again = TaskKey { incarnation: 7, ..key(1, 2, 0) };
    assert_eq!(restored.append(again, 0, b"second\n", None).await.unwrap(), 7);
    assert!(matches!(restored.append(key(1, 2, 0), 5, b"!", None).await, Err(LogError::Stale)));
    let expected = "first\n--- attempt 2 ---\nlost\n--- attempt 2 ---\nsecond\n";
    assert_eq!(text(&restored, 1, 0).await, expected);
    assert_eq!(text(&restored, 2, 0).await, "");
    assert_eq!(restored.set_aside_after(JobId(1)).unwrap(), 0);
}

#[tokio::test]
async fn a_log_that_is_too_long_is_cut_off_and_never_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let logs = LogStore { most: 10, ..LogStore::new(dir.path()) };
    assert_eq!(logs.append(key(1, 1, 0), 0, b"123456", None).await.unwrap(), 6);
    assert_eq!(logs.append(key(1, 1, 1), 0, b"7890ab", None).await.unwrap(), 6);
    assert_eq!(logs.append(key(1, 1, 0), 6, b"more", None).await.unwrap(), 10);
    assert_eq!(logs.append(key(1, 2, 0), 5, b"more", None).await.unwrap(), 9);
    assert_eq!(text(&logs, 1, 0).await, "123456");
    assert_eq!(text(&logs, 1, 1).await, "7890\n--- cut off: the log reached 0 MiB ---\n");
    assert_eq!(logs.append(key(2, 1, 0), 0, b"other", None).await.unwrap(), 5);
}

#[tokio::test]
async fn on_a_disk_that_is_nearly_full_output_is_left_out_with_one_line_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let full = || LogStore {
        disk: Arc::new(Disk::new(|_| Some((0, 1 << 40)))),
        ..LogStore::new(dir.path())
    };
    let free = || LogStore { disk: Arc::new(Disk::new(|_| Some((1 << 39, 1 << 40)))), ..full() };
    assert_eq!(free().append(key(1, 1, 0), 0, b"one\n", None).await.unwrap(), 4);
    let logs = full();
    assert_eq!(logs.append(key(1, 1, 0), 4, b"two\n", None).await.unwrap(), 8);
    assert_eq!(logs.append(key(1, 1, 0), 8, b"three\n", None).await.unwrap(), 14);
    assert_eq!(logs.append(key(1, 1, 0), 8, b"three\n", None).await.unwrap(), 14);
    assert_eq!(logs.append(key(1, 1, 0), 99, b"gap\n", None).await.unwrap(), 14);
    let notice = "\n--- left out: the disk of the server is nearly full ---\n";
    assert_eq!(text(&logs, 1, 0).await, format!("one\n{notice}"));
    let logs = LogStore { disk: free().disk, ..logs };
    for _ in 0..2 {
        assert_eq!(logs.append(key(1, 1, 0), 14, b"four\n", None).await.unwrap(), 19);
    }
    assert_eq!(free().append(key(1, 1, 0), 19, b"five\n", None).await.unwrap(), 24);
    assert_eq!(text(&logs, 1, 0).await, format!("one\n{notice}four\nfive\n"));
    assert_eq!(full().append(key(2, 1, 0), 0, b"never\n", None).await.unwrap(), 6);
    assert_eq!(text(&logs, 2, 0).await, notice);
}

#[tokio::test]
async fn the_last_lines_are_found_from_the_end() {
    let (_dir, logs) = store();
    let long: String = (0..20_000)
        .flat_map(|line| ["line ".to_owned(), line.to_string(), "\n".to_owned()])
        .collect();
    logs.append(key(1, 1, 0), 0, long.as_bytes(), None).await.unwrap();
    logs.append(key(1, 1, 0), long.len() as u64, b"rest", None).await.unwrap();
    for (lines, begins) in
        [(1, "rest"), (2, "line 19999\n"), (15_000, "line 5001\n"), (99_999, "line 0\n")]
    {
        let start = logs.tail(JobId(1), 0, lines).await.unwrap();
        let piece = logs.read(JobId(1), 0, start, begins.len()).await.unwrap();
        assert_eq!(String::from_utf8(piece.bytes).unwrap(), begins);
    }
    assert_eq!(logs.tail(JobId(1), 0, 0).await.unwrap(), long.len() as u64 + 4);
    assert_eq!(logs.tail(JobId(9), 0, 5).await.unwrap(), 0);
}

#[tokio::test]
async fn only_followers_of_a_written_log_wake() {
    let (_dir, logs) = store();
    let (mut one, two) = (logs.subscribe(JobId(1)), logs.subscribe(JobId(2)));
    logs.append(key(1, 1, 0), 0, b"x", None).await.unwrap();
    one.changed().await.unwrap();
    assert!(!two.has_changed().unwrap());
    drop((one, two));
    drop(logs.subscribe(JobId(3)));
    assert_eq!(logs.followers.lock().unwrap().len(), 1, "ended followers are forgotten");
}

#[tokio::test]
async fn many_jobs_and_tasks_share_a_few_open_files() {
    let (dir, logs) = store();
    for round in 0..3 {
        for job in 0..200 {
            let had =
                logs.append(key(job, 1, (job % 3) as u32), round * 2, b"ab", None).await.unwrap();
            assert_eq!(had, round * 2 + 2);
        }
    }
    assert_eq!(logs.tasks(JobId(5)).await.unwrap(), [2]);
    let open: usize = {
        let mut count = 0;
        for shard in &logs.shards {
            count += shard.lock().await.open_files();
        }
        count
    };
    assert!(open <= 128, "{open}");
    let file = std::fs::metadata(dir.path().join("logs/5/2.log")).unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_deleted_log_is_gone_and_a_missing_one_is_empty() {
    let (_dir, logs) = store();
    logs.append(key(1, 1, 0), 0, b"x", None).await.unwrap();
    logs.delete(JobId(1)).await.unwrap();
    logs.delete(JobId(1)).await.unwrap();
    assert_eq!(logs.read(JobId(1), 0, 0, 10).await.unwrap(), Piece::default());
    assert!(logs.tasks(JobId(1)).await.unwrap().is_empty());
    assert_eq!(logs.append(key(1, 1, 0), 0, b"new", None).await.unwrap(), 3);
}

#[tokio::test]
async fn a_log_that_lost_its_end_goes_on_where_it_ends() {
    let (dir, logs) = store();
    logs.append(key(1, 1, 0), 0, b"0123456789", None).await.unwrap();
    logs.append(key(1, 2, 0), 0, b"abc", None).await.unwrap();
    let path = dir.path().join("logs/1/0.log");
    OpenOptions::new().write(true).open(path).unwrap().set_len(4).unwrap();
    for had in [2, 4] {
        let again = LogStore::new(dir.path().join("logs"));
        assert_eq!(again.append(key(1, 2, 0), had - 2, b"xy", None).await.unwrap(), had);
    }
    assert_eq!(text(&logs, 1, 0).await, "0123xyxy");
}

#[tokio::test]
async fn a_failed_write_is_an_error_and_the_next_one_works() {
    let (dir, logs) = store();
    std::fs::write(dir.path().join("logs"), "in the way").unwrap();
    let error = logs.append(key(1, 1, 0), 0, b"x", None).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot use the log of job 1");
    std::fs::remove_file(dir.path().join("logs")).unwrap();
    assert_eq!(logs.append(key(1, 1, 0), 0, b"x", None).await.unwrap(), 1);
}

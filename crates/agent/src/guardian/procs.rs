//! Reads and signals processes through `/proc`. Ended processes yield empty results.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) zombie: bool,
    pub(crate) stopped: bool,
    pub(crate) parent: u32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// CPU time in ticks, reaped children included.
    pub(crate) ticks: u64,
    /// Start time in ticks since boot; identifies a process together with its pid.
    pub(crate) started: u64,
    /// Resident pages.
    pub(crate) pages: u64,
}

pub(crate) fn stat(pid: u32) -> Option<ProcessStat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(line: &str) -> Option<ProcessStat> {
    // The command name in parentheses may contain any character, so parsing starts after the last parenthesis.
    let fields: Vec<&str> = line[line.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<i64>().ok());
    Some(ProcessStat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        stopped: *fields.first()? == "T",
        parent: number(1)? as u32,
        group: number(2)? as i32,
        session: number(3)? as i32,
        ticks: (11..=14).filter_map(number).sum::<i64>() as u64,
        started: number(19)? as u64,
        pages: number(21)?.max(0) as u64,
    })
}

pub(crate) fn ticks_to_ms(ticks: u64) -> u64 {
    ticks * 1000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Rounded up.
pub(crate) fn pages_to_mib(pages: u64) -> u64 {
    (pages * rustix::param::page_size() as u64).div_ceil(1 << 20)
}

/// Children of all threads of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        if let Ok(text) = fs::read_to_string(thread.path().join("children")) {
            found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    found
}

/// A process and its descendants.
pub(crate) fn tree(root: u32) -> BTreeSet<u32> {
    let mut seen = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        open.extend(children(pid).into_iter().filter(|child| seen.insert(*child)));
    }
    seen
}

/// Real user of a process.
pub(crate) fn user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Value of a variable in the initial environment of a process.
pub(crate) fn variable(pid: u32, name: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environ
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    String::from_utf8(value.to_vec()).ok()
}

/// All visible processes.
pub(crate) fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Sends a signal; ignores ended processes.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // Fails only for an ended process or without permission.
        let _ = kill_process(pid, signal);
    }
}

/// Number of OOM kills since boot.
pub(crate) fn oom_kills() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Identifies the current boot; pids are unique only within one boot.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_in_the_command_name_do_not_break_parsing() {
        let rest = "S 1 7 8 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 555 1000 77 1844";
        let seen = parse_stat(&format!("42 (a) Z 9 (b)) {rest}")).unwrap();
        assert_eq!(
            (seen.group, seen.session, seen.ticks, seen.started, seen.pages),
            (7, 8, 100, 555, 77)
        );
        assert_eq!((seen.zombie, seen.stopped, seen.parent), (false, false, 1));
        assert_eq!(parse_stat("42 (cut"), None);
    }

    #[test]
    fn this_process_is_in_its_own_tree() {
        let me = std::process::id();
        assert!(tree(me).contains(&me));
        assert!(stat(me).is_some_and(|stat| stat.pages > 0 && stat.started > 0));
    }
}

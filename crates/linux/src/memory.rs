//! Resident memory of this program.
//!
//! Most resident memory of an idle program of this size is code and constants that only its start has used: the kernel
//! maps 64 KiB around each access if the file is cached, and unmaps nothing until memory is short.

use std::fs;
use std::io;
use std::path::Path;

/// Part of the program file in memory.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    length: usize,
}

/// Unmaps code and constants of the program. The next access maps them again, in general from the page cache.
pub fn release_program_pages() -> io::Result<()> {
    let program = fs::read_link("/proc/self/exe")?;
    for mapping in unchanged(&fs::read_to_string("/proc/self/smaps")?, &program) {
        // SAFETY: the mapping belongs to the program file, has no write permission, and neither in memory nor in swap a
        // changed page, so every page has the bytes of the file. `MADV_DONTNEED` changes no bytes then: the next access
        // reads the file again. No thread writes to code or constants of the program between the check and this call.
        let result = unsafe {
            libc::madvise(
                std::ptr::with_exposed_provenance_mut(mapping.start),
                mapping.length,
                libc::MADV_DONTNEED,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Mappings of a file without write permission and without changed pages. Relocated constants have no write permission
/// either, but changed pages, in memory or in swap: these would be lost.
fn unchanged(smaps: &str, file: &Path) -> Vec<Mapping> {
    let none = |size: &str| size.trim() == "0 kB";
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some((mapping, mode)) = header(line) {
            let of_file = file.to_str().is_some_and(|file| line.ends_with(file));
            current = (of_file && matches!(mode, "r--p" | "r-xp")).then_some(mapping);
        } else if let Some(size) = line.strip_prefix("Anonymous:") {
            current = current.filter(|_| none(size));
        } else if let Some(size) = line.strip_prefix("Swap:") {
            found.extend(current.take().filter(|_| none(size)));
        }
    }
    found
}

/// Range and mode in the first line of a mapping: `55d0-55f0 r-xp 00002000 fe:00 42 /usr/bin/agentaflow`.
fn header(line: &str) -> Option<(Mapping, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    Some((Mapping { start, length: end.saturating_sub(start) }, rest.get(..4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_and_relocated_mappings_and_other_files_are_left_alone() {
        let swapped = |range: &str, mode: &str, anonymous: u32, swap: u32, file: &str| {
            format!(
                "{range} {mode} 00000000 fe:00 42   {file}\nRss: 8 kB\nAnonymous: {anonymous} kB\n\
                 Swap: {swap} kB\nSwapPss: 0 kB\nVmFlags: rd\n"
            )
        };
        let mapping = |range: &str, mode: &str, anonymous: u32, file: &str| {
            swapped(range, mode, anonymous, 0, file)
        };
        let smaps = [
            mapping("1000-3000", "r--p", 0, "/bin/program"),
            mapping("3000-8000", "r-xp", 0, "/bin/program"),
            mapping("8000-9000", "r--p", 4, "/bin/program"),
            mapping("9000-a000", "rw-p", 0, "/bin/program"),
            mapping("a000-b000", "r-xp", 0, "/lib/other"),
            mapping("b000-c000", "r--p", 0, ""),
            swapped("c000-d000", "r--p", 0, 4, "/bin/program"),
        ];
        let expected =
            [Mapping { start: 0x1000, length: 0x2000 }, Mapping { start: 0x3000, length: 0x5000 }];
        assert_eq!(unchanged(&smaps.concat(), Path::new("/bin/program")), expected);
    }

    #[test]
    fn resident_memory_falls_and_the_program_continues() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let before = resident();
        release_program_pages().unwrap();
        assert!(resident() < before, "{} of {before} KiB", resident());
        assert_eq!(format!("{:?}", Some(1.5)), "Some(1.5)");
    }
}

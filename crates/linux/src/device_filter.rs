//! Keeps the processes of a cgroup of version 2 from opening device files.
//!
//! Version 2 has no devices controller: the kernel asks a program (`BPF_PROG_TYPE_CGROUP_DEVICE`) that is attached to the
//! cgroup. The program here denies listed device files and allows all other files. It is assembled from the list, since a map
//! of devices would need more system calls and a lifetime of its own.
//!
//! The program is attached with `BPF_F_ALLOW_MULTI`: a device is open only if this program and the programs of all parents, such
//! as systemd's `DeviceAllow`, allow it. The kernel detaches the program when the cgroup is removed.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

// Values of `linux/bpf.h`.
const PROG_LOAD: u32 = 5;
const PROG_ATTACH: u32 = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;
const TYPE_MASK: i32 = 0xffff;
const TYPE_CHARACTER: i32 = 2;

// Operation codes of `linux/bpf_common.h`.
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x57;
const MOVE: u8 = 0xb7;
const JUMP_NOT_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

// Fields of `struct bpf_cgroup_dev_ctx`.
const ACCESS_TYPE: i16 = 0;
const MAJOR: i16 = 4;
const MINOR: i16 = 8;

// Registers: the result, the argument, and three that are free.
const RESULT: u8 = 0;
const ARGUMENT: u8 = 1;
const KIND: u8 = 2;
const MAJOR_NUMBER: u8 = 3;
const MINOR_NUMBER: u8 = 4;

/// The functions used here need no licence, but some kernels reject a program without one.
const LICENCE: &[u8] = b"Apache-2.0\0";

/// Character device files that processes may not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedDevice {
    pub major: u32,
    /// `None` means all minor numbers.
    pub minor: Option<u32>,
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high half.
    registers: u8,
    offset: i16,
    value: i32,
}

/// Fields of `union bpf_attr` for `BPF_PROG_LOAD`, as of Linux 4.14.
#[repr(C)]
struct LoadAttributes {
    program_type: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// Fields of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct AttachAttributes {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

/// Filter in the kernel. The cgroups to which it is attached keep it.
#[derive(Debug)]
pub struct DeviceFilter(OwnedFd);

impl DeviceFilter {
    /// Fails without the capability `CAP_BPF` or `CAP_SYS_ADMIN`, and where the system call is filtered.
    pub fn load(denied: &[DeniedDevice]) -> io::Result<Self> {
        let program = program(denied);
        let attributes = LoadAttributes {
            program_type: PROG_TYPE_CGROUP_DEVICE,
            count: program.len() as u32,
            instructions: program.as_ptr().expose_provenance() as u64,
            licence: LICENCE.as_ptr().expose_provenance() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
        };
        let descriptor = match bpf(PROG_LOAD, &attributes) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                with_locked_memory(|| bpf(PROG_LOAD, &attributes))?
            }
            loaded => loaded?,
        };
        // SAFETY: the kernel has just created the descriptor for this call, so nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Applies to the processes of the cgroup and to processes that enter it. `cgroup` is its directory.
    pub fn attach(&self, cgroup: impl AsFd) -> io::Result<()> {
        let attributes = AttachAttributes {
            target: cgroup.as_fd().as_raw_fd().cast_unsigned(),
            program: self.0.as_raw_fd().cast_unsigned(),
            attach_type: CGROUP_DEVICE,
            flags: ALLOW_MULTI,
        };
        bpf(PROG_ATTACH, &attributes).map(drop)
    }
}

/// Linux before 5.11 counts programs as locked memory, of which most users have 64 KiB. Processes inherit the limit, so it
/// is raised for this call only.
fn with_locked_memory<T>(call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    let result = call();
    setrlimit(Resource::Memlock, before)?;
    result
}

/// Prefix of `union bpf_attr`: the kernel takes missing fields as zero. `T` is one of the two structs above.
fn bpf<T>(command: u32, attributes: &T) -> io::Result<i32> {
    // SAFETY: `attributes` is a valid struct of the stated size. Its addresses point to arrays that live until the
    // caller returns, with the stated length or a null byte at the end; the kernel only reads them.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn program(denied: &[DeniedDevice]) -> Vec<Instruction> {
    let load = |register, field| instruction(LOAD_WORD, register, ARGUMENT, field, 0);
    let rules: Vec<Instruction> = denied.iter().flat_map(rule).collect();
    let mut program = vec![
        load(KIND, ACCESS_TYPE),
        instruction(AND, KIND, 0, 0, TYPE_MASK),
        load(MAJOR_NUMBER, MAJOR),
        load(MINOR_NUMBER, MINOR),
        // Block devices are allowed.
        instruction(JUMP_NOT_EQUAL, KIND, 0, rules.len() as i16, TYPE_CHARACTER),
    ];
    program.extend(rules);
    program.extend(answer(true));
    program
}

fn rule(device: &DeniedDevice) -> Vec<Instruction> {
    let minor = device.minor.map(|minor| unequal(MINOR_NUMBER, 2, minor));
    let mut rule = vec![unequal(MAJOR_NUMBER, 2 + i16::from(minor.is_some()), device.major)];
    rule.extend(minor);
    rule.extend(answer(false));
    rule
}

/// Skips instructions if a register differs from a number.
fn unequal(register: u8, skipped: i16, number: u32) -> Instruction {
    instruction(JUMP_NOT_EQUAL, register, 0, skipped, number.cast_signed())
}

fn answer(allowed: bool) -> [Instruction; 2] {
    [instruction(MOVE, RESULT, 0, 0, allowed.into()), instruction(EXIT, 0, 0, 0, 0)]
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions as the kernel reads them, in hexadecimal digits.
    fn bytes(denied: &[DeniedDevice]) -> Vec<String> {
        let digits = |one: &Instruction| {
            let [low, high] = one.offset.to_le_bytes();
            let [a, b, c, d] = one.value.to_le_bytes();
            let all = [one.code, one.registers, low, high, a, b, c, d];
            format!("{:016x}", u64::from_be_bytes(all))
        };
        program(denied).iter().map(digits).collect()
    }

    #[test]
    fn a_program_without_denied_devices_allows_everything() {
        let expected = [
            "6112000000000000", // r2 = access_type
            "57020000ffff0000", // r2 &= 0xffff
            "6113040000000000", // r3 = major
            "6114080000000000", // r4 = minor
            "5502000002000000", // if r2 != 2 skip 0
            "b700000001000000", // r0 = 1
            "9500000000000000", // exit
        ];
        assert_eq!(bytes(&[]), expected);
    }

    #[test]
    fn a_program_denies_whole_majors_and_single_minors() {
        let uvm = DeniedDevice { major: 511, minor: None };
        let third = DeniedDevice { major: 195, minor: Some(3) };
        let expected = [
            "5502070002000000", // if r2 != 2 skip 7
            "55030200ff010000", // if r3 != 511 skip 2
            "b700000000000000", // r0 = 0
            "9500000000000000", // exit
            "55030300c3000000", // if r3 != 195 skip 3
            "5504020003000000", // if r4 != 3 skip 2
            "b700000000000000", // r0 = 0
            "9500000000000000", // exit
            "b700000001000000", // r0 = 1
            "9500000000000000", // exit
        ];
        assert_eq!(bytes(&[uvm, third])[4..], expected);
    }
}

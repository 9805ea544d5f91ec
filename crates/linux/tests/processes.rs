//! Real processes. Tests that change users or cgroups need root.

#[path = "../../../tests/skip.rs"]
mod skip;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentaflow_linux::device_filter::{DeniedDevice, DeviceFilter};
use agentaflow_linux::process::{
    Confinement, Mounts, ProcessImage, REPORT_LENGTH, SpawnError, Spawned, Step, outcome, spawn,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use skip::skip;

fn image(argv: &[&str], dir: &Path) -> ProcessImage {
    let argv: Vec<String> = argv.iter().map(|arg| (*arg).to_owned()).collect();
    ProcessImage::new(&argv, [("PATH", "/usr/bin:/bin"), ("GREETING", "hello")], dir).unwrap()
}

fn confinement() -> (Confinement, io::PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    let confinement = Confinement {
        output: OwnedFd::from(writer),
        user: None,
        unified_cgroup: None,
        cgroups: Vec::new(),
        open_files: 0,
        user_processes: 0,
        oom_score: None,
        mounts: None,
    };
    (confinement, reader)
}

fn report(spawned: &mut Spawned) -> Result<(), SpawnError> {
    let mut report = [0; REPORT_LENGTH];
    let length = spawned.report.read(&mut report).unwrap();
    outcome(&report[..length])
}

/// Exit code.
fn reap(pid: u32) -> Option<i32> {
    let (_, status) =
        waitpid(Pid::from_raw(pid.cast_signed()), WaitOptions::empty()).unwrap().unwrap();
    status.exit_status()
}

/// Output of a shell script and its exit code.
fn run(script: &str, change: impl FnOnce(&mut Confinement)) -> (String, Option<i32>) {
    let (mut confinement, mut reader) = confinement();
    change(&mut confinement);
    let mut spawned = spawn(&image(&["sh", "-c", script], Path::new("/")), &confinement).unwrap();
    drop(confinement);
    report(&mut spawned).unwrap();
    let mut output = String::new();
    reader.read_to_string(&mut output).unwrap();
    (output, reap(spawned.pid))
}

fn failure(argv: &[&str], dir: &Path, change: impl FnOnce(&mut Confinement)) -> SpawnError {
    let (mut confinement, _reader) = confinement();
    change(&mut confinement);
    let mut spawned = spawn(&image(argv, dir), &confinement).unwrap();
    let error = report(&mut spawned).unwrap_err();
    assert_eq!(reap(spawned.pid), Some(127));
    error
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// New cgroup of version 2; removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(path))
        });
        let dir = mount?.join(format!("agentaflow-test-{}-{name}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        Some(Self(dir))
    }

    fn open(&self) -> OwnedFd {
        File::open(&self.0).unwrap().into()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn output_exit_code_environment_and_working_directory_match_the_program() {
    let (output, code) = run("cat; echo $GREETING; pwd >&2; exit 7", |_| {});
    assert_eq!((&*output, code), ("hello\n/\n", Some(7)));
}

/// The Rust runtime ignores `SIGPIPE`, and all signals are blocked around the fork.
#[test]
fn a_broken_pipe_ends_a_process_and_no_signal_is_blocked() {
    let (output, _) = run("grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f2", |_| {});
    let masks: Vec<u64> =
        output.lines().map(|mask| u64::from_str_radix(mask, 16).unwrap()).collect();
    assert_eq!((masks[0], masks[1] & 1 << (libc::SIGPIPE - 1)), (0, 0), "{output}");
}

#[test]
fn a_process_cannot_gain_privileges_and_leads_its_own_group() {
    let script = "grep NoNewPrivs /proc/self/status; [ $$ = $(cut -d' ' -f5 /proc/$$/stat) ]";
    assert_eq!(run(script, |_| {}), ("NoNewPrivs:\t1\n".to_owned(), Some(0)));
}

#[test]
fn no_process_can_join_the_group_of_another_job() {
    let (confinement, _reader) = confinement();
    let mut spawned = spawn(&image(&["sleep", "300"], Path::new("/")), &confinement).unwrap();
    report(&mut spawned).unwrap();
    let mut intruder = Command::new("true");
    let joined = intruder.process_group(spawned.pid.cast_signed()).status();
    kill_process(Pid::from_raw(spawned.pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    reap(spawned.pid);
    assert!(joined.is_err(), "{joined:?}");
}

/// Programs inherit ignored signals.
#[test]
fn no_signal_is_ignored_in_a_process_of_a_parent_that_ignores_some() {
    // A shell that ignores signals runs this program again.
    const SWITCH: &str = "AGENTAFLOW_TEST_IGNORED";
    if std::env::var_os(SWITCH).is_some() {
        let (output, _) = run("grep SigIgn /proc/self/status", |_| {});
        print!("{output}");
        return;
    }
    let name = "no_signal_is_ignored_in_a_process_of_a_parent_that_ignores_some";
    let script = format!("trap '' USR1 HUP; exec \"$0\" --exact {name} --nocapture");
    let mut shell = Command::new("sh");
    let program = std::env::current_exe().unwrap();
    let output = shell.args(["-c", &script]).arg(program).env(SWITCH, "1").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mask = output.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    assert_eq!(mask & (1 << (libc::SIGUSR1 - 1) | 1 << (libc::SIGHUP - 1)), 0, "{output}");
}

#[test]
fn a_process_has_only_the_standard_descriptors() {
    // `dup` makes a descriptor that programs inherit.
    let inheritable = rustix::io::dup(File::open("/dev/null").unwrap()).unwrap();
    // 3 is the list itself.
    let (output, _) = run("echo $(ls /proc/self/fd)", |_| {});
    assert_eq!(output, "0 1 2 3\n");
    drop(inheritable);
}

#[test]
fn limits_apply_to_the_process() {
    let (output, _) = run("ulimit -n; ulimit -Hn", |confinement| confinement.open_files = 77);
    assert_eq!(output, "77\n77\n");
}

#[test]
fn a_failed_start_names_its_step() {
    let root = Path::new("/");
    let check = |error: SpawnError, step: Step, errno: i32| {
        assert_eq!((error.step, error.source.raw_os_error()), (step, Some(errno)), "{error:?}");
    };
    check(failure(&["no-such-program"], root, |_| {}), Step::Exec, libc::ENOENT);
    check(failure(&["/etc/passwd"], root, |_| {}), Step::Exec, libc::EACCES);
    check(failure(&["true"], Path::new("/no/such"), |_| {}), Step::WorkingDir, libc::ENOENT);
    // A directory that is no cgroup.
    let no_group = |confinement: &mut Confinement| {
        confinement.unified_cgroup = Some(File::open("/proc/self/fdinfo").unwrap().into());
    };
    check(failure(&["true"], root, no_group), Step::Cgroup, libc::ENOENT);
}

#[test]
fn a_process_has_its_user_and_no_other_group() {
    if !is_root() {
        skip!("needs root");
    }
    let script = "id -u; id -g; id -G; cat /proc/self/oom_score_adj";
    let (output, _) = run(script, |confinement| {
        confinement.user = Some((54321, 54322));
        confinement.oom_score = Some(321);
    });
    assert!(output.starts_with("54321\n54322\n54322\n321\n"), "{output}");
}

#[test]
fn the_oom_score_is_that_of_the_process() {
    let (output, _) = run("cat /proc/self/oom_score_adj", |confinement| {
        confinement.oom_score = Some(321);
    });
    assert_eq!(output, "321\n");
}

#[test]
fn a_process_starts_in_its_cgroup_and_its_parent_stays_outside() {
    let Some(group) = Group::new("start") else {
        skip!("needs a cgroup v2 hierarchy that this user may change");
    };
    let (output, code) = run("cat /proc/self/cgroup", |confinement| {
        confinement.unified_cgroup = Some(group.open());
    });
    let name = group.0.file_name().unwrap().to_str().unwrap();
    assert!(code == Some(0) && output.contains(name), "{output}");
    assert!(!fs::read_to_string("/proc/self/cgroup").unwrap().contains(name));
}

#[test]
fn a_process_cannot_open_denied_devices() {
    let Some(group) = Group::new("devices") else {
        skip!("needs a cgroup v2 hierarchy that this user may change");
    };
    let zero = DeniedDevice { major: 1, minor: Some(5) };
    let filter = match DeviceFilter::load(&[zero]) {
        Ok(filter) => filter,
        Err(error) => skip!("needs the right to load device filters: {error}"),
    };
    filter.attach(group.open()).unwrap();
    // The cgroup keeps the filter.
    drop(filter);
    let script = "for file in zero null full; do (: < /dev/$file) 2> /dev/null && echo $file; done";
    let inside = |confinement: &mut Confinement| confinement.unified_cgroup = Some(group.open());
    assert_eq!(run(script, |_| {}).0, "zero\nnull\nfull\n");
    assert_eq!(run(script, inside).0, "null\nfull\n");
    // A second filter, as of systemd, composes with the first.
    DeviceFilter::load(&[DeniedDevice { major: 1, minor: Some(7) }])
        .unwrap()
        .attach(group.open())
        .unwrap();
    assert_eq!(run(script, inside).0, "null\n");
    DeviceFilter::load(&[DeniedDevice { major: 1, minor: None }])
        .unwrap()
        .attach(group.open())
        .unwrap();
    assert_eq!(run("(: < /dev/null) || echo closed", inside).0.lines().last(), Some("closed"));
}

/// Why this process cannot create mount namespaces.
fn no_namespaces() -> Option<io::Error> {
    Mounts::probe().err()
}

#[test]
fn a_process_has_its_own_tmp_and_shared_memory() {
    if let Some(error) = no_namespaces() {
        skip!("needs the right to create mount namespaces: {error}");
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let name = format!("agentaflow-test-{}", std::process::id());
    let script = format!("for dir in /tmp /dev/shm; do echo x > $dir/{name} && ls -A $dir; done");
    let (output, code) = run(&script, |confinement| {
        let mut mounts = Mounts::default();
        mounts.add(folder.path(), Path::new("/tmp")).unwrap();
        mounts.add_shared_memory(1).unwrap();
        confinement.mounts = Some(mounts);
    });
    assert_eq!((&*output, code), (&*format!("{name}\n{name}\n"), Some(0)));
    assert_eq!(fs::read_to_string(folder.path().join(&name)).unwrap(), "x\n");
    assert!(!Path::new("/tmp").join(&name).exists() && !Path::new("/dev/shm").join(&name).exists());
}

#[test]
fn shared_memory_of_a_process_has_a_limit() {
    if let Some(error) = no_namespaces() {
        skip!("needs the right to create mount namespaces: {error}");
    }
    let script = "head -c 2000000 /dev/zero > /dev/shm/file; wc -c < /dev/shm/file";
    let (output, _) = run(script, |confinement| {
        let mut mounts = Mounts::default();
        mounts.add_shared_memory(1).unwrap();
        confinement.mounts = Some(mounts);
    });
    assert!(output.ends_with("\n1048576\n"), "{output}");
}

#[test]
fn a_covered_folder_stays_visible_only_if_the_user_of_the_process_can_reach_it() {
    if let Some(error) = no_namespaces() {
        skip!("needs the right to create mount namespaces: {error}");
    }
    let (own, host) =
        (tempfile::tempdir_in("/tmp").unwrap(), tempfile::tempdir_in("/tmp").unwrap());
    let kept = host.path().join("data");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "kept\n").unwrap();
    // The mount point.
    fs::create_dir_all(own.path().join(kept.strip_prefix("/tmp").unwrap())).unwrap();
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let hidden = own.path().join(host.path().strip_prefix("/tmp").unwrap());
    for path in [own.path(), &hidden, &kept] {
        open(path, 0o755);
    }
    let confine = |confinement: &mut Confinement| {
        let mut mounts = Mounts::default();
        mounts.add(own.path(), Path::new("/tmp")).unwrap();
        mounts.keep(&kept).unwrap();
        confinement.mounts = Some(mounts);
        confinement.user = Some((54321, 54322));
    };
    open(host.path(), 0o755);
    let script = format!("cat {}/file; id -u", kept.display());
    assert_eq!(run(&script, confine).0, "kept\n54321\n");
    open(host.path(), 0o700);
    let error = failure(&["true"], Path::new("/"), confine);
    assert_eq!(
        (error.step, error.source.kind()),
        (Step::WorkingDir, io::ErrorKind::PermissionDenied)
    );
}

//! Terminal for tests: a pseudo-terminal and its screen contents.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Timeout of expected output on a busy machine.
const SOON: Duration = Duration::from_mins(1);

/// A terminal with a program on it.
pub(crate) struct Terminal {
    keyboard: File,
    device: File,
    screen: Arc<Mutex<vt100::Parser>>,
    child: Child,
}

impl Terminal {
    /// Starts the program with this as its controlling terminal.
    pub(crate) fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let controller: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let device = File::options().read(true).write(true).open(name).unwrap();
        tcsetwinsize(&device, size(columns, rows)).unwrap();
        // `setsid` executes the program in its own process, so the PID is the same and signals reach the program.
        let mut started = Command::new("setsid");
        started.arg("--ctty").arg(command.get_program()).args(command.get_args());
        started.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => started.env(name, value),
                None => started.env_remove(name),
            };
        }
        let stream = || device.try_clone().unwrap();
        let child = started.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let keyboard = File::from(controller);
        let (mut output, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        spawn(move || {
            let mut bytes = [0; 8192];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { keyboard, device, screen, child }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&mut self, columns: u16, rows: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.device, size(columns, rows)).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen meets the condition.
    #[track_caller]
    pub(crate) fn wait(&self, wanted: &str, test: impl Fn(&str) -> bool) {
        let since = Instant::now();
        while !test(&self.contents()) {
            assert!(since.elapsed() < SOON, "not on the screen: {wanted}\n{}", self.contents());
            sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        self.wait(text, |shown| shown.contains(text));
    }

    #[track_caller]
    pub(crate) fn wait_until_gone(&self, text: &str) {
        self.wait(&format!("no {text}"), |shown| !shown.contains(text));
    }

    /// True if a program uses the alternate screen, reads single keys and hides the cursor.
    pub(crate) fn is_taken(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        screen.screen().alternate_screen() && screen.screen().hide_cursor() && !self.echoes()
    }

    /// Waits until the program ends.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < SOON, "it does not end:\n{}", self.contents());
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the shell has its screen, its cursor and its echo back.
    #[track_caller]
    pub(crate) fn assert_restored(&self) {
        let since = Instant::now();
        loop {
            let parser = self.screen.lock().unwrap();
            let (alternate, hidden) =
                (parser.screen().alternate_screen(), parser.screen().hide_cursor());
            drop(parser);
            if !alternate && !hidden && self.echoes() {
                return;
            }
            // The last output may not have reached the screen yet.
            assert!(
                since.elapsed() < Duration::from_secs(5),
                "alternate screen {alternate}, cursor hidden {hidden}, echo {}",
                self.echoes()
            );
            sleep(Duration::from_millis(20));
        }
    }

    fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.device).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

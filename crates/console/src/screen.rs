//! Owns the terminal, and restores it at every exit, also after a panic.

use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use agentaflow_api::Stamp;
use anyhow::{Context as _, Result, bail};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{execute, queue};
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::interval;

use crate::model::{Effect, Message, Model, Snapshot};
use crate::poll::Poller;
use crate::source::Source;
use crate::view::{self, Theme};

/// Interval at which ages on the screen advance.
const TICK: Duration = Duration::from_secs(1);

/// Set while the view owns the terminal.
static OWNED: AtomicBool = AtomicBool::new(false);

/// Shows the view until the user quits or a signal arrives; returns the exit code.
pub async fn run(
    source: Arc<dyn Source>,
    first: Snapshot,
    every: Duration,
    theme: Theme,
) -> Result<ExitCode> {
    let mut signals = TerminationSignals::listen()?;
    let mut screen = Screen::enter()?;
    let (sender, mut messages) = unbounded_channel();
    let mut model = Model::new(source.address(), every, screen.size()?, Stamp::now());
    model.update(Message::Snapshot(Box::new(first)));
    let poller = Poller::start(source, every, sender);
    let mut keys = read_keys();
    let mut clock = interval(TICK);
    loop {
        // A resize event may be lost before the key reader starts.
        let (columns, rows) = screen.size()?;
        if model.size != (columns, rows) {
            model.update(Message::Resized(columns, rows));
        }
        poller.set_requests(model.requests());
        screen.draw(&model, theme)?;
        let mut message = tokio::select! {
            // Signals take precedence over a flood of messages.
            biased;
            number = signals.next() => return Ok(ExitCode::from(128 + number)),
            key = keys.recv() => Some(key.context("cannot read the terminal")?),
            message = messages.recv() => message,
            _ = clock.tick() => None,
        };
        if poller.is_broken() {
            bail!("the background refresh stopped unexpectedly");
        }
        model.update(Message::Clock(Stamp::now()));
        // All queued messages are applied before one redraw.
        while let Some(next) = message {
            match model.update(next) {
                Some(Effect::Quit) => return Ok(ExitCode::SUCCESS),
                Some(Effect::Suspend) => screen.suspend()?,
                Some(Effect::Repaint) => screen.repaint()?,
                Some(Effect::Refresh) => poller.refresh(),
                Some(Effect::Cancel(job)) => poller.cancel(job),
                None => {}
            }
            message = keys.try_recv().or_else(|_| messages.try_recv()).ok();
        }
    }
}

/// Reads keys on a thread that lives until the process exits, since a blocking read cannot be interrupted. The channel
/// closes when the terminal does.
fn read_keys() -> UnboundedReceiver<Message> {
    let (sender, keys) = unbounded_channel();
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            let message = match event {
                Event::Key(key) => Message::Key(key),
                Event::Resize(columns, rows) => Message::Resized(columns, rows),
                _ => continue,
            };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    keys
}

/// The owned terminal; dropping the value restores it.
struct Screen {
    terminal: Terminal<CrosstermBackend<Frames>>,
}

impl Screen {
    fn enter() -> Result<Self> {
        restore_on_panic();
        let screen = Self { terminal: empty()? };
        acquire().context("cannot use the terminal")?;
        Ok(screen)
    }

    fn size(&self) -> Result<(u16, u16)> {
        let size = self.terminal.size().context("cannot read the size of the terminal")?;
        Ok((size.width, size.height))
    }

    /// Draws a frame within a synchronized update.
    fn draw(&mut self, model: &Model, theme: Theme) -> Result<()> {
        if !OWNED.load(Ordering::SeqCst) {
            bail!("the view stopped after a panic");
        }
        let drawn = queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)
            .and_then(|()| self.terminal.draw(|frame| view::draw(model, theme, frame)).map(drop))
            .and_then(|()| execute!(self.terminal.backend_mut(), EndSynchronizedUpdate));
        drawn.context("cannot draw")
    }

    /// Redraws from scratch. `Terminal::clear` queries the cursor position, and the key reader would receive the reply.
    fn repaint(&mut self) -> Result<()> {
        self.terminal = empty()?;
        queue!(self.terminal.backend_mut(), Clear(ClearType::All)).context("cannot draw")
    }

    /// Returns the terminal to the shell until `SIGCONT`.
    fn suspend(&mut self) -> Result<()> {
        restore();
        kill_process(getpid(), Signal::TSTP).context("cannot suspend")?;
        acquire().context("cannot use the terminal")?;
        self.repaint()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn empty() -> Result<Terminal<CrosstermBackend<Frames>>> {
    let terminal = Terminal::new(CrosstermBackend::new(Frames(Vec::new())));
    terminal.context("cannot use the terminal")
}

/// Buffers a frame until it is complete. A frame that is flushed after the terminal was restored is discarded, since it
/// would overwrite the shell.
#[derive(Debug)]
struct Frames(Vec<u8>);

impl Write for Frames {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.0);
        if !OWNED.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()
    }
}

fn acquire() -> io::Result<()> {
    OWNED.store(true, Ordering::SeqCst);
    let acquired =
        enable_raw_mode().and_then(|()| execute!(io::stdout(), EnterAlternateScreen, Hide));
    if acquired.is_err() {
        restore();
    }
    acquired
}

/// Restores the terminal once. Errors are ignored: the terminal may be closed.
fn restore() {
    if OWNED.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), EndSynchronizedUpdate, LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Restores the terminal before any thread prints a panic message.
fn restore_on_panic() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

struct TerminationSignals {
    all: [(u8, tokio::signal::unix::Signal); 4],
}

impl TerminationSignals {
    fn listen() -> Result<Self> {
        let listen = |number: u8| {
            let kind = SignalKind::from_raw(i32::from(number));
            signal(kind).map(|signal| (number, signal)).context("cannot listen for signals")
        };
        let number = |signal: Signal| signal.as_raw() as u8;
        let [hangup, interrupt, quit, terminate] =
            [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].map(number);
        Ok(Self { all: [listen(hangup)?, listen(interrupt)?, listen(quit)?, listen(terminate)?] })
    }

    /// Number of the next signal.
    async fn next(&mut self) -> u8 {
        let [(hangup, a), (interrupt, b), (quit, c), (terminate, d)] = &mut self.all;
        tokio::select! {
            _ = a.recv() => *hangup,
            _ = b.recv() => *interrupt,
            _ = c.recv() => *quit,
            _ = d.recv() => *terminate,
        }
    }
}

#[cfg(test)]
mod tests;

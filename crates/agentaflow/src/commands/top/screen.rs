//! The terminal: entered once, and left as it was however the program ends.

use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
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

use super::model::{Effect, Message, Model, Snapshot};
use super::poll::Poller;
use super::view::{self, Theme};
use crate::backend::Backend;

/// How often ages and times are counted on.
const TICK: Duration = Duration::from_secs(1);

/// Whether the terminal is ours now.
static OURS: AtomicBool = AtomicBool::new(false);

/// Shows the screen until the user or a signal ends it.
pub(super) async fn show(
    backend: Backend,
    first: Snapshot,
    every: Duration,
    theme: Theme,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let mut screen = Screen::enter()?;
    let (sender, mut messages) = unbounded_channel();
    let mut model = Model::new(backend.place(), every, screen.size()?, Stamp::now());
    model.update(Message::Data(Box::new(first)));
    let poller = Poller::start(backend, every, sender);
    let mut keys = read_keys();
    let mut clock = interval(TICK);
    loop {
        // News of a change may get lost, such as while keys are not read yet.
        let (columns, rows) = screen.size()?;
        if model.size != (columns, rows) {
            model.update(Message::Resized(columns, rows));
        }
        poller.want(model.wants());
        screen.draw(&model, theme)?;
        let mut message = tokio::select! {
            // A signal comes first, however busy it is.
            biased;
            number = signals.next() => return Ok(ExitCode::from(128 + number)),
            key = keys.recv() => Some(key.context("the terminal cannot be read any more")?),
            message = messages.recv() => message,
            _ = clock.tick() => None,
        };
        if poller.is_broken() {
            bail!("asking for news ended in a failure of its own");
        }
        model.update(Message::Clock(Stamp::now()));
        // What piled up is drawn once.
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

/// Reads keys on a thread of its own, which ends with the program: reading cannot be interrupted. The end of the
/// channel is the end of the terminal.
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

/// The terminal while it is ours. Leaving it is tied to the end of this value.
struct Screen {
    terminal: Terminal<CrosstermBackend<Frames>>,
}

impl Screen {
    fn enter() -> Result<Self> {
        restore_on_panic();
        let screen = Self { terminal: empty()? };
        take().context("cannot use the terminal")?;
        Ok(screen)
    }

    fn size(&self) -> Result<(u16, u16)> {
        let size = self.terminal.size().context("cannot tell the size of the terminal")?;
        Ok((size.width, size.height))
    }

    /// Draws in one go, so that nobody sees half of it.
    fn draw(&mut self, model: &Model, theme: Theme) -> Result<()> {
        if !OURS.load(Ordering::SeqCst) {
            bail!("it ended in a failure of its own");
        }
        let drawn = queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)
            .and_then(|()| self.terminal.draw(|frame| view::draw(model, theme, frame)).map(drop))
            .and_then(|()| execute!(self.terminal.backend_mut(), EndSynchronizedUpdate));
        drawn.context("cannot draw")
    }

    /// Draws everything anew. `Terminal::clear` would ask the terminal where its cursor is, and the answer goes to
    /// whoever reads the keys.
    fn repaint(&mut self) -> Result<()> {
        self.terminal = empty()?;
        queue!(self.terminal.backend_mut(), Clear(ClearType::All)).context("cannot draw")
    }

    /// Gives the terminal back to the shell until it is continued.
    fn suspend(&mut self) -> Result<()> {
        restore();
        kill_process(getpid(), Signal::TSTP).context("cannot put it aside")?;
        take().context("cannot use the terminal")?;
        self.repaint()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal on which nothing is drawn yet.
fn empty() -> Result<Terminal<CrosstermBackend<Frames>>> {
    let terminal = Terminal::new(CrosstermBackend::new(Frames(Vec::new())));
    terminal.context("cannot use the terminal")
}

/// What is drawn, held back until it is whole. What is left when the terminal was given back is thrown away: it
/// would be written over the user's shell.
#[derive(Debug)]
struct Frames(Vec<u8>);

impl Write for Frames {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.0);
        if !OURS.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()
    }
}

fn take() -> io::Result<()> {
    OURS.store(true, Ordering::SeqCst);
    let taken = enable_raw_mode().and_then(|()| execute!(io::stdout(), EnterAlternateScreen, Hide));
    if taken.is_err() {
        restore();
    }
    taken
}

/// Leaves the terminal as it was, once. It may be gone, which is as good.
fn restore() {
    if OURS.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), EndSynchronizedUpdate, LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// What a panic has to say goes to a terminal that is in order, whichever thread it is.
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

/// Signals that end it.
struct Signals {
    all: [(u8, tokio::signal::unix::Signal); 4],
}

impl Signals {
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

    /// The number of the next one.
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

//! What each key does.

use agentaflow_api::job::Job;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::sheet;
use super::rows::orders;
use super::{Cover, Effect, GpuRow, Model, Pane};

/// The longest filter.
const FILTER: usize = 60;

/// How far a key goes.
#[derive(Clone, Copy, Debug)]
enum Step {
    By(isize),
    Page(isize),
    First,
    Last,
}

impl Model {
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::ALT) {
            // Esc and a key right after it, which terminals send in the same way.
            let first = self.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
            let rest = key.modifiers - KeyModifiers::ALT;
            return first.or_else(|| self.key(KeyEvent::new(key.code, rest)));
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Effect::Quit),
                KeyCode::Char('z') => Some(Effect::Suspend),
                KeyCode::Char('l') => Some(Effect::Repaint),
                KeyCode::Char('u') if self.typing => {
                    self.filter.clear();
                    None
                }
                _ => None,
            };
        }
        if self.typing {
            self.filter_key(key.code);
            return None;
        }
        match &self.cover {
            Cover::Nothing => self.pane_key(key.code),
            Cover::Confirm(job) => {
                let yes = matches!(key.code, KeyCode::Char('y' | 'Y'));
                let effect = yes.then(|| Effect::Cancel(job.clone()));
                self.cover = Cover::Nothing;
                effect
            }
            Cover::Help | Cover::Logs(_) | Cover::Why(_) => {
                self.cover_key(key.code);
                None
            }
        }
    }

    fn filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc => {
                self.filter.clear();
                self.typing = false;
            }
            KeyCode::Enter | KeyCode::Tab | KeyCode::Up | KeyCode::Down => self.typing = false,
            KeyCode::Backspace => {
                // Going back beyond the start leaves it, as in editors.
                self.typing = self.filter.pop().is_some();
            }
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn pane_key(&mut self, code: KeyCode) -> Option<Effect> {
        if let Some(step) = step(code) {
            self.walk(step);
            return None;
        }
        match code {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Char('r') => return Some(Effect::Refresh),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(2),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.open(Cover::Help),
            KeyCode::Char('s') => self.sort(),
            KeyCode::Char('S') => {
                let cursor = self.cursors.entry(self.focus).or_default();
                cursor.reversed = !cursor.reversed;
            }
            KeyCode::Char(' ') => self.fold(),
            KeyCode::Char('x') => self.fold_all(),
            KeyCode::Char('e') => self.about_job(Cover::Why),
            KeyCode::Char('l') => self.about_job(Cover::Logs),
            KeyCode::Char('c') => self.ask_to_cancel(),
            KeyCode::Enter => match self.row_node() {
                Some(_) => self.fold(),
                None => self.about_job(Cover::Why),
            },
            _ => {}
        }
        None
    }

    fn cover_key(&mut self, code: KeyCode) {
        let output = matches!(self.cover, Cover::Logs(_));
        match (code, &self.cover) {
            (KeyCode::Char('l'), Cover::Why(job)) => self.open(Cover::Logs(job.clone())),
            (KeyCode::Char('e'), Cover::Logs(job)) => self.open(Cover::Why(job.clone())),
            (KeyCode::Char('c'), Cover::Logs(job) | Cover::Why(job)) => {
                self.confirm(&job.clone());
            }
            (KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left, _)
            | (KeyCode::Char('?'), Cover::Help) => self.cover = Cover::Nothing,
            (code, _) => {
                let Some(step) = step(code) else { return };
                let page = sheet::page(self.size) as isize;
                let by = match step {
                    Step::By(by) => by,
                    Step::Page(by) => by.saturating_mul(page),
                    Step::First => isize::MIN / 2,
                    Step::Last => isize::MAX / 2,
                };
                // Output is measured from its end, which it follows as it grows.
                let by = if output { -by } else { by };
                let lines = sheet::lines(self, usize::from(self.size.0)).len();
                let most = lines.saturating_sub(page as usize);
                self.scroll = self.scroll.saturating_add_signed(by).min(most);
            }
        }
    }

    fn walk(&mut self, step: Step) {
        let page = self.areas().page(self.focus).max(1) as isize;
        let cursor = self.cursors.entry(self.focus).or_default();
        let by = match step {
            Step::By(by) => by,
            Step::Page(by) => by.saturating_mul(page),
            Step::First => isize::MIN / 2,
            Step::Last => isize::MAX / 2,
        };
        cursor.index = cursor.index.saturating_add_signed(by);
        cursor.key = None;
    }

    fn turn(&mut self, by: usize) {
        const RING: [Pane; 3] = [Pane::Gpus, Pane::Jobs, Pane::Queue];
        let at = RING.iter().position(|pane| *pane == self.focus).unwrap_or(0);
        self.focus = RING[(at + by) % RING.len()];
    }

    fn sort(&mut self) {
        let count = orders(self.focus).len();
        let cursor = self.cursors.entry(self.focus).or_default();
        cursor.sort = (cursor.sort + 1) % count;
        cursor.reversed = false;
    }

    fn row_node(&self) -> Option<String> {
        if self.focus != Pane::Gpus {
            return None;
        }
        match self.gpus().get(self.cursor(Pane::Gpus).index) {
            Some(GpuRow::Node { node, .. }) => Some(node.node_id.clone()),
            _ => None,
        }
    }

    /// Folds or unfolds the node that is pointed at, or whose GPU is.
    fn fold(&mut self) {
        if self.focus != Pane::Gpus {
            return;
        }
        let node = match self.gpus().get(self.cursor(Pane::Gpus).index) {
            Some(GpuRow::Node { node, .. } | GpuRow::Gpu { node, .. }) => node.node_id.clone(),
            None => return,
        };
        if !self.folded.remove(&node) {
            self.folded.insert(node.clone());
        }
        self.cursors.entry(Pane::Gpus).or_default().key = Some(node);
    }

    fn fold_all(&mut self) {
        let nodes = self.data.iter().flat_map(|data| &data.nodes);
        let all = nodes.map(|node| node.node_id.clone()).collect();
        if self.folded == all {
            self.folded.clear();
        } else {
            self.folded = all;
        }
    }

    fn open(&mut self, cover: Cover) {
        self.cover = cover;
        self.scroll = 0;
    }

    fn about_job(&mut self, cover: fn(String) -> Cover) {
        match self.subject_job().map(Job::handle) {
            Some(job) => self.open(cover(job)),
            None => self.notice = Some((self.now, "no job is chosen".to_owned())),
        }
    }

    fn ask_to_cancel(&mut self) {
        match self.subject_job().map(Job::handle) {
            Some(job) => self.confirm(&job),
            None => self.notice = Some((self.now, "no job is chosen".to_owned())),
        }
    }

    fn confirm(&mut self, handle: &str) {
        match self.job(handle) {
            Some(job) if !job.status.is_final() => self.cover = Cover::Confirm(handle.to_owned()),
            _ => self.notice = Some((self.now, format!("job {handle} is over already"))),
        }
    }
}

fn step(code: KeyCode) -> Option<Step> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => Step::By(-1),
        KeyCode::Down | KeyCode::Char('j') => Step::By(1),
        KeyCode::PageUp => Step::Page(-1),
        KeyCode::PageDown => Step::Page(1),
        KeyCode::Home | KeyCode::Char('g') => Step::First,
        KeyCode::End | KeyCode::Char('G') => Step::Last,
        _ => return None,
    })
}

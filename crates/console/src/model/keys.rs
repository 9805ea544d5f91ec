//! Key bindings.

use agentaflow_api::job::Job;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::rows::orders;
use super::{Effect, GpuRow, Model, Overlay, Pane};
use crate::detail;

/// Maximum length of the filter in characters.
const MAX_FILTER: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Step {
    By(isize),
    Page(isize),
    First,
    Last,
}

impl Model {
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::ALT) {
            // Terminals send Alt and a key in the same way as Esc and a key.
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
        match &self.overlay {
            Overlay::None => self.pane_key(key.code),
            Overlay::Confirm(job) => {
                let yes = matches!(key.code, KeyCode::Char('y' | 'Y'));
                let effect = yes.then(|| Effect::Cancel(job.clone()));
                self.overlay = Overlay::None;
                effect
            }
            Overlay::Help | Overlay::Logs(_) | Overlay::Explain(_) => {
                self.overlay_key(key.code);
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
                // Backspace in an empty filter leaves the filter, as in vi.
                self.typing = self.filter.pop().is_some();
            }
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < MAX_FILTER => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn pane_key(&mut self, code: KeyCode) -> Option<Effect> {
        if let Some(step) = step(code) {
            self.move_cursor(step);
            return None;
        }
        match code {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Char('r') => return Some(Effect::Refresh),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab | KeyCode::Right => self.focus_next(1),
            KeyCode::BackTab | KeyCode::Left => self.focus_next(2),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.open(Overlay::Help),
            KeyCode::Char('s') => self.sort(),
            KeyCode::Char('S') => {
                let cursor = self.cursors.entry(self.focus).or_default();
                cursor.reversed = !cursor.reversed;
            }
            KeyCode::Char(' ') => self.fold(),
            KeyCode::Char('x') => self.fold_all(),
            KeyCode::Char('e') => self.open_for_job(Overlay::Explain),
            KeyCode::Char('l') => self.open_for_job(Overlay::Logs),
            KeyCode::Char('c') => self.ask_to_cancel(),
            KeyCode::Enter => match self.row_node() {
                Some(_) => self.fold(),
                None => self.open_for_job(Overlay::Explain),
            },
            _ => {}
        }
        None
    }

    fn overlay_key(&mut self, code: KeyCode) {
        let output = matches!(self.overlay, Overlay::Logs(_));
        match (code, &self.overlay) {
            (KeyCode::Char('l'), Overlay::Explain(job)) => self.open(Overlay::Logs(job.clone())),
            (KeyCode::Char('e'), Overlay::Logs(job)) => self.open(Overlay::Explain(job.clone())),
            (KeyCode::Char('c'), Overlay::Logs(job) | Overlay::Explain(job)) => {
                self.confirm(&job.clone());
            }
            (KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left, _)
            | (KeyCode::Char('?'), Overlay::Help) => self.overlay = Overlay::None,
            (code, _) => {
                let Some(step) = step(code) else { return };
                let page = detail::page(self.size) as isize;
                let by = match step {
                    Step::By(by) => by,
                    Step::Page(by) => by.saturating_mul(page),
                    Step::First => isize::MIN / 2,
                    Step::Last => isize::MAX / 2,
                };
                // The offset of logs counts from their end, so that the view follows new lines.
                let by = if output { -by } else { by };
                let lines = detail::overlay_lines(self, usize::from(self.size.0)).len();
                let most = lines.saturating_sub(page as usize);
                self.scroll = self.scroll.saturating_add_signed(by).min(most);
            }
        }
    }

    fn move_cursor(&mut self, step: Step) {
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

    fn focus_next(&mut self, by: usize) {
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

    /// Folds or unfolds the node of the selected row.
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

    fn open(&mut self, overlay: Overlay) {
        self.overlay = overlay;
        self.scroll = 0;
    }

    fn open_for_job(&mut self, overlay: fn(String) -> Overlay) {
        match self.selected_job().map(Job::handle) {
            Some(job) => self.open(overlay(job)),
            None => self.notice = Some((self.now, "No job selected".to_owned())),
        }
    }

    fn ask_to_cancel(&mut self) {
        match self.selected_job().map(Job::handle) {
            Some(job) => self.confirm(&job),
            None => self.notice = Some((self.now, "No job selected".to_owned())),
        }
    }

    fn confirm(&mut self, handle: &str) {
        match self.job(handle) {
            Some(job) if !job.status.is_final() => {
                self.overlay = Overlay::Confirm(handle.to_owned());
            }
            _ => self.notice = Some((self.now, format!("Job {handle} has already finished"))),
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

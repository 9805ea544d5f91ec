//! Areas of a screen of a given size.

use ratatui::layout::Rect;

use crate::model::Pane;

/// The smallest supported screen, in columns and rows.
pub(crate) const MIN_SIZE: (u16, u16) = (36, 7);

/// The fewest rows with which panes have frames.
const MIN_FRAMED_ROWS: u16 = 34;

/// The fewest rows that show all panes; a smaller screen shows the focused one.
const MIN_STACKED_ROWS: u16 = 18;

/// Areas of the screen; an area that does not fit is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Areas {
    pub(crate) header: Rect,
    pub(crate) banner: Rect,
    pub(crate) gpus: Rect,
    pub(crate) jobs: Rect,
    pub(crate) queue: Rect,
    pub(crate) detail: Rect,
    pub(crate) footer: Rect,
    pub(crate) framed: bool,
}

impl Areas {
    pub(crate) fn pane(&self, pane: Pane) -> Rect {
        match pane {
            Pane::Gpus => self.gpus,
            Pane::Jobs => self.jobs,
            Pane::Queue => self.queue,
        }
    }

    /// Data rows of a pane.
    pub(crate) fn page(&self, pane: Pane) -> usize {
        let around = if self.framed { 3 } else { 1 };
        usize::from(self.pane(pane).height.saturating_sub(around))
    }
}

pub(crate) fn too_small((columns, rows): (u16, u16)) -> bool {
    columns < MIN_SIZE.0 || rows < MIN_SIZE.1
}

/// Heights depend on the screen and on the number of GPUs, not on the changing number of jobs.
pub(crate) fn areas(size: (u16, u16), banner: bool, focus: Pane, gpu_rows: usize) -> Areas {
    let (columns, rows) = size;
    if too_small(size) {
        return Areas::default();
    }
    let mut top = 0;
    let mut take = |height: u16| {
        let area = Rect::new(0, top, columns, height);
        top += height;
        area
    };
    let framed = rows >= MIN_FRAMED_ROWS;
    let header = take(if framed { 2 } else { 1 });
    let banner = take(u16::from(banner));
    let body = rows - header.height - banner.height - 1;
    let mut areas = Areas { header, banner, framed, ..Areas::default() };
    if rows < MIN_STACKED_ROWS {
        let area = take(body);
        match focus {
            Pane::Gpus => areas.gpus = area,
            Pane::Jobs => areas.jobs = area,
            Pane::Queue => areas.queue = area,
        }
    } else {
        let around = if framed { 3 } else { 1 };
        let wanted = u16::try_from(gpu_rows.max(1)).unwrap_or(u16::MAX).saturating_add(around);
        let least = around + 2;
        areas.gpus = take(wanted.clamp(least, (body / 2).max(least)));
        let rest = body - areas.gpus.height;
        // The detail area has at least two rows.
        let list = (rest * 36 / 100).max(4).min(rest.saturating_sub(2) / 2);
        areas.jobs = take(list);
        areas.queue = take(list);
        areas.detail = take(rest - 2 * list);
    }
    areas.footer = take(1);
    areas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_every_screen_without_a_gap() {
        for columns in [36, 80, 200] {
            for rows in 7..120 {
                for gpus in [0, 1, 9, 500] {
                    let areas = areas((columns, rows), rows % 2 == 0, Pane::Jobs, gpus);
                    let parts = [
                        areas.header,
                        areas.banner,
                        areas.gpus,
                        areas.jobs,
                        areas.queue,
                        areas.detail,
                        areas.footer,
                    ];
                    let sum: u16 = parts.iter().map(|part| part.height).sum();
                    assert_eq!(sum, rows, "{columns}×{rows}: {areas:?}");
                    assert_eq!(areas.footer.y, rows - 1, "{columns}×{rows}");
                    assert!(areas.page(Pane::Jobs) > 0, "{columns}×{rows}: {areas:?}");
                }
            }
        }
        assert!(too_small((35, 24)) && too_small((80, 6)) && !too_small((40, 10)));
    }
}

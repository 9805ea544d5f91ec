//! Where things stand on a screen of a given size.

use ratatui::layout::Rect;

use super::model::Pane;

/// The least that anything can be shown on.
pub(super) const LEAST: (u16, u16) = (36, 7);

/// From so many rows on, panes stand in frames.
const FRAMED: u16 = 34;

/// Below so many rows only the chosen pane is shown.
const STACKED: u16 = 18;

/// The parts of the screen; what has no room is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Areas {
    pub(super) header: Rect,
    pub(super) banner: Rect,
    pub(super) gpus: Rect,
    pub(super) jobs: Rect,
    pub(super) queue: Rect,
    pub(super) detail: Rect,
    pub(super) footer: Rect,
    pub(super) framed: bool,
}

impl Areas {
    /// Where a pane stands.
    pub(super) fn pane(&self, pane: Pane) -> Rect {
        match pane {
            Pane::Gpus => self.gpus,
            Pane::Jobs => self.jobs,
            Pane::Queue => self.queue,
        }
    }

    /// Rows that a pane can show.
    pub(super) fn page(&self, pane: Pane) -> usize {
        let around = if self.framed { 3 } else { 1 };
        usize::from(self.pane(pane).height.saturating_sub(around))
    }
}

/// Whether there is no room for anything.
pub(super) fn too_small((columns, rows): (u16, u16)) -> bool {
    columns < LEAST.0 || rows < LEAST.1
}

/// Where things stand. Heights hang on the screen and on the number of GPUs, not on jobs, which come and go.
pub(super) fn areas(size: (u16, u16), banner: bool, focus: Pane, gpu_rows: usize) -> Areas {
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
    let framed = rows >= FRAMED;
    let header = take(if framed { 2 } else { 1 });
    let banner = take(u16::from(banner));
    let body = rows - header.height - banner.height - 1;
    let mut areas = Areas { header, banner, framed, ..Areas::default() };
    if rows < STACKED {
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
        // What is chosen is told in at least two rows.
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

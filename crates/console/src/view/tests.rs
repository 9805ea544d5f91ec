use agentaflow_api::pending::{PendingCode, PendingReason};
use std::path::PathBuf;

use agentaflow_api::Stamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::{Theme, draw};
use crate::fixture::{NOW, model, press, snapshot};
use crate::model::{Message, Model};

pub(crate) fn drawn(model: &Model, size: (u16, u16), colour: bool, ascii: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    let theme = Theme { colour, ascii };
    terminal.draw(|frame| draw(model, theme, frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let rows = buffer.content.chunks(width);
    let row = |cells: &[ratatui::buffer::Cell]| {
        cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned()
            + "\n"
    };
    rows.map(row).collect()
}

/// Compares the screen with the picture of that name; `UPDATE=1` writes the picture.
fn check(name: &str, model: &Model, ascii: bool) {
    let shown = lines(&drawn(model, model.size, true, ascii));
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/view/pictures")
        .join(format!("{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &shown).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(shown, expected, "{name} differs; UPDATE=1 writes the picture");
}

#[test]
fn control_characters_of_jobs_do_not_reach_the_terminal() {
    let mut model = model(120, 40);
    let mut data = snapshot(0);
    for job in &mut data.jobs {
        job.spec.job_name = Some("evil\u{1b}]0;title\u{7}\u{9b}2J".to_owned());
    }
    let ids: Vec<String> = data.jobs.iter().map(agentaflow_api::job::Job::handle).collect();
    model.update(Message::Snapshot(Box::new(data)));
    press(&mut model, "<Tab>l");
    let mut logs = 0;
    for id in ids {
        let line = "output \u{1b}[2J\u{1b}]52;c;eA==\u{7}".to_owned();
        model.update(Message::Logs(id, Ok(vec![line])));
        let shown = drawn(&model, model.size, true, false);
        let control = |cell: &ratatui::buffer::Cell| cell.symbol().contains(char::is_control);
        assert!(!shown.content.iter().any(control), "{:?}", lines(&shown));
        logs += usize::from(lines(&shown).contains("output"));
    }
    assert_eq!(logs, 1, "the log of one job is shown");
}

#[test]
fn screens_match_their_pictures() {
    for (name, size, keys) in [
        ("80x24", (80, 24), ""),
        ("120x40", (120, 40), "j"),
        ("40x10", (40, 10), ""),
        ("40x10-queue", (40, 10), "<Tab><Tab>"),
        ("20x5", (20, 5), ""),
        ("80x24-folded", (80, 24), "x"),
        ("80x24-jobs", (80, 24), "<Tab>j"),
        ("80x24-queue", (80, 24), "<Tab><Tab>"),
        ("80x24-logs", (80, 24), "<Tab>jl<Up>"),
        ("80x24-explain", (80, 24), "<Tab><Tab><Enter>"),
        ("80x24-help", (80, 24), "?"),
        ("80x24-cancel", (80, 24), "<Tab>jc"),
        ("80x24-filter", (80, 24), "/eval"),
        ("120x40-sorted", (120, 40), "<Tab>ss"),
    ] {
        let mut model = model(size.0, size.1);
        press(&mut model, keys);
        check(name, &model, false);
    }
    check("80x24-ascii", &model(80, 24), true);
    check("120x40-ascii", &model(120, 40), true);
}

#[test]
fn unmonitored_gpus_show_their_model_and_no_utilization() {
    let mut model = model(80, 24);
    let mut snapshot = snapshot(0);
    for gpu in snapshot.nodes.iter_mut().flat_map(|node| &mut node.spec.gpu_instances) {
        gpu.gpu_type = Some("NVIDIA-A100-SXM4-80GB".to_owned());
        gpu.utilization = None;
    }
    model.update(Message::Snapshot(Box::new(snapshot)));
    let shown = lines(&drawn(&model, model.size, true, false));
    let first = shown.lines().next().unwrap();
    assert!(first.contains(" GPUs ") && !first.contains('%'), "{first}");
    assert!(shown.contains(" 0 A100-"), "{shown}");
}

#[test]
fn a_failed_refresh_shows_a_banner_over_the_last_data() {
    let mut model = model(80, 24);
    model.update(Message::Clock(Stamp(NOW.0 + 75_000)));
    model.update(Message::Failed("cannot reach http://127.0.0.1:8000".to_owned()));
    check("80x24-broken", &model, false);
}

#[test]
fn without_colours_the_selected_row_is_reversed() {
    let buffer = drawn(&model(80, 24), (80, 24), false, false);
    let plain = |colour: Color| colour == Color::Reset;
    assert!(buffer.content.iter().all(|cell| plain(cell.fg) && plain(cell.bg)));
    let reversed = ratatui::style::Modifier::REVERSED;
    assert!(buffer.content.iter().any(|cell| cell.modifier.contains(reversed)));
}

#[test]
fn ascii_mode_draws_only_ascii_for_any_name() {
    let mut model = model(120, 40);
    let mut data = snapshot(0);
    data.jobs[0].spec.job_name = Some("größe 日本 🚀".to_owned());
    data.nodes[0].spec.node_name = "knöten".to_owned();
    model.update(Message::Snapshot(Box::new(data)));
    for keys in ["", "<Tab>jl", "<Esc>e", "<Esc>?", "<Esc>c"] {
        press(&mut model, keys);
        let shown = lines(&drawn(&model, (120, 40), true, true));
        assert!(shown.is_ascii(), "{keys}: {shown}");
    }
}

#[test]
fn job_and_node_text_cannot_break_the_columns() {
    let mut model = model(80, 24);
    let straight = lines(&drawn(&model, (80, 24), true, false));
    let mut data = snapshot(39);
    data.jobs[0].spec.job_name = Some("\u{1b}[2J\u{1b}[H日本語日本語日本語\n\u{202e}x".to_owned());
    let note = "a\nb\u{7}\u{1b}]0;x\u{7}".to_owned();
    data.jobs[3].pending_reason =
        Some(PendingReason::Reported { reason: PendingCode::Unknown, note });
    data.nodes[1].spec.node_name = "n\u{1b}[31m".repeat(50);
    model.update(Message::Snapshot(Box::new(data)));
    let buffer = drawn(&model, (80, 24), true, false);
    assert!(buffer.content.iter().all(|cell| !cell.symbol().contains(char::is_control)));
    let shown = lines(&buffer);
    assert!(shown.contains("12 日") && !shown.contains("[2J"), "{shown}");
    assert_eq!(shown.lines().count(), straight.lines().count());
}

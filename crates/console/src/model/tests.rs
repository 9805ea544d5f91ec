use agentaflow_api::Stamp;
use agentaflow_api::ids::JobId;
use agentaflow_api::job::JobStatus;

use super::{Effect, Message, Model, Overlay, Pane, Requests, Selection};
use crate::fixture::{NOW, model, press, snapshot};

fn selected(model: &Model) -> String {
    match model.selection() {
        Selection::Nothing => "nothing".to_owned(),
        Selection::Job(job) => format!("job {}", job.id),
        Selection::Node(node) => node.spec.node_name.clone(),
        Selection::Gpu(node, gpu) => format!("{}/{gpu}", node.spec.node_name),
    }
}

#[test]
fn keys_move_through_panes_and_rows() {
    for (keys, expected) in [
        ("", "gpu-1"),
        ("j", "gpu-1/0"),
        ("<Down><Down>k", "gpu-1/0"),
        ("<End>", "gpu-2/1"),
        ("G<Home>", "gpu-1"),
        ("<PgDn>", "gpu-2/1"),
        ("<PgDn><PgUp>", "gpu-1"),
        ("<Up>", "gpu-1"),
        (" ", "gpu-1"),
        (" j", "gpu-2"),
        ("j j", "gpu-2"),
        ("<Enter>j", "gpu-2"),
        ("xj", "gpu-2"),
        ("xxj", "gpu-1/0"),
        ("<Tab>", "job 13"),
        ("<Tab>j", "job 12"),
        ("<Tab>jj", "job 11"),
        ("<Tab>G", "job 10"),
        ("<Tab><Tab>", "job 14"),
        ("<BackTab>", "job 14"),
        ("<Tab><Tab><Tab>", "gpu-1"),
    ] {
        let mut model = model(80, 24);
        press(&mut model, keys);
        assert_eq!(selected(&model), expected, "after {keys:?}");
    }
}

#[test]
fn s_changes_the_sort_order_of_a_pane() {
    for (keys, expected) in [
        ("s", "gpu-2"),
        ("sS", "gpu-1"),
        ("<Tab>s<Home>", "job 13"),
        ("<Tab>ss<Home>", "job 12"),
        ("<Tab>sss<Home>", "job 13"),
        ("<Tab><Tab>S<Home>", "job 15"),
        ("<Tab><Tab>ssss<Home>", "job 14"),
        ("<Tab><Tab>sssss<Home>", "job 14"),
    ] {
        let mut model = model(80, 24);
        press(&mut model, keys);
        press(&mut model, "<Home>");
        assert_eq!(selected(&model), expected, "after {keys:?}");
    }
}

#[test]
fn a_filter_hides_other_rows_until_esc() {
    let mut model = model(80, 24);
    press(&mut model, "/EVAL");
    let ids = |model: &Model| model.jobs().iter().map(|job| job.id.0).collect::<Vec<_>>();
    assert_eq!(ids(&model), [13]);
    assert_eq!(selected(&model), "gpu-2", "the node of the job stays");
    assert!(model.queue().is_empty());
    press(&mut model, "<Enter>");
    assert!(!model.typing);
    press(&mut model, "q/<Backspace><Backspace><Backspace><Backspace>");
    assert_eq!((model.filter.as_str(), ids(&model).len()), ("", 4));
    press(&mut model, "train<Esc>");
    assert_eq!((model.filter.as_str(), model.typing), ("", false));
    press(&mut model, "/failed<Enter>");
    assert_eq!(ids(&model), [11]);
    press(&mut model, "<Esc>");
    assert_eq!(ids(&model).len(), 4);
}

#[test]
fn keys_go_to_the_filter_while_it_is_edited() {
    let mut model = model(80, 24);
    assert_eq!(press(&mut model, "/qcy"), []);
    assert_eq!(model.filter, "qcy");
    assert_eq!(press(&mut model, "<C-c>"), [Effect::Quit]);
}

#[test]
fn a_job_is_cancelled_only_after_confirmation() {
    for (keys, expected) in [
        ("<Tab>cy", vec![Effect::Cancel("13".to_owned())]),
        ("<Tab>jcY", vec![Effect::Cancel("12".to_owned())]),
        ("<Tab><Tab>cy", vec![Effect::Cancel("14".to_owned())]),
        ("jcy", vec![Effect::Cancel("12".to_owned())]),
        ("<Tab>ecy", vec![Effect::Cancel("13".to_owned())]),
        ("<Tab>cn", vec![]),
        ("<Tab>c<Enter>y", vec![]),
        ("<Tab>c<Esc>", vec![]),
        ("<Tab>Gcy", vec![]),
        ("cy", vec![]),
    ] {
        let mut model = model(80, 24);
        assert_eq!(press(&mut model, keys), expected, "{keys:?}");
    }
}

#[test]
fn keys_with_effects_outside_the_model_are_returned() {
    for (keys, expected) in [
        ("q", Effect::Quit),
        ("<C-c>", Effect::Quit),
        ("?<C-c>", Effect::Quit),
        ("?qq", Effect::Quit),
        ("<C-z>", Effect::Suspend),
        ("<C-l>", Effect::Repaint),
        ("r", Effect::Refresh),
    ] {
        let mut model = model(80, 24);
        assert_eq!(press(&mut model, keys), [expected], "{keys:?}");
    }
}

#[test]
fn the_selected_row_stays_selected_when_rows_change() {
    let mut model = model(80, 24);
    press(&mut model, "<Tab>j");
    assert_eq!(selected(&model), "job 12");
    let mut data = snapshot(1);
    let mut newer = data.jobs[0].clone();
    newer.id = JobId(99);
    newer.started_at = Some(NOW);
    data.jobs.push(newer);
    model.update(Message::Snapshot(Box::new(data)));
    assert_eq!(selected(&model), "job 12");
    let mut data = snapshot(1);
    data.jobs.remove(0);
    model.update(Message::Snapshot(Box::new(data)));
    assert_eq!(selected(&model), "job 10", "the row at the same index");
    model.update(Message::Snapshot(Box::default()));
    assert_eq!(selected(&model), "nothing");
}

#[test]
fn a_failed_refresh_keeps_the_last_data() {
    let mut model = model(80, 24);
    model.update(Message::Clock(Stamp(NOW.0 + 14_000)));
    model.update(Message::Failed("unreachable".to_owned()));
    assert!(model.error.is_some() && !model.jobs().is_empty());
    assert!((model.age() - 14.0).abs() < 0.01);
    model.update(Message::Snapshot(Box::new(snapshot(0))));
    assert!(model.error.is_none() && model.age() < 0.01);
}

#[test]
fn only_visible_jobs_are_requested() {
    let mut model = model(80, 24);
    let queue = vec!["14".to_owned(), "15".to_owned()];
    assert_eq!(model.requests(), Requests { explain: queue.clone(), logs: None });
    press(&mut model, "<Tab>");
    assert_eq!(model.requests(), Requests { explain: queue, logs: Some("13".to_owned()) });
    press(&mut model, "e");
    assert_eq!(model.requests().explain[0], "13");
    press(&mut model, "<Esc><Tab>jl");
    assert_eq!(model.overlay, Overlay::Logs("15".to_owned()));
    assert_eq!(model.requests().logs.as_deref(), Some("15"));
    let mut data = snapshot(0);
    data.jobs = (0..500)
        .map(|id| agentaflow_api::job::Job { id: JobId(id), ..data.jobs[2].clone() })
        .collect();
    model.update(Message::Snapshot(Box::new(data)));
    assert!(model.requests().explain.len() <= 10, "{:?}", model.requests());
}

#[test]
fn logs_scroll_from_their_end() {
    let mut model = model(80, 24);
    press(&mut model, "<Tab>jl");
    assert_eq!(model.scroll, 0);
    press(&mut model, "<Up><Up>");
    assert_eq!(model.scroll, 2);
    press(&mut model, "<Home>");
    assert_eq!(model.scroll, 40);
    press(&mut model, "<End>");
    assert_eq!(model.scroll, 0);
    press(&mut model, "<Esc>");
    assert_eq!((&model.overlay, model.focus), (&Overlay::None, Pane::Jobs));
}

#[test]
fn esc_followed_by_a_key_is_two_keys() {
    let mut model = model(80, 24);
    press(&mut model, "<Tab>e<A-l>");
    assert_eq!(model.overlay, Overlay::Logs("13".to_owned()));
    press(&mut model, "<Esc>c<A-y>");
    assert_eq!(model.overlay, Overlay::None);
}

#[test]
fn a_notice_expires() {
    let mut model = model(80, 24);
    model.update(Message::Cancelled(Ok("job 12 is being stopped".to_owned())));
    assert!(model.notice.is_some());
    model.update(Message::Clock(Stamp(NOW.0 + 7_000)));
    assert!(model.notice.is_none());
}

#[test]
fn odd_sizes_keys_and_data_do_not_panic() {
    let mut odd = snapshot(0);
    odd.nodes[0].spec.gpu_instances[0].utilization = Some(f64::NAN);
    odd.nodes[0].spec.gpu_instances[1].gpu_memory_available = Some(u64::MAX);
    odd.nodes[0].spec.gpu_instances[2].power_usage = Some(f64::INFINITY);
    odd.jobs[0].created_at = Stamp(i64::MAX / 2);
    odd.jobs[1].status = JobStatus::Scheduled;
    for size in [(0, 0), (1, 1), (36, 7), (40, 10), (80, 24), (500, 200)] {
        let mut model = model(80, 24);
        for keys in ["<PgDn><Tab>G", "l<PgUp><Home>", "<Esc>e<End><Esc>", "?<PgDn><Esc>", "xsS/x"] {
            model.update(Message::Resized(size.0, size.1));
            press(&mut model, keys);
            model.update(Message::Snapshot(Box::new(odd.clone())));
            crate::view::tests::drawn(&model, size, true, false);
        }
    }
}

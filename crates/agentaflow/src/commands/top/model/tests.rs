use agentaflow_api::Stamp;
use agentaflow_api::job::JobStatus;

use super::super::fixture::{NOW, model, press, world};
use super::{Cover, Effect, Message, Model, Pane, Subject, Wants};

/// What is pointed at, in a word.
fn pointed(model: &Model) -> String {
    match model.subject() {
        Subject::Nothing => "nothing".to_owned(),
        Subject::Job(job) => format!("job {}", job.id),
        Subject::Node(node) => node.spec.node_name.clone(),
        Subject::Gpu(node, gpu) => format!("{}/{gpu}", node.spec.node_name),
    }
}

#[test]
fn keys_walk_through_panes_and_rows() {
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
        assert_eq!(pointed(&model), expected, "after {keys:?}");
    }
}

#[test]
fn every_pane_is_sorted_by_what_was_chosen() {
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
        assert_eq!(pointed(&model), expected, "after {keys:?}");
    }
}

#[test]
fn a_filter_leaves_what_contains_its_words_and_esc_brings_all_back() {
    let mut model = model(80, 24);
    press(&mut model, "/EVAL");
    let ids = |model: &Model| model.jobs().iter().map(|job| job.id).collect::<Vec<_>>();
    assert_eq!(ids(&model), [13]);
    assert_eq!(pointed(&model), "gpu-2", "the node on which it runs stays");
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
fn while_a_filter_is_typed_letters_are_no_commands() {
    let mut model = model(80, 24);
    assert_eq!(press(&mut model, "/qcy"), []);
    assert_eq!(model.filter, "qcy");
    assert_eq!(press(&mut model, "<C-c>"), [Effect::Quit]);
}

#[test]
fn a_job_is_cancelled_only_after_yes() {
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
fn keys_that_reach_beyond_the_screen_are_passed_on() {
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
fn the_chosen_row_stays_chosen_when_rows_come_and_go() {
    let mut model = model(80, 24);
    press(&mut model, "<Tab>j");
    assert_eq!(pointed(&model), "job 12");
    let mut data = world(1);
    let mut newer = data.jobs[0].clone();
    (newer.id, newer.started_at) = (99, Some(NOW));
    data.jobs.push(newer);
    model.update(Message::Data(Box::new(data)));
    assert_eq!(pointed(&model), "job 12");
    let mut data = world(1);
    data.jobs.remove(0);
    model.update(Message::Data(Box::new(data)));
    assert_eq!(pointed(&model), "job 10", "what took its place");
    model.update(Message::Data(Box::default()));
    assert_eq!(pointed(&model), "nothing");
}

#[test]
fn a_broken_connection_keeps_what_was_known() {
    let mut model = model(80, 24);
    model.update(Message::Clock(Stamp(NOW.0 + 14_000)));
    model.update(Message::Trouble("cannot reach it".to_owned()));
    assert!(model.trouble.is_some() && !model.jobs().is_empty());
    assert!((model.age() - 14.0).abs() < 0.01);
    model.update(Message::Data(Box::new(world(0))));
    assert!(model.trouble.is_none() && model.age() < 0.01);
}

#[test]
fn only_what_is_in_sight_is_asked_for() {
    let mut model = model(80, 24);
    let queue = vec!["14".to_owned(), "15".to_owned()];
    assert_eq!(model.wants(), Wants { explain: queue.clone(), logs: None });
    press(&mut model, "<Tab>");
    assert_eq!(model.wants(), Wants { explain: queue, logs: Some("13".to_owned()) });
    press(&mut model, "e");
    assert_eq!(model.wants().explain[0], "13");
    press(&mut model, "<Esc><Tab>jl");
    assert_eq!(model.cover, Cover::Logs("15".to_owned()));
    assert_eq!(model.wants().logs.as_deref(), Some("15"));
    let mut data = world(0);
    data.jobs =
        (0..500).map(|id| agentaflow_api::job::Job { id, ..data.jobs[2].clone() }).collect();
    model.update(Message::Data(Box::new(data)));
    assert!(model.wants().explain.len() <= 10, "{:?}", model.wants());
}

#[test]
fn output_is_read_from_its_end() {
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
    assert_eq!((&model.cover, model.focus), (&Cover::Nothing, Pane::Jobs));
}

#[test]
fn esc_and_a_key_right_after_it_are_two_keys() {
    let mut model = model(80, 24);
    press(&mut model, "<Tab>e<A-l>");
    assert_eq!(model.cover, Cover::Logs("13".to_owned()));
    press(&mut model, "<Esc>c<A-y>");
    assert_eq!(model.cover, Cover::Nothing);
}

#[test]
fn a_notice_goes_by_itself() {
    let mut model = model(80, 24);
    model.update(Message::Cancelled(Ok("job 12 is being stopped".to_owned())));
    assert!(model.notice.is_some());
    model.update(Message::Clock(Stamp(NOW.0 + 7_000)));
    assert!(model.notice.is_none());
}

#[test]
fn nothing_breaks_on_any_size_with_any_key_and_any_data() {
    let mut odd = world(0);
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
            model.update(Message::Data(Box::new(odd.clone())));
            super::super::view::tests::drawn(&model, size, true, false);
        }
    }
}

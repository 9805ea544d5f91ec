use std::time::Duration;

use agentaflow_api::alert::{AlertKind, Severity, SilenceCreate, SilenceMatch};

use super::{Bench, ONE_SINK, gpu, silent, xid};
use crate::{Delivery, Facts, SilenceError};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// Numbers of firing and resolved alerts of each message.
fn counts(deliveries: &[Delivery]) -> Vec<(usize, usize)> {
    let count =
        |delivery: &Delivery| (delivery.message.firing.len(), delivery.message.resolved.len());
    deliveries.iter().map(count).collect()
}

fn healthy() -> Facts {
    gpu(|_| ())
}

#[test]
fn alerts_with_one_cause_become_one_message() {
    let document = "[rules.node_silent]\nfor = \"0s\"\n[[sink]]\nname = \"ops\"\ntype = \"webhook\"\nurl_env = \"U\"";
    let mut bench = Bench::new(document);
    bench.observe(&silent(&["a"]));
    assert_eq!(bench.due(), [], "the group waits for more alerts");
    bench.wait(9 * SECOND).observe(&silent(&["a", "b", "c"]));
    assert_eq!(bench.due(), []);
    bench.wait(SECOND);
    let due = bench.deliver(&silent(&["a", "b", "c"]));
    assert_eq!(counts(&due), [(3, 0)]);
    assert_eq!(due[0].message.kind, AlertKind::NodeSilent);
}

#[test]
fn an_alert_is_sent_once_repeated_after_a_time_and_resolved_once() {
    let mut bench = Bench::new(ONE_SINK);
    assert_eq!(counts(&bench.deliver(&xid())), [(1, 0)]);
    assert_eq!(bench.deliver(&xid()), []);
    assert_eq!(bench.wait(59 * MINUTE).deliver(&xid()), []);
    assert_eq!(counts(&bench.wait(MINUTE).deliver(&xid())), [(1, 0)], "repeated after an hour");
    assert_eq!(counts(&bench.wait(MINUTE).deliver(&healthy())), [(0, 1)]);
    assert_eq!(bench.wait(2 * HOUR).deliver(&healthy()), []);
}

#[test]
fn a_resolved_alert_is_not_sent_to_a_sink_without_its_firing_message() {
    let mut bench = Bench::new(&ONE_SINK.replace("group_wait = \"0s\"", "group_wait = \"1m\""));
    assert_eq!(bench.deliver(&xid()), []);
    assert_eq!(bench.wait(MINUTE / 2).deliver(&healthy()), []);
    assert_eq!(bench.wait(HOUR).deliver(&healthy()), []);
}

#[test]
fn messages_of_a_group_keep_a_pause_except_for_critical_news() {
    let document = ONE_SINK.replace("group_interval = \"0s\"", "group_interval = \"5m\"")
        + "[rules.gpu_hot]\nwarning = 80\ncritical = 90\nfor = \"0s\"\nkeep = \"0s\"";
    let hot = |celsius| gpu(move |gpu| gpu.temperature = Some(celsius));
    let mut bench = Bench::new(&document);
    assert_eq!(counts(&bench.deliver(&hot(85.0))), [(1, 0)]);
    assert_eq!(bench.wait(MINUTE).deliver(&healthy()), [], "the resolved alert waits");
    assert_eq!(counts(&bench.wait(4 * MINUTE).deliver(&healthy())), [(0, 1)]);
    assert_eq!(bench.wait(MINUTE).deliver(&hot(85.0)), [], "a warning waits");
    assert_eq!(counts(&bench.wait(SECOND).deliver(&hot(91.0))), [(1, 0)], "critical");
}

#[test]
fn a_failed_message_is_repeated_unchanged_with_growing_pauses() {
    let mut bench = Bench::new(ONE_SINK);
    bench.observe(&xid());
    let first = bench.due().remove(0);
    assert_eq!(bench.due(), [], "an attempt is under way");
    for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
        bench.alerts.failed(bench.now, &first, "the sink answered 500", None);
        assert_eq!(bench.wait(Duration::from_secs(pause - 1)).due(), []);
        let again = bench.wait(SECOND).due();
        assert_eq!(again, std::slice::from_ref(&first), "after {pause} s");
    }
    bench.alerts.delivered(bench.now, &first);
    assert_eq!(bench.due(), []);
    assert_eq!(bench.alerts.report(bench.now).sinks[0].failures, 0);
}

#[test]
fn the_pause_that_a_sink_asks_for_is_kept() {
    let mut bench = Bench::new(ONE_SINK);
    bench.observe(&xid());
    let first = bench.due().remove(0);
    bench.alerts.failed(bench.now, &first, "the sink answered 429", Some(MINUTE));
    assert_eq!(bench.wait(59 * SECOND).due(), []);
    assert_eq!(bench.wait(SECOND).due(), [first]);
}

#[test]
fn a_restart_keeps_unsent_messages_and_their_pauses() {
    let mut bench = Bench::new(ONE_SINK);
    bench.observe(&xid());
    let first = bench.due().remove(0);
    // Killed during the attempt: the message is sent again at once, with the same id.
    bench.restart();
    assert_eq!(bench.due(), std::slice::from_ref(&first));
    bench.alerts.failed(bench.now, &first, "no answer", None);
    bench.restart();
    assert_eq!(bench.wait(4 * SECOND).due(), [], "the pause continues");
    assert_eq!(bench.wait(SECOND).due(), std::slice::from_ref(&first));
    bench.alerts.delivered(bench.now, &first);
    bench.restart();
    assert_eq!(bench.deliver(&xid()), [], "nothing is sent twice");
    assert_eq!(counts(&bench.deliver(&healthy())), [(0, 1)]);
}

#[test]
fn an_alert_that_resolves_while_the_sink_fails_is_reported_as_resolved() {
    let mut bench = Bench::new(ONE_SINK);
    bench.observe(&xid());
    let first = bench.due().remove(0);
    bench.alerts.failed(bench.now, &first, "no answer", None);
    bench.wait(5 * SECOND).observe(&healthy());
    let second = bench.due();
    assert_eq!(counts(&second), [(0, 1)], "the sink may have received the first attempt");
    assert_ne!(second[0].message.id, first.message.id);
}

#[test]
fn a_sink_that_works_is_independent_of_one_that_fails() {
    let document =
        format!("{ONE_SINK}\n[[sink]]\nname = \"chat\"\ntype = \"slack\"\nurl_env = \"U\"");
    let mut bench = Bench::new(&document);
    bench.observe(&xid());
    let due = bench.due();
    assert_eq!(due.len(), 2);
    bench.alerts.failed(bench.now, &due[0], "no answer", None);
    bench.alerts.delivered(bench.now, &due[1]);
    let again = bench.wait(5 * SECOND).due();
    assert_eq!(again, [due[0].clone()]);
}

#[test]
fn a_sink_receives_its_severities_only() {
    let document =
        ONE_SINK.to_owned() + "min_severity = \"critical\"\n[rules.queue_wait]\nwarning = \"1m\"";
    let mut bench = Bench::new(&document);
    let since = super::START;
    let queue = crate::QueueFacts { name: "q".into(), oldest_pending: Some(since) };
    let waits = Facts { queues: vec![queue], ..Facts::default() };
    assert_eq!(bench.wait(HOUR).deliver(&waits), []);
    assert_eq!(counts(&bench.deliver(&xid())), [(1, 0)]);
}

#[test]
fn quiet_hours_hold_all_but_critical_messages() {
    // The tests start at 14:13 UTC.
    let document = format!(
        "quiet = {{ from = \"14:00\", to = \"15:00\" }}\n{ONE_SINK}\n[rules.budget]\nwarning = 80\ncritical = 100"
    );
    let budget = |spent| {
        let budget = crate::BudgetFacts { user: "ana".into(), spent, limit: 100 };
        Facts { budgets: vec![budget], ..Facts::default() }
    };
    let mut bench = Bench::new(&document);
    assert_eq!(bench.deliver(&budget(85)), [], "a warning waits for the morning");
    let mut both = budget(85);
    both.gpus = xid().gpus;
    let due = bench.deliver(&both);
    assert_eq!(counts(&due), [(1, 0)]);
    assert_eq!(due[0].message.firing[0].severity, Severity::Critical);
    let after = bench.wait(HOUR).deliver(&both);
    assert!(counts(&after).contains(&(1, 0)), "{after:?}");
    assert_eq!(after[0].message.kind, AlertKind::Budget);
}

#[test]
fn a_silence_holds_messages_until_it_ends() {
    let mut bench = Bench::new(ONE_SINK);
    let matcher = SilenceMatch { kind: Some(AlertKind::GpuXid), ..SilenceMatch::default() };
    let wanted = SilenceCreate { matcher, seconds: 600, comment: "planned".into() };
    let silence = bench.alerts.silence(bench.now, wanted, "ana").unwrap();
    assert_eq!(bench.deliver(&xid()), []);
    let listed = &bench.alerts.report(bench.now).alerts[0];
    assert_eq!(listed.silenced_by.as_deref(), Some(silence.id.as_str()));
    bench.restart();
    assert_eq!(bench.wait(599 * SECOND).deliver(&xid()), []);
    assert_eq!(counts(&bench.wait(SECOND).deliver(&xid())), [(1, 0)]);
    assert!(bench.alerts.report(bench.now).silences.is_empty());
}

#[test]
fn the_end_of_an_alert_is_sent_although_it_was_silenced_meanwhile() {
    let mut bench = Bench::new(ONE_SINK);
    assert_eq!(counts(&bench.deliver(&xid())), [(1, 0)]);
    let id = bench.alerts.report(bench.now).alerts[0].id.clone();
    let matcher = SilenceMatch { alert: Some(id), ..SilenceMatch::default() };
    let wanted = SilenceCreate { matcher, seconds: 86_400, comment: String::new() };
    let silence = bench.alerts.silence(bench.now, wanted, "ana").unwrap();
    assert_eq!(bench.wait(2 * HOUR).deliver(&xid()), [], "no repetition");
    assert_eq!(counts(&bench.deliver(&healthy())), [(0, 1)]);
    assert_eq!(bench.alerts.unsilence(&silence.id).map(|ended| ended.author), Some("ana".into()));
    assert_eq!(bench.alerts.unsilence(&silence.id), None);
}

#[test]
fn a_silence_of_everything_or_without_end_is_refused() {
    let mut bench = Bench::new(ONE_SINK);
    let one = SilenceMatch { kind: Some(AlertKind::GpuXid), ..SilenceMatch::default() };
    let cases = [
        (SilenceMatch::default(), 60, SilenceError::Empty),
        (one.clone(), 0, SilenceError::Length),
        (one, u64::MAX, SilenceError::Length),
    ];
    for (matcher, seconds, expected) in cases {
        let wanted = SilenceCreate { matcher, seconds, comment: String::new() };
        assert_eq!(bench.alerts.silence(bench.now, wanted, "ana"), Err(expected));
    }
}

#[test]
fn alertmanager_receives_firing_alerts_every_minute_also_in_quiet_hours() {
    let document = "quiet = { from = \"00:00\", to = \"23:59\" }\n[rules.gpu_memory]\nfor = \"0s\"\nkeep = \"0s\"\n\
        [[sink]]\nname = \"am\"\ntype = \"alertmanager\"\nurl_env = \"U\"";
    let full = gpu(|gpu| (gpu.memory_used, gpu.memory_total) = (Some(1), Some(1)));
    let mut bench = Bench::new(document);
    assert_eq!(counts(&bench.deliver(&full)), [(1, 0)]);
    assert_eq!(bench.wait(59 * SECOND).deliver(&full), []);
    assert_eq!(counts(&bench.wait(SECOND).deliver(&full)), [(1, 0)]);
    assert_eq!(counts(&bench.deliver(&healthy())), [(0, 1)]);
    assert_eq!(bench.wait(HOUR).deliver(&healthy()), []);
}

#[test]
fn the_revision_changes_with_the_state_and_not_with_readings() {
    let hot = |celsius| gpu(move |gpu| gpu.temperature = Some(celsius));
    let mut bench = Bench::new(ONE_SINK);
    bench.observe(&hot(90.0));
    let pending = bench.alerts.revision();
    bench.wait(SECOND).observe(&hot(91.0));
    assert_eq!(bench.alerts.revision(), pending);
    bench.wait(MINUTE).observe(&hot(91.0));
    let firing = bench.alerts.revision();
    assert_ne!(firing, pending);
    bench.due();
    assert_ne!(bench.alerts.revision(), firing);
}

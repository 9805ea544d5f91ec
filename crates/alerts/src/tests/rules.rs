use std::time::Duration;

use agentaflow_api::alert::{AlertKind as Kind, AlertState, Severity};
use agentaflow_api::units::Stamp;

use super::{Bench, START, gpu, silent, xid};
use crate::{
    BudgetFacts, CertificateFacts, ClusterFacts, DiskFacts, Facts, JobFacts, QueueFacts,
    SchedulerFacts, TransitionKind,
};

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn job() -> JobFacts {
    JobFacts { job: "7".into(), user: Some("ana".into()) }
}

fn ago(time: Duration) -> Stamp {
    Stamp(START.0 - time.as_millis() as i64)
}

fn certificate(left: Duration) -> Facts {
    let expires = Stamp(START.0 + left.as_millis() as i64);
    let certificate = CertificateFacts { name: "tls.pem".into(), expires };
    Facts { certificates: vec![certificate], ..Facts::default() }
}

fn disk(free: u64) -> Facts {
    let disk = DiskFacts { path: "/data".into(), free, total: 100 };
    Facts { disks: vec![disk], ..Facts::default() }
}

fn budget(spent: i64) -> Facts {
    let budget = BudgetFacts { user: "ana".into(), spent, limit: 100 };
    Facts { budgets: vec![budget], ..Facts::default() }
}

fn queue(wait: Duration) -> Facts {
    let queue = QueueFacts { name: "research".into(), oldest_pending: Some(ago(wait)) };
    Facts { queues: vec![queue], ..Facts::default() }
}

fn cluster(utilization: f64, pending: u64) -> Facts {
    let cluster = ClusterFacts { utilization: Some(utilization), pending };
    Facts { cluster: Some(cluster), ..Facts::default() }
}

fn scheduler(idle: Duration) -> Facts {
    Facts { scheduler: Some(SchedulerFacts { last_turn: ago(idle) }), ..Facts::default() }
}

/// Facts that fire after a time, with the expected severity and summary; and facts that do not.
#[expect(clippy::too_many_lines, reason = "one row for each kind of alert")]
fn table() -> Vec<(Kind, Facts, Duration, Severity, &'static str, Facts)> {
    use Severity::{Critical, Info, Warning};
    let day = HOUR * 24;
    let now = Duration::ZERO;
    vec![
        (
            Kind::GpuHot,
            gpu(|gpu| gpu.temperature = Some(85.0)),
            MINUTE,
            Warning,
            "GPU 0 on a is at 85 °C",
            gpu(|gpu| gpu.temperature = Some(84.9)),
        ),
        (
            Kind::GpuHot,
            gpu(|gpu| gpu.temperature = Some(95.0)),
            MINUTE,
            Critical,
            "GPU 0 on a is at 95 °C",
            gpu(|_| ()),
        ),
        (
            Kind::GpuEcc,
            gpu(|gpu| gpu.ecc_errors = Some(2)),
            now,
            Critical,
            "GPU 0 on a has 2 uncorrected memory errors",
            gpu(|gpu| gpu.ecc_errors = Some(0)),
        ),
        (
            Kind::GpuXid,
            xid(),
            now,
            Critical,
            "GPU 0 on a reported driver error XID 79",
            gpu(|_| ()),
        ),
        (
            Kind::GpuLost,
            gpu(|gpu| {
                gpu.lost = true;
                gpu.problem = Some("fell off the bus".into());
            }),
            MINUTE,
            Critical,
            "GPU 0 on a is lost: fell off the bus",
            gpu(|_| ()),
        ),
        (
            Kind::GpuIdle,
            gpu(|gpu| (gpu.utilization, gpu.job) = (Some(4.9), Some(job()))),
            HOUR,
            Warning,
            "Job 7 holds GPU 0 on a and uses 4.9 % of it",
            gpu(|gpu| (gpu.utilization, gpu.job) = (Some(0.0), None)),
        ),
        (
            Kind::GpuPower,
            gpu(|gpu| (gpu.power, gpu.power_limit) = (Some(392.0), Some(400.0))),
            MINUTE * 30,
            Info,
            "GPU 0 on a draws 98 % of its power limit",
            gpu(|gpu| (gpu.power, gpu.power_limit) = (Some(1000.0), None)),
        ),
        (
            Kind::GpuMemory,
            gpu(|gpu| (gpu.memory_used, gpu.memory_total) = (Some(99), Some(100))),
            MINUTE * 10,
            Info,
            "The memory of GPU 0 on a is 99 % full",
            gpu(|gpu| (gpu.memory_used, gpu.memory_total) = (Some(97), Some(100))),
        ),
        (
            Kind::NodeSilent,
            silent(&["a"]),
            MINUTE,
            Critical,
            "Node a has not reported for 2 min 30 s",
            silent(&[]),
        ),
        (
            Kind::QueueWait,
            queue(HOUR),
            now,
            Warning,
            "A job in queue research has been pending for 1 h",
            queue(MINUTE * 59),
        ),
        (
            Kind::Utilization,
            cluster(79.0, 3),
            HOUR,
            Info,
            "Mean GPU utilization is 79 % while 3 workloads are pending",
            cluster(79.0, 0),
        ),
        (Kind::Budget, budget(80), now, Warning, "ana has spent 80 % of the budget", budget(79)),
        (Kind::Budget, budget(101), now, Critical, "ana has spent 101 % of the budget", budget(0)),
        (
            Kind::Certificate,
            certificate(day * 13),
            now,
            Warning,
            "Certificate tls.pem expires in 13 d",
            certificate(day * 14),
        ),
        (
            Kind::Certificate,
            certificate(now),
            now,
            Critical,
            "Certificate tls.pem has expired",
            certificate(day * 365),
        ),
        (Kind::Disk, disk(10), MINUTE, Warning, "The disk of /data is 90 % full", disk(11)),
        (Kind::Disk, disk(5), MINUTE, Critical, "The disk of /data is 95 % full", disk(100)),
        (
            Kind::Scheduler,
            scheduler(MINUTE),
            now,
            Critical,
            "The scheduler has made no progress for 1 min",
            scheduler(MINUTE / 2),
        ),
    ]
}

#[test]
fn every_rule_fires_for_its_cause_after_its_time_and_resolves() {
    for (kind, facts, hold, severity, summary, healthy) in table() {
        let mut bench = Bench::new("");
        assert_eq!(bench.observe(&healthy), [], "{kind} for healthy facts");
        if !hold.is_zero() {
            assert_eq!(bench.observe(&facts), [], "{kind} must hold for {hold:?}");
            let pending = bench.alerts.report(bench.now).alerts;
            assert_eq!(pending[0].state, AlertState::Pending, "{kind}");
        }
        let fired = bench.wait(hold).observe(&facts);
        assert_eq!(fired.len(), 1, "{kind}: {fired:?}");
        assert_eq!(fired[0].kind, TransitionKind::Fired);
        let alert = &fired[0].alert;
        assert_eq!((alert.kind, alert.severity), (kind, severity), "{summary}");
        assert_eq!(alert.summary, summary);
        assert!(!alert.action.is_empty(), "{kind} names an action");
        assert_eq!(bench.observe(&facts), [], "{kind} fires once");
        if bench.observe(&healthy).is_empty() {
            bench.wait(MINUTE).observe(&healthy);
        }
        let alerts = bench.alerts.report(bench.now).alerts;
        assert_eq!(alerts[0].state, AlertState::Resolved, "{kind}");
    }
}

#[test]
fn every_kind_has_a_rule_in_the_table() {
    let tested: Vec<Kind> = table().into_iter().map(|row| row.0).collect();
    let untested = Kind::ALL.iter().filter(|kind| !tested.contains(kind));
    assert_eq!(untested.copied().collect::<Vec<_>>(), [Kind::Test, Kind::Unknown]);
}

#[test]
fn a_short_peak_does_not_fire() {
    let mut bench = Bench::new("");
    let (hot, cool) = (gpu(|gpu| gpu.temperature = Some(90.0)), gpu(|_| ()));
    for _ in 0..5 {
        assert_eq!(bench.wait(MINUTE / 2).observe(&hot), []);
        assert_eq!(bench.wait(MINUTE / 2).observe(&cool), []);
    }
    assert!(bench.kinds().is_empty());
}

#[test]
fn an_alert_that_flaps_stays_until_its_condition_is_gone_for_a_minute() {
    let mut bench = Bench::new("");
    let (hot, cool) = (gpu(|gpu| gpu.temperature = Some(90.0)), gpu(|_| ()));
    bench.observe(&hot);
    assert_eq!(bench.wait(MINUTE).observe(&hot).len(), 1);
    for _ in 0..5 {
        assert_eq!(bench.wait(MINUTE / 2).observe(&cool), []);
        assert_eq!(bench.wait(MINUTE / 4).observe(&hot), []);
    }
    assert_eq!(bench.observe(&cool), []);
    let resolved = bench.wait(MINUTE).observe(&cool);
    assert_eq!(resolved[0].kind, TransitionKind::Resolved);
}

#[test]
fn a_rise_of_the_severity_is_reported_and_a_fall_is_not() {
    let mut bench = Bench::new("");
    assert_eq!(bench.observe(&budget(85))[0].kind, TransitionKind::Fired);
    let raised = bench.observe(&budget(100));
    assert_eq!(raised[0].kind, TransitionKind::Escalated);
    assert_eq!(raised[0].alert.severity, Severity::Critical);
    assert_eq!(bench.observe(&budget(90)), []);
}

#[test]
fn alerts_of_a_gpu_stay_as_they_are_while_its_node_is_silent() {
    let mut bench = Bench::new("");
    bench.observe(&xid());
    let mut lost = gpu(|gpu| gpu.stale = true);
    lost.nodes = silent(&["a"]).nodes;
    for _ in 0..10 {
        bench.wait(MINUTE).observe(&lost);
    }
    let alerts = bench.alerts.report(bench.now).alerts;
    let firing: Vec<Kind> = alerts.iter().map(|alert| alert.kind).collect();
    assert_eq!(firing, [Kind::NodeSilent, Kind::GpuXid], "the latest first");
    let back = bench.observe(&gpu(|_| ()));
    assert_eq!(back.len(), 2, "both resolve: {back:?}");
}

#[test]
fn alerts_stay_as_they_are_until_a_restarted_driver_knows_their_objects() {
    let mut bench = Bench::new("");
    let mut facts = gpu(|gpu| {
        gpu.xid = Some(79);
        (gpu.utilization, gpu.job) = (Some(0.0), Some(job()));
    });
    facts.nodes = silent(&["b"]).nodes;
    bench.observe(&facts);
    bench.wait(HOUR).observe(&facts);
    let firing = bench.kinds();
    assert_eq!(firing.len(), 3);
    bench.restart();
    facts.gpus[0] = crate::GpuFacts {
        node: "a".into(),
        gpu: "0".into(),
        stale: true,
        job: Some(job()),
        ..crate::GpuFacts::default()
    };
    (facts.nodes[0].silent, facts.nodes[0].unknown) = (false, true);
    for _ in 0..10 {
        assert_eq!(bench.wait(MINUTE).observe(&facts), []);
    }
    assert_eq!(bench.kinds(), firing);
    // The job ended meanwhile.
    facts.gpus[0].job = None;
    bench.observe(&facts);
    assert_eq!(bench.wait(MINUTE).observe(&facts)[0].alert.kind, Kind::GpuIdle);
}

#[test]
fn another_job_on_an_idle_gpu_is_another_alert() {
    let idle = |job: &str| {
        let job = JobFacts { job: job.into(), user: None };
        gpu(|gpu| (gpu.utilization, gpu.job) = (Some(0.0), Some(job)))
    };
    let mut bench = Bench::new("");
    bench.observe(&idle("1"));
    assert_eq!(bench.wait(HOUR).observe(&idle("2")), [], "the second job has just begun");
    assert_eq!(bench.wait(HOUR).observe(&idle("2")).len(), 1);
}

#[test]
fn a_disabled_rule_does_not_fire_and_resolves_its_alert() {
    let mut bench = Bench::new("");
    bench.observe(&xid());
    bench.alerts.set_config(crate::Config::parse("[rules.gpu_xid]\nenabled = false").unwrap());
    let resolved = bench.observe(&xid());
    assert_eq!(resolved[0].kind, TransitionKind::Resolved);
}

#[test]
fn readings_that_are_no_numbers_fire_nothing() {
    let mut bench = Bench::new("");
    let facts = gpu(|gpu| {
        gpu.temperature = Some(f64::NAN);
        gpu.power = Some(f64::INFINITY);
        gpu.power_limit = Some(0.0);
        (gpu.memory_used, gpu.memory_total) = (Some(1), Some(0));
    });
    bench.observe(&facts);
    bench.wait(HOUR * 2).observe(&facts);
    assert!(bench.kinds().is_empty());
}

#[test]
fn the_expiry_of_a_certificate_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cert.pem");
    assert_eq!(CertificateFacts::of_file(&file), None);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2030, 1, 2);
    std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
    let found = CertificateFacts::of_file(&file).unwrap();
    assert_eq!(found.expires.to_string(), "2030-01-02T00:00:00.000Z");
    std::fs::write(&file, "no certificate").unwrap();
    assert_eq!(CertificateFacts::of_file(&file), None);
}

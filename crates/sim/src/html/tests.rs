//! Properties of every report page.

use super::*;
use crate::outcome::Stats;

fn outcome(strategy: &str, curve: Vec<Sample>) -> Outcome {
    Outcome {
        strategy: strategy.to_owned(),
        order: "fifo".to_owned(),
        allocated_milli: 1500,
        capacity_milli: 2000,
        dropped: 0,
        decisions: 10,
        seconds: 0.1,
        jobs: 4,
        finished: 4,
        preemptions: 0,
        allocation_percent: 75.0,
        fragmentation_percent: 12.5,
        wait_seconds: Stats::default(),
        completion_seconds: Stats::default(),
        makespan_seconds: 100.0,
        dropped_because: Vec::new(),
        cut_off: None,
        curve,
    }
}

fn sample(at_seconds: f64, allocated_percent: f64) -> Sample {
    Sample { at_seconds, allocated_percent, fragmentation_percent: 0.0, running: 1, waiting: 0 }
}

fn page_of(title: &str, outcomes: &[Outcome]) -> String {
    page(&Report { title, about: "1 node", axis: Axis::Time, outcomes })
}

#[test]
fn a_page_makes_no_requests() {
    let page = page_of("x", &[outcome("best_fit", vec![sample(0.0, 50.0), sample(100.0, 0.0)])]);
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import", "<link", "<img"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn names_are_escaped() {
    let evil = "</script><script>alert(1)</script>\"'&";
    let page = page_of(evil, &[outcome(evil, vec![sample(0.0, 1.0)])]);
    assert!(!page.contains("<script>alert"));
    assert!(!page.contains("</script><script>alert"));
    assert_eq!(page.matches("</script>").count(), 2);
}

#[test]
fn every_picture_has_a_table() {
    let page = page_of(
        "x",
        &[outcome("best_fit", vec![sample(0.0, 80.0), sample(50.0, 40.0), sample(100.0, 0.0)])],
    );
    assert_eq!(page.matches("<figure>").count(), 4);
    assert_eq!(page.matches("<table>").count(), 5);
    assert!(
        page.contains("<td>60</td><td>80</td><td>80</td><td>40</td><td>40</td><td>0</td>"),
        "{page}"
    );
}

#[test]
fn a_page_without_runs_or_curves_renders() {
    assert!(page_of("x", &[]).ends_with("</html>\n"));
    assert!(page_of("x", &[outcome("best_fit", Vec::new())]).ends_with("</html>\n"));
}

#[test]
fn a_curve_has_no_value_after_its_end() {
    let curve = [sample(10.0, 5.0), sample(20.0, 7.0)];
    let value = |at| value_at(&curve, at, |sample| sample.allocated_percent);
    assert_eq!(
        [value(0.0), value(10.0), value(15.0), value(20.0), value(21.0)],
        [None, Some(5.0), Some(5.0), Some(7.0), None]
    );
}

#[test]
fn runs_with_several_orders_are_named_by_order() {
    let mut second = outcome("best_fit", Vec::new());
    second.order = "shortest".to_owned();
    assert_eq!(
        names(&[outcome("best_fit", Vec::new()), second]),
        ["best_fit · fifo", "best_fit · shortest"]
    );
}

#[test]
fn a_single_order_needs_no_name() {
    let mut second = outcome("priority", Vec::new());
    second.order = "priority".to_owned();
    assert_eq!(names(&[outcome("best_fit", Vec::new()), second]), ["best_fit", "priority"]);
}

//! `--fix`.

use agentaflow_manifest::lint::{RULES, rule};
use agentaflow_manifest::yaml::{Limits, read_text};

use crate::{fixed, found, ids};

fn comments(text: &str) -> Vec<String> {
    let documents = read_text(text, &Limits::default()).unwrap();
    let comments = documents.iter().flat_map(|document| &document.comments);
    comments.map(|comment| comment.text.clone()).collect()
}

#[test]
fn every_fixable_example_is_clean_after_one_fix_and_stays_as_it_is_after_the_second() {
    for rule in RULES.iter().filter(|rule| rule.fixable) {
        let once = fixed(rule.bad);
        assert!(!ids(&once).contains(&rule.id), "{}:\n{once}", rule.id);
        assert_eq!(fixed(&once), once, "{}", rule.id);
    }
}

#[test]
fn every_comment_survives() {
    for rule in RULES.iter().filter(|rule| rule.fixable) {
        let before = comments(rule.bad);
        assert!(!before.is_empty(), "the example of {} has no comment to lose", rule.id);
        assert_eq!(comments(&fixed(rule.bad)), before, "{}:\n{}", rule.id, fixed(rule.bad));
    }
}

#[test]
fn rules_declare_correctly_if_they_are_fixable() {
    for rule in RULES {
        let findings = found(rule.bad);
        let mut own = findings.iter().filter(|finding| finding.rule.id == rule.id);
        assert_eq!(own.any(|finding| !finding.fix.is_empty()), rule.fixable, "{}", rule.id);
    }
}

/// Asserts the fixes of one rule.
fn check(id: &'static str, before: &str, after: &str) {
    let options = agentaflow_manifest::lint::Options { only: vec![id], ..Default::default() };
    let done = agentaflow_manifest::lint::fix(&[("a".to_owned(), before.to_owned())], &options);
    assert_eq!(done.texts[0], after, "{id}");
}

#[test]
fn a_fix_changes_the_lines_it_must_and_no_other() {
    check(
        "AF001",
        rule("AF001").unwrap().bad,
        &rule("AF001").unwrap().bad.replace("gpu: 1   #", "gpu: 2   #"),
    );
    check(
        "AF006",
        rule("AF006").unwrap().bad,
        &rule("AF006").unwrap().bad.replace("1g-5gb", "1g.5gb"),
    );
    check(
        "AF701",
        rule("AF701").unwrap().bad,
        &rule("AF701").unwrap().bad.replace("toleration:", "tolerations:"),
    );
    check(
        "AF702",
        rule("AF702").unwrap().bad,
        &rule("AF702").unwrap().bad.replace("value: 30", "value: \"30\""),
    );
    let toleration = rule("AF102").unwrap().bad;
    let after_fix = toleration
        .replace("operator: Equal", "operator: Exists")
        .replace("    value: \"true\"   # as", "    # as");
    check("AF102", toleration, &after_fix);
    let affinity = rule("AF107").unwrap().bad;
    let after_fix = affinity.replace(
        "          # Or by memory\n",
        "        - matchExpressions:\n          # Or by memory\n",
    );
    check("AF107", affinity, &after_fix);
    let job = rule("AF205").unwrap().bad;
    check("AF205", job, &(job.to_owned() + "  ttlSecondsAfterFinished: 3600\n"));
    let pod = rule("AF101").unwrap().bad;
    let added =
        "  tolerations:\n  - key: nvidia.com/gpu\n    operator: Exists\n    effect: NoSchedule\n";
    check("AF101", pod, &(pod.to_owned() + added));
    let server = rule("AF202").unwrap().bad;
    let labels = "    metadata:\n      labels:\n        app: llm-server\n";
    check("AF202", server, &server.replace("    spec:\n", &(labels.to_owned() + "    spec:\n")));
}

#[test]
fn windows_line_endings_are_kept() {
    let before = rule("AF101").unwrap().bad.replace('\n', "\r\n");
    let after = fixed(&before);
    assert_eq!(after.matches('\n').count(), after.matches("\r\n").count());
    assert!(!ids(&after).contains(&"AF101"));
}

#[test]
fn a_file_without_a_final_newline_is_fixed() {
    for id in ["AF101", "AF205", "AF201", "AF401"] {
        let text = rule(id).unwrap().bad.trim_end();
        assert!(!ids(&fixed(text)).contains(&id), "{}", fixed(text));
    }
}

#[test]
fn json_stays_json() {
    for rule in RULES.iter().filter(|rule| rule.fixable && !["AF107", "AF601"].contains(&rule.id)) {
        let documents = read_text(rule.bad, &Limits::default()).unwrap();
        for pretty in [true, false] {
            let value = &documents[0].value;
            let text = if pretty {
                serde_json::to_string_pretty(value)
            } else {
                serde_json::to_string(value)
            };
            let text = text.unwrap();
            let once = fixed(&text);
            assert!(
                serde_json::from_str::<serde_json::Value>(&once).is_ok(),
                "{}:\n{once}",
                rule.id
            );
            assert!(!ids(&once).contains(&rule.id), "{}:\n{once}", rule.id);
            assert_eq!(once.contains('\n'), pretty, "{}:\n{once}", rule.id);
        }
    }
}

#[test]
fn flow_style_is_kept() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a} # short\nspec:\n  containers:\n  - {name: b, image: \"c:1\", resources: {limits: {nvidia.com/gpu: 1}}}\n  tolerations: [{key: nvidia.com/gpu, operator: Equal, value: \"true\", effect: NoSchedule}]\n";
    let once = fixed(text);
    assert!(
        once.contains("tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]"),
        "{once}"
    );
    assert!(once.contains("metadata: {name: a} # short"), "{once}");
}

#[test]
fn a_fix_changes_only_its_document() {
    let bad = rule("AF102").unwrap().bad;
    let good = "---\n# nothing here\n---\napiVersion: v1\nkind: ConfigMap # stays\nmetadata:   {name:  odd}\ndata:\n    a:   b\n";
    let text = format!("{bad}{good}---\n{bad}");
    let once = fixed(&text);
    assert!(once.contains(good), "{once}");
    assert!(!ids(&once).contains(&"AF102"), "{once}");
    assert_eq!(once.matches("\n---\n").count(), text.matches("\n---\n").count());
}

#[test]
fn the_comment_of_a_line_that_goes_away_stays() {
    let head =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: []\n  tolerations:\n";
    let first = format!("{head}  - value: \"true\" # why\n    key: nvidia.com/gpu\n");
    let after_fix = format!("{head}  -  # why\n    key: nvidia.com/gpu\n    operator: Exists\n");
    check("AF102", &first, &after_fix);
    let last = format!("{head}  - key: nvidia.com/gpu\n    value: \"true\" # why\n");
    let after_fix = format!("{head}  - key: nvidia.com/gpu\n    # why\n    operator: Exists\n");
    check("AF102", &last, &after_fix);
}

#[test]
fn added_lines_follow_the_comments_of_the_previous_entry() {
    let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n";
    let tolerations =
        "  tolerations:\n  - key: spot\n    operator: Exists\n    # of the spot nodes\n";
    let rest = "  # what runs\n  containers:\n  - name: b\n    image: c:1\n    resources:\n      limits:\n        nvidia.com/gpu: 1\n        # one is enough\n    # the end\n";
    let added = "  - key: nvidia.com/gpu\n    operator: Exists\n    effect: NoSchedule\n";
    check(
        "AF101",
        &format!("{head}{tolerations}{rest}"),
        &format!("{head}{tolerations}{added}{rest}"),
    );
    let tolerations = format!("  tolerations:\n{added}");
    check("AF101", &format!("{head}{rest}"), &format!("{head}{rest}{tolerations}"));
}

#[test]
fn suppressed_findings_are_not_fixed() {
    let text = rule("AF102")
        .unwrap()
        .bad
        .replace("  tolerations:", "  tolerations: # agentaflow-lint: ignore=AF102");
    assert!(fixed(&text).contains("operator: Equal"));
}

#[test]
fn a_fix_of_one_alias_never_changes_the_anchor() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: b\n    image: c:1\n    resources:\n      requests: &gpu\n        nvidia.com/gpu: 1\n      limits:\n        <<: *gpu\n        nvidia.com/gpu: 2\n";
    let once = fixed(text);
    assert!(!ids(&once).contains(&"AF001"), "{once}");
    assert!(read_text(&once, &Limits::default()).is_ok());
}

#[test]
fn a_fix_of_an_anchor_applies_to_all_aliases() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - &first\n    name: a\n    \
                image: a:1\n    resources:\n      requests: {nvidia.com/gpu: 1}   # one\n      limits: \
                {nvidia.com/gpu: 2}\n  - <<: *first\n    name: b\n";
    let after_fix = fixed(text);
    assert!(after_fix.contains("      requests: {nvidia.com/gpu: 2}   # one\n"), "{after_fix}");
    assert!(after_fix.contains("  - <<: *first\n    name: b\n"), "{after_fix}");
    assert!(!ids(&after_fix).contains(&"AF001"), "{after_fix}");
}

#[test]
fn a_text_that_cannot_be_read_is_not_touched() {
    let text = "a: [1\nkind: Pod\n";
    assert_eq!(fixed(text), text);
}

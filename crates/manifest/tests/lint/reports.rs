//! Machine-readable output.

use agentaflow_manifest::lint::{
    Input, LintReport, Options, RULES, Unreadable, check, json, rule, sarif, unreadable,
};
use agentaflow_manifest::yaml::{Limits, SourcePosition, read_text};

use crate::input;

#[test]
fn json_has_one_entry_for_each_finding() {
    let inputs = [input("a.yaml", rule("AF102").unwrap().bad)];
    let findings = check(&inputs, &Options::default());
    let output = json(&LintReport { inputs: &inputs, findings: &findings, unreadable: &[] });
    let list = output["findings"].as_array().unwrap();
    assert_eq!(list.len(), findings.len());
    let entry = list.iter().find(|entry| entry["rule"] == "AF102").unwrap();
    assert_eq!(entry["file"], "a.yaml");
    assert_eq!(entry["severity"], "warning");
    assert_eq!(entry["fixable"], true);
    assert!(entry["line"].is_u64() && entry["column"].is_u64());
    assert_eq!(
        output["summary"]["warnings"],
        findings.iter().filter(|f| f.severity.as_str() == "warning").count()
    );
}

#[test]
fn live_objects_are_not_fixable() {
    let text = rule("AF102").unwrap().bad;
    let values = read_text(text, &Limits::default()).unwrap().into_iter().map(|one| one.value);
    let inputs = [Input::live("cluster", values.collect())];
    let findings = check(&inputs, &Options::default());
    assert!(findings.iter().any(|finding| !finding.fix.is_empty()));
    let seen = LintReport { inputs: &inputs, findings: &findings, unreadable: &[] };
    assert_eq!(seen.summary().fixable, 0);
    assert!(json(&seen)["findings"].as_array().unwrap().iter().all(|one| one["fixable"] == false));
}

#[test]
fn sarif_is_valid_for_code_scanning() {
    let inputs = [input("dir/my file.yaml", rule("AF001").unwrap().bad)];
    let findings = check(&inputs, &Options::default());
    let broken = Unreadable {
        name: "b.yaml".to_owned(),
        position: Some(SourcePosition { line: 3, column: 4 }),
        message: "no".to_owned(),
    };
    let output = sarif(&LintReport { inputs: &inputs, findings: &findings, unreadable: &[broken] });
    assert_eq!(output["version"], "2.1.0");
    let run = &output["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), RULES.len() + 1);
    for result in run["results"].as_array().unwrap() {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(["error", "warning", "note"].contains(&result["level"].as_str().unwrap()));
        assert!(result["message"]["text"].is_string());
        let physical = &result["locations"][0]["physicalLocation"];
        assert!(physical["region"]["startLine"].as_u64().unwrap() >= 1);
    }
    let first = &run["results"][1]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert_eq!(first, "dir/my%20file.yaml");
}

#[test]
fn a_template_that_was_not_rendered_says_how_to_render_it() {
    let text = "image: {{ .Values.image }}\n";
    let error = read_text(text, &Limits::default()).unwrap_err();
    assert!(unreadable(text, &error).contains("helm template NAME CHART | agentaflow lint -"));
    let error = read_text("a: [", &Limits::default()).unwrap_err();
    assert!(!unreadable("a: [", &error).contains("helm"));
}

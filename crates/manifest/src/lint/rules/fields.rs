//! Unknown fields and values of the wrong type.

use agentaflow_units::did_you_mean;
use serde_json::Value;

use super::values;
use crate::build::{schedule_problem, zone_problem};
use crate::lint::object::{Object, join};
use crate::lint::schema::{Mismatch, MismatchKind, mismatches};
use crate::lint::{Findings, Operation, Rule, Set, set};
use crate::yaml::{Ambiguity, at};

pub(super) static AF701: Rule = rule! {
    "AF701" "unknown-field" Error fixable true;
    title: "Unknown field",
    why: "The API server drops a misspelt or wrongly indented field, or rejects it under strict validation: the \
          intended toleration, limit or probe has no effect.",
    advice: "Correct the name, or move the field to its parent.",
    check: unknown_field,
};

pub(super) static AF702: Rule = rule! {
    "AF702" "wrong-type" Error fixable true;
    title: "Wrong type of value",
    why: "The API server rejects a number in place of a text, as in environment variables and node selectors, and a \
          text in place of a number.",
    advice: "Quote numbers and booleans in text fields; remove the quotes in number fields.",
    check: wrong_type,
};

pub(super) static AF703: Rule = rule! {
    "AF703" "wrong-value" Error;
    title: "Invalid value",
    why: "The API server rejects the object.",
    advice: "Use one of the values in the message.",
    check: wrong_value,
};

pub(super) static AF704: Rule = rule! {
    "AF704" "ambiguous-scalar" Warning;
    title: "Ambiguous value",
    why: "Unquoted `yes`, `no`, `on` and `off` are text in YAML 1.2, and booleans in YAML 1.1, which `kubectl` \
          uses. Other values are numbers for some tools and text for other tools.",
    advice: "Quote texts; write `true` or `false` for booleans.",
    check: ambiguous,
};

fn each(set: &Set<'_>, mut look: impl FnMut(&Object<'_>, &Mismatch)) {
    // The API server accepted live objects: a newer version may have fields unknown here.
    for object in set.objects.iter().filter(|object| object.written) {
        for mismatch in mismatches(object.api_version, object.kind, object.value) {
            look(object, &mismatch);
        }
    }
}

fn unknown_field(set: &Set<'_>, findings: &mut Findings<'_>) {
    each(set, |object, mismatch| {
        let MismatchKind::Unknown { near } = &mismatch.kind else { return };
        let Some((name, parent)) = mismatch.path.split_last() else { return };
        let path = join(&object.path, &mismatch.path);
        let taken =
            |near: &str| at(object.value, parent).is_some_and(|parent| parent.get(near).is_some());
        let near = near.as_deref().filter(|near| !taken(near));
        let hint = did_you_mean(near);
        let fix = near.map(|near| Operation::Rename { path: path.clone(), key: near.to_owned() });
        findings.add_with(
            object,
            &path,
            format!("unknown field `{name}`{hint}"),
            fix.into_iter().collect(),
        );
    });
}

fn wrong_type(set: &Set<'_>, findings: &mut Findings<'_>) {
    each(set, |object, mismatch| {
        let MismatchKind::Type { wanted, better } = &mismatch.kind else { return };
        let path = join(&object.path, &mismatch.path);
        let given = at(object.value, &mismatch.path).unwrap_or(&Value::Null);
        let shown = match given {
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "fields".to_owned(),
            other => other.to_string(),
        };
        let hint = better.as_ref().map(|better| format!(": write {better}")).unwrap_or_default();
        let fix = better.as_ref().map(|better| self::set(path.clone(), better.clone()));
        findings.add_with(
            object,
            &path,
            format!("expected {wanted}, found {shown}{hint}"),
            fix.into_iter().collect(),
        );
    });
}

fn wrong_value(set: &Set<'_>, findings: &mut Findings<'_>) {
    each(set, |object, mismatch| {
        if let MismatchKind::Value { message } = &mismatch.kind {
            findings.add(object, &join(&object.path, &mismatch.path), message.as_str());
        }
    });
    values::look(set, findings);
    for object in set.objects.iter().filter(|object| object.written && object.is(&["CronJob"])) {
        for (field, wrong) in
            [("schedule", cron_problem as fn(&str) -> _), ("timeZone", zone_problem)]
        {
            if let Some(why) = object.text(&["spec", field]).and_then(wrong) {
                findings.add(object, &object.join(&["spec", field]), why);
            }
        }
    }
}

/// Problem of a schedule; besides five fields the API server accepts `@daily` and the like.
fn cron_problem(text: &str) -> Option<String> {
    let named = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    let is_named = named.contains(&text) || text.starts_with("@every ");
    if is_named { None } else { schedule_problem(&text.replace('?', "*")) }
}

fn ambiguous(set: &Set<'_>, findings: &mut Findings<'_>) {
    let mut seen = None;
    for object in &set.objects {
        let here = (object.input, object.document);
        if seen.replace(here) == Some(here) {
            continue;
        }
        let ambiguous = &findings.inputs[object.input].documents[object.document].ambiguous;
        for scalar in
            ambiguous.iter().filter(|scalar| !matches!(scalar.ambiguity, Ambiguity::Octal(..)))
        {
            findings.add_at(object, scalar.position, scalar.ambiguity.to_string());
        }
    }
}

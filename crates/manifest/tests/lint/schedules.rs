//! Schedules and time zones of cron jobs.

use crate::found;

fn problems(schedule: &str, zone: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: c}}\nspec:\n  schedule: '{schedule}'\n  \
         timeZone: {zone}\n  jobTemplate: {{spec: {{template: {{spec: {{restartPolicy: Never, \
         containers: [{{name: a, image: 'a:1'}}]}}}}}}}}\n"
    );
    let findings = found(&text).into_iter();
    findings.map(|found| format!("{} {}: {}", found.rule.id, found.path, found.message)).collect()
}

#[test]
fn a_schedule_or_a_time_zone_that_there_is_not_is_an_error() {
    for schedule in ["0 9 * * 1-5", "@daily", "@every 1h30m", "0 0 ? * MON", "*/100 * * * *"] {
        assert_eq!(problems(schedule, "Europe/Berlin"), Vec::<String>::new(), "{schedule}");
    }
    let output = problems("61 9 * *", "Mars/Base");
    assert!(
        output[0].starts_with("AF703 spec.schedule: `61 9 * *` is not a schedule: "),
        "{output:?}"
    );
    assert!(
        output[1].starts_with("AF703 spec.timeZone: `Mars/Base` is not a time zone: "),
        "{output:?}"
    );
    let output = problems("@dayly", "europe/berlin");
    assert!(
        output[0].starts_with("AF703 spec.schedule: `@dayly` is not a schedule: "),
        "{output:?}"
    );
    assert!(output[1].ends_with("(did you mean `Europe/Berlin`?)"), "{output:?}");
}

use std::time::Duration;

use agentaflow_api::alert::Severity;
use agentaflow_api::units::Secret;

use crate::{Config, SecretRef, Secrets, SinkKind};

#[test]
fn a_document_sets_rules_times_and_sinks() {
    let config = Config::parse(
        r#"
cluster = "lab"
dashboard = "https://gpu.example.com"
interval = "1s"
repeat = "4h"
quiet = { from = "22:00", to = "07:00", zone = "Europe/Berlin" }

[rules.gpu_hot]
warning = 80
critical = 90
for = "5m"

[rules.queue_wait]
info = "10m"
warning = "2h"

[[sink]]
name = "ops"
type = "slack"
url_file = "/run/slack"
min_severity = "warning"

[[sink]]
name = "mail"
type = "email"
host = "smtp.example.com"
from = "gpu@example.com"
to = ["ops@example.com"]
user = "gpu"
password_env = "SMTP_PASSWORD"
"#,
    )
    .unwrap();
    assert_eq!(config.cluster.as_deref(), Some("lab"));
    assert_eq!(config.repeat, Duration::from_hours(4));
    assert_eq!(config.group_interval, Duration::from_mins(5), "the default");
    assert!(config.quiet.is_some());
    let [slack, mail] = &config.sinks[..] else { panic!("two sinks") };
    assert_eq!(slack.min_severity, Severity::Warning);
    let SinkKind::Slack(http) = &slack.kind else { panic!("{slack:?}") };
    assert_eq!(http.url, SecretRef::File("/run/slack".into()));
    let SinkKind::Email(email) = &mail.kind else { panic!("{mail:?}") };
    assert_eq!((email.host.as_str(), email.port), ("smtp.example.com", 587));
}

#[test]
fn mistakes_are_refused_with_their_place() {
    let sink = |lines: &str| format!("[[sink]]\nname = \"a\"\n{lines}");
    let mail = |lines: &str| {
        sink(&format!("type = \"email\"\nhost = \"h\"\nfrom = \"a@b\"\nto = [\"c@d\"]\n{lines}"))
    };
    let cases = [
        ("colour = 1".to_owned(), "unknown field `colour`"),
        ("[rules.gpu_cold]".to_owned(), "rules: no rule `gpu_cold`"),
        ("[rules.unknown]".to_owned(), "rules: no rule `unknown`"),
        ("[rules.gpu_hot]\nwarning = 95\ncritical = 85".to_owned(), "must be higher"),
        ("[rules.gpu_idle]\nwarning = 5\ncritical = 50".to_owned(), "must be lower"),
        ("[rules.gpu_hot]\nwarning = -1".to_owned(), "from 1 to 150"),
        ("[rules.gpu_hot]\nwarning = \"hot\"".to_owned(), "use a number"),
        ("[rules.queue_wait]\nwarning = 3600".to_owned(), "use a time"),
        ("[rules.gpu_xid]\ncritical = 1".to_owned(), "has no thresholds"),
        ("[rules.gpu_hot]\nfor = \"1y\"".to_owned(), "is not a duration"),
        ("interval = \"1ms\"".to_owned(), "interval: use a time from 100ms to 30d"),
        ("quiet = { from = \"25:00\", to = \"07:00\" }".to_owned(), "quiet: `25:00`"),
        ("dashboard = \"gpu\"".to_owned(), "dashboard: use an http"),
        (sink("type = \"pager\"\nurl_env = \"U\""), "sink `a`: type: use slack"),
        (sink("type = \"slack\""), "needs url_file, url_env or url_key"),
        (sink("type = \"slack\"\nurl_env = \"A\"\nurl_file = \"B\""), "use one of url_file"),
        (sink("type = \"slack\"\nurl = \"https://x\""), "unknown field `url`"),
        (sink("type = \"slack\"\nurl_env = \"U\"\nhost = \"h\""), "only a sink of type email"),
        (sink("type = \"slack\"\nurl_env = \"U\"\nmin_severity = \"high\""), "min_severity"),
        (mail("user = \"u\""), "needs both user and password"),
        (mail("tls = \"none\"\nuser = \"u\"\npassword_env = \"P\""), "show the password"),
        (mail("").replace("a@b", "a@b>\\r\\nRCPT TO:<x@y"), "needs an address in from"),
        (mail("").replace("[\"c@d\"]", "[]"), "1 to 50 addresses"),
        (format!("{0}\n{0}", sink("type = \"slack\"\nurl_env = \"U\"")), "another sink"),
    ];
    for (document, expected) in cases {
        let error = Config::parse(&document).expect_err(&document).to_string();
        assert!(error.contains(expected), "{document}\n{error}");
    }
}

#[test]
fn a_secret_in_the_document_is_not_repeated_by_the_error() {
    let secret = "https://hooks.slack.com/services/T0/B0/topsecret";
    for document in [
        format!("[[sink]]\nname = \"a\"\ntype = \"slack\"\nurl = \"{secret}\""),
        format!("[[sink]]\nname = \"a\"\nurl_env = {secret}"),
    ] {
        let error = Config::parse(&document).unwrap_err().to_string();
        assert!(!error.contains("topsecret"), "{error}");
    }
}

#[test]
fn a_bare_url_is_a_sink_unless_the_document_has_sinks() {
    let url = || SecretRef::Env("U".into());
    let config = Config::default().or_webhook(url());
    assert_eq!((config.sinks.len(), config.sinks[0].type_name()), (1, "auto"));
    let config = Config::parse(super::ONE_SINK).unwrap().or_webhook(url());
    assert_eq!((config.sinks.len(), config.sinks[0].type_name()), (1, "webhook"));
}

#[test]
fn secrets_are_read_from_their_places_and_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    std::fs::write(&file, "https://a/b\n").unwrap();
    let values = [("webhook-url".to_owned(), Secret("https://c/d".into()))].into();
    let secrets = Secrets(values);
    let read = |place: &SecretRef| secrets.read(place).map(|secret| secret.expose().to_owned());
    let path = file.display().to_string();
    assert_eq!(read(&SecretRef::File(path.clone())).as_deref(), Ok("https://a/b"));
    assert_eq!(read(&SecretRef::Key("webhook-url".into())).as_deref(), Ok("https://c/d"));
    std::fs::write(&file, " \n").unwrap();
    let missing = [
        (SecretRef::File(path), "is empty"),
        (SecretRef::File("/nonexistent".into()), "cannot read the file `/nonexistent`"),
        (SecretRef::Env("AGENTAFLOW_NO_SUCH_VARIABLE".into()), "is not set"),
        (SecretRef::Key("other".into()), "has no key `other`"),
    ];
    for (place, expected) in missing {
        let error = read(&place).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(!format!("{secrets:?}").contains("https"), "{secrets:?}");
}

//! Whole payloads of every format.

use serde_json::{Value, json};

use super::messages::{ORIGIN, alert, hostile, message, resolved};
use crate::Message;
use crate::config::{EmailConfig, EmailTls};
use crate::sink::{Origin, alertmanager, email, slack, teams, webhook};

fn both() -> Message {
    message(vec![alert("0")], vec![resolved("1")])
}

#[test]
fn slack_receives_blocks_with_a_color() {
    let expected = json!({
        "text": "[FIRING 1, RESOLVED 1] GPU hot (lab)",
        "attachments": [{
            "color": "#ecb22e",
            "blocks": [
                {"type": "header", "text": {"type": "plain_text", "emoji": false,
                    "text": "[FIRING 1, RESOLVED 1] GPU hot (lab)"}},
                {"type": "section", "text": {"type": "mrkdwn", "verbatim": true,
                    "text": "*warning* GPU 0 on a is at 91 °C\nCheck the fans."}},
                {"type": "section", "text": {"type": "mrkdwn", "verbatim": true,
                    "text": "*resolved* GPU 1 on a is at 91 °C"}},
                {"type": "context", "elements": [{"type": "mrkdwn",
                    "text": "<https://gpu.example.com/ui/alerts|Alerts>"}]},
            ],
        }],
    });
    assert_eq!(slack::payload(&both(), ORIGIN), expected);
    let done = slack::payload(&message(Vec::new(), vec![resolved("1")]), Origin::default());
    assert_eq!(done["text"], "[RESOLVED 1] GPU hot");
    assert_eq!(done["attachments"][0]["color"], "#2eb67d");
}

#[test]
fn teams_receives_an_adaptive_card_in_a_message() {
    let expected = json!({
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": null,
            "content": {
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "AdaptiveCard",
                "version": "1.4",
                "msteams": {"width": "Full"},
                "body": [
                    {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "size": "Large",
                        "weight": "Bolder", "color": "Warning",
                        "text": "[FIRING 1, RESOLVED 1] GPU hot (lab)"}]},
                    {"type": "RichTextBlock", "inlines": [
                        {"type": "TextRun", "text": "warning ", "weight": "Bolder"},
                        {"type": "TextRun", "text": "GPU 0 on a is at 91 °C"},
                        {"type": "TextRun", "text": " Check the fans.", "isSubtle": true},
                    ]},
                    {"type": "RichTextBlock", "inlines": [
                        {"type": "TextRun", "text": "resolved ", "weight": "Bolder"},
                        {"type": "TextRun", "text": "GPU 1 on a is at 91 °C"},
                    ]},
                ],
                "actions": [{"type": "Action.OpenUrl", "title": "Alerts",
                    "url": "https://gpu.example.com/ui/alerts"}],
            },
        }],
    });
    assert_eq!(teams::payload(&both(), ORIGIN), expected);
}

#[test]
fn the_generic_webhook_receives_all_fields() {
    let alert = |gpu: &str| {
        json!({
            "id": format!("id-{gpu}"), "kind": "gpu_hot", "severity": "warning", "state": "firing",
            "node": "a", "gpu": gpu, "summary": format!("GPU {gpu} on a is at 91 °C"),
            "action": "Check the fans.", "value": 91.0, "threshold": 85.0,
            "since": "2026-09-21T14:12:20.000Z", "fired_at": "2026-09-21T14:13:20.000Z",
        })
    };
    let mut gone = alert("1");
    gone["state"] = "resolved".into();
    gone["resolved_at"] = "2026-09-21T14:13:50.000Z".into();
    let expected = json!({
        "version": 1,
        "id": "0123456789abcdef",
        "status": "firing",
        "kind": "gpu_hot",
        "severity": "warning",
        "title": "[FIRING 1, RESOLVED 1] GPU hot",
        "cluster": "lab",
        "link": "https://gpu.example.com/ui/alerts",
        "at": "2026-09-21T14:13:50.000Z",
        "alerts": [alert("0"), gone],
    });
    assert_eq!(webhook::payload(&both(), ORIGIN), expected);
}

#[test]
fn alertmanager_receives_labels_annotations_and_times() {
    let entry = |gpu: &str, ends: &str| {
        json!({
            "labels": {"alertname": "AgentaflowGpuHot", "severity": "warning", "node": "a",
                "gpu": gpu, "cluster": "lab"},
            "annotations": {"summary": format!("GPU {gpu} on a is at 91 °C"),
                "description": "Check the fans."},
            "startsAt": "2026-09-21T14:13:20.000Z",
            "endsAt": ends,
            "generatorURL": "https://gpu.example.com/ui/alerts",
        })
    };
    let expected =
        json!([entry("0", "2026-09-21T14:18:50.000Z"), entry("1", "2026-09-21T14:13:50.000Z"),]);
    assert_eq!(alertmanager::payload(&both(), ORIGIN), expected);
}

#[test]
fn the_path_of_alertmanager_is_added_once() {
    for (base, url) in [
        ("http://am:9093", "http://am:9093/api/v2/alerts"),
        ("http://am/prefix/", "http://am/prefix/api/v2/alerts"),
        ("http://am/api/v2/alerts", "http://am/api/v2/alerts"),
    ] {
        let base = base.parse().unwrap();
        assert_eq!(alertmanager::endpoint(&base).as_str(), url);
    }
}

pub(super) fn mail_config() -> EmailConfig {
    EmailConfig {
        host: "localhost".into(),
        port: 25,
        tls: EmailTls::None,
        from: "gpu@example.com".into(),
        to: vec!["ops@example.com".into(), "ana@example.com".into()],
        user: None,
        password: None,
        ca_file: None,
    }
}

pub(super) fn decoded(mail: &str) -> (String, String) {
    use base64::Engine as _;
    let (headers, body) = mail.split_once("\r\n\r\n").unwrap();
    let body: String = body.split_whitespace().collect();
    let body = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
    (headers.to_owned(), String::from_utf8(body).unwrap())
}

#[test]
fn a_mail_has_its_headers_and_a_text() {
    let mail = email::mail(&mail_config(), &both(), ORIGIN);
    assert!(mail.split("\r\n").all(|line| line.len() <= 78 && !line.contains('\n')), "{mail}");
    let (headers, body) = decoded(&mail);
    let expected = "From: gpu@example.com\r\n\
        To: ops@example.com, ana@example.com\r\n\
        Subject: [FIRING 1, RESOLVED 1] GPU hot (lab)\r\n\
        Date: Mon, 21 Sep 2026 14:13:50 +0000\r\n\
        Message-ID: <0123456789abcdef.agentaflow@example.com>\r\n\
        Auto-Submitted: auto-generated\r\n\
        MIME-Version: 1.0\r\n\
        Content-Type: text/plain; charset=utf-8\r\n\
        Content-Transfer-Encoding: base64";
    assert_eq!(headers, expected);
    let expected = "[FIRING 1, RESOLVED 1] GPU hot (lab)\n\n\
        warning: GPU 0 on a is at 91 °C\n  node: a\n  gpu: 0\n  since: 2026-09-21T14:12:20.000Z\n  Check the fans.\n\n\
        resolved: GPU 1 on a is at 91 °C\n  node: a\n  gpu: 1\n  since: 2026-09-21T14:12:20.000Z\n  \
        resolved: 2026-09-21T14:13:50.000Z\n\nhttps://gpu.example.com/ui/alerts\n";
    assert_eq!(body, expected);
}

#[test]
fn a_subject_beyond_ascii_becomes_encoded_words() {
    let origin = Origin { cluster: Some("Zürich".repeat(12).leak()), dashboard: None };
    let mail = email::mail(&mail_config(), &both(), origin);
    let (headers, _) = decoded(&mail);
    let subject = headers.split("\r\n").skip_while(|line| !line.starts_with("Subject: "));
    let subject: Vec<&str> = subject.take_while(|line| !line.starts_with("Date")).collect();
    assert!(subject.len() > 1, "{subject:?}");
    assert!(subject.iter().all(|line| line.len() <= 85 && line.is_ascii()), "{subject:?}");
    assert!(subject[0].starts_with("Subject: =?utf-8?B?"), "{subject:?}");
}

/// All texts of a payload.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(map) => map.values().for_each(|item| texts(item, found)),
        _ => {}
    }
}

#[test]
fn markup_in_the_name_of_a_job_stays_text() {
    let mut found = Vec::new();
    texts(&slack::payload(&hostile(), Origin::default()), &mut found);
    assert!(found.iter().all(|text| !text.contains('<')), "{found:?}");
    assert!(found.iter().any(|text| text.contains("&lt;!channel&gt;")), "{found:?}");
    assert!(found.iter().any(|text| text.contains("&amp;amp;")), "{found:?}");
    texts(&teams::payload(&hostile(), Origin::default()), &mut found);
    let mail = email::mail(&mail_config(), &hostile(), Origin::default());
    let (headers, body) = decoded(&mail);
    assert!(!headers.contains("X: y"), "{headers}");
    found.push(body.replace('\n', ""));
    let forbidden = ['\u{1b}', '\r', '\u{202e}'];
    assert!(found.iter().all(|text| !text.contains(forbidden)), "{found:?}");
    let card = teams::payload(&hostile(), Origin::default());
    // Only a text block and facts read markup.
    assert!(!card.to_string().contains("TextBlock\",\"text"), "{card}");
}

#[test]
fn a_message_lists_twenty_alerts_and_counts_further_ones() {
    let many = message((0..50).map(|gpu| alert(&gpu.to_string())).collect(), Vec::new());
    for text in [
        slack::payload(&many, ORIGIN).to_string(),
        teams::payload(&many, ORIGIN).to_string(),
        decoded(&email::mail(&mail_config(), &many, ORIGIN)).1,
    ] {
        assert!(text.contains("and 30 more"), "{text}");
        assert_eq!(text.matches(" on a is at 91").count(), 20);
        assert!(text.len() < 28_000, "Teams takes at most 28 KB");
    }
    assert_eq!(alertmanager::payload(&many, ORIGIN).as_array().unwrap().len(), 50);
}

//! Incoming webhooks of Slack: <https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks>.

use agentaflow_api::alert::{Alert, Severity};
use serde_json::{Value, json};

use super::{Origin, listed, one_line};
use crate::message::{Message, state_word};

pub fn payload(message: &Message, origin: Origin<'_>) -> Value {
    let title = origin.titled(&message.title());
    let mut blocks = vec![json!({
        "type": "header",
        // A header has at most 150 characters.
        "text": {"type": "plain_text", "text": one_line(&title).chars().take(150).collect::<String>(), "emoji": false},
    })];
    for alerts in [&message.firing, &message.resolved] {
        let (shown, more) = listed(alerts);
        blocks.extend(shown.iter().map(section));
        if more > 0 {
            blocks.push(context(&format!("and {more} more")));
        }
    }
    if let Some(link) = origin.link() {
        blocks.push(context(&format!("<{link}|Alerts>")));
    }
    json!({
        "text": escape(&title),
        "attachments": [{"color": color(message), "blocks": blocks}],
    })
}

fn section(alert: &Alert) -> Value {
    let summary = escape(&alert.summary);
    let mut text = format!("*{}* {summary}", state_word(alert));
    if alert.resolved_at.is_none() {
        text.push('\n');
        text.push_str(&escape(&alert.action));
    }
    json!({"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": true}})
}

fn context(text: &str) -> Value {
    json!({"type": "context", "elements": [{"type": "mrkdwn", "text": text}]})
}

fn color(message: &Message) -> &'static str {
    if message.is_resolved() {
        return "#2eb67d";
    }
    match message.severity() {
        Severity::Critical => "#e01e5a",
        Severity::Warning => "#ecb22e",
        Severity::Info => "#36c5f0",
    }
}

/// Escapes the control characters of Slack; without `<` there is no link and no mention.
fn escape(text: &str) -> String {
    one_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

//! Microsoft Teams: the workflow "Post to a channel when a webhook request is received", which takes a message with an
//! Adaptive Card: <https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/connectors-using>.
//!
//! `RichTextBlock` shows text as it is; a `TextBlock` would read markup in the name of a job.

use agentaflow_api::alert::{Alert, Severity};
use serde_json::{Value, json};

use super::{Origin, listed, one_line};
use crate::message::{Message, state_word};

pub fn payload(message: &Message, origin: Origin<'_>) -> Value {
    let title = one_line(&origin.titled(&message.title()));
    let mut body = vec![json!({
        "type": "RichTextBlock",
        "inlines": [{"type": "TextRun", "text": title, "size": "Large", "weight": "Bolder",
            "color": color(message)}],
    })];
    for alerts in [&message.firing, &message.resolved] {
        let (shown, more) = listed(alerts);
        body.extend(shown.iter().map(block));
        if more > 0 {
            body.push(json!({
                "type": "RichTextBlock",
                "inlines": [{"type": "TextRun", "text": format!("and {more} more"), "isSubtle": true}],
            }));
        }
    }
    let mut card = json!({
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
    });
    if let Some(link) = origin.link() {
        card["actions"] = json!([{"type": "Action.OpenUrl", "title": "Alerts", "url": link}]);
    }
    json!({
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": null,
            "content": card,
        }],
    })
}

fn block(alert: &Alert) -> Value {
    let mut inlines = vec![
        json!({"type": "TextRun", "text": format!("{} ", state_word(alert)), "weight": "Bolder"}),
        json!({"type": "TextRun", "text": one_line(&alert.summary)}),
    ];
    if alert.resolved_at.is_none() {
        let action = format!(" {}", one_line(&alert.action));
        inlines.push(json!({"type": "TextRun", "text": action, "isSubtle": true}));
    }
    json!({"type": "RichTextBlock", "inlines": inlines})
}

fn color(message: &Message) -> &'static str {
    if message.is_resolved() {
        return "Good";
    }
    match message.severity() {
        Severity::Critical => "Attention",
        Severity::Warning => "Warning",
        Severity::Info => "Accent",
    }
}

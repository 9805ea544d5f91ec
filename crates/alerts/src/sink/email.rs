//! E-mail: a plain text message in UTF-8.

use std::fmt::Write as _;

use agentaflow_api::alert::Alert;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Origin, labels, listed, one_line};
use crate::config::EmailConfig;
use crate::message::{Message, state_word};

/// Longest line of base64 in a mail.
const LINE: usize = 76;
/// Bytes of text in an encoded word, which has at most 75 characters.
const WORD: usize = 42;

/// The mail with its headers; lines end with CR LF.
pub fn mail(config: &EmailConfig, message: &Message, origin: Origin<'_>) -> String {
    let at = jiff::Timestamp::from_millisecond(message.at.0).unwrap_or_default();
    let date = at.strftime("%a, %d %b %Y %H:%M:%S +0000");
    let host = config.from.split_once('@').map_or("localhost", |(_, host)| host);
    let headers = [
        format!("From: {}", config.from),
        format!("To: {}", config.to.join(", ")),
        format!("Subject: {}", encoded(&origin.titled(&message.title()))),
        format!("Date: {date}"),
        // Equal in every attempt, so that a mail server can drop repetitions.
        format!("Message-ID: <{}.agentaflow@{host}>", message.id),
        "Auto-Submitted: auto-generated".to_owned(),
        "MIME-Version: 1.0".to_owned(),
        "Content-Type: text/plain; charset=utf-8".to_owned(),
        "Content-Transfer-Encoding: base64".to_owned(),
    ];
    let body = STANDARD.encode(text(message, origin));
    let lines = body.as_bytes().chunks(LINE).map(String::from_utf8_lossy);
    let lines: Vec<_> = lines.collect();
    format!("{}\r\n\r\n{}\r\n", headers.join("\r\n"), lines.join("\r\n"))
}

fn text(message: &Message, origin: Origin<'_>) -> String {
    let mut text = format!("{}\n", origin.titled(&message.title()));
    for alerts in [&message.firing, &message.resolved] {
        let (shown, more) = listed(alerts);
        for alert in shown {
            write_alert(&mut text, alert);
        }
        if more > 0 {
            let _ = writeln!(text, "\nand {more} more");
        }
    }
    if let Some(link) = origin.link() {
        let _ = writeln!(text, "\n{link}");
    }
    text
}

fn write_alert(text: &mut String, alert: &Alert) {
    let _ = writeln!(text, "\n{}: {}", state_word(alert), one_line(&alert.summary));
    for (label, value) in labels(&alert.subject) {
        let _ = writeln!(text, "  {label}: {}", one_line(value));
    }
    let _ = writeln!(text, "  since: {}", alert.since);
    match alert.resolved_at {
        Some(at) => writeln!(text, "  resolved: {at}"),
        None => writeln!(text, "  {}", alert.action),
    }
    .unwrap_or_default();
}

/// Header text; text beyond ASCII becomes encoded words (RFC 2047).
fn encoded(text: &str) -> String {
    let text = one_line(text);
    if text.is_ascii() {
        return text;
    }
    let mut words = vec![String::new()];
    for letter in text.chars() {
        if words.last().is_some_and(|word| word.len() + letter.len_utf8() > WORD) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(letter);
        }
    }
    let encode = |word: &String| format!("=?utf-8?B?{}?=", STANDARD.encode(word));
    words.iter().map(encode).collect::<Vec<_>>().join("\r\n ")
}

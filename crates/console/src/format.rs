//! Amounts, times and foreign text as a terminal shows them.

use std::fmt::Display;

use agentaflow_api::{Dollars, Stamp};
pub use agentaflow_units::format_mib as memory;
use agentaflow_units::trim_zeros;

use crate::text;

/// A duration in at most six characters: `0.4s`, `45s`, `4m12s`, `2h05m`, `3d04h`.
pub fn short_time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0 if seconds >= 0.05 => format!("{seconds:.1}s"),
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// The age of a timestamp: `4m12s ago`.
pub fn ago(at: Stamp) -> String {
    format!("{} ago", short_time(seconds_since(at).floor()))
}

/// The age of a timestamp in seconds; 0 for the future.
pub fn seconds_since(at: Stamp) -> f64 {
    Stamp::now().0.saturating_sub(at.0).max(0) as f64 / 1000.0
}

/// A number with its noun: `1 GPU`, `2 GPUs`.
pub fn counted(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// A number with thousands separators: `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// An amount of money rounded to cents; a positive amount below one cent is `<$0.01`.
pub fn money(amount: Dollars) -> String {
    const CENT: u64 = 10_000;
    let sign = if amount.0 < 0 { "-" } else { "" };
    let micros = amount.0.unsigned_abs();
    if (1..CENT).contains(&micros) {
        return format!("{sign}<$0.01");
    }
    let cents = (micros + CENT / 2) / CENT;
    format!("{sign}${}.{:02}", cents / 100, cents % 100)
}

/// An amount of money for programs: dollars without a sign of currency, exact to the millionth.
pub fn dollars(amount: Dollars) -> String {
    let sign = if amount.0 < 0 { "-" } else { "" };
    let micros = amount.0.unsigned_abs();
    let text = format!("{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    trim_zeros(&text).to_owned()
}

/// Foreign text on one line, without escape sequences and control characters.
pub fn one_line(text: &str) -> String {
    text::clean(text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_counts_are_short() {
        let times = [0.04, 0.25, 59.0, 252.0, 7500.0, 273_600.0].map(short_time);
        assert_eq!(times, ["0s", "0.2s", "59s", "4m12s", "2h05m", "3d04h"]);
        assert_eq!([grouped(1_234_567), grouped(999)], ["1,234,567", "999"]);
        assert_eq!([counted(1, "GPU"), counted(2, "GPU")], ["1 GPU", "2 GPUs"]);
        assert_eq!([512, 8192, 1536].map(memory), ["512 MiB", "8 GiB", "1.5 GiB"]);
    }

    #[test]
    fn money_is_rounded_to_cents_and_a_small_amount_is_not_zero() {
        let text =
            [0, 1, 9_999, 10_000, 1_234_567, -2_500_000, -5].map(|micros| money(Dollars(micros)));
        assert_eq!(text, ["$0.00", "<$0.01", "<$0.01", "$0.01", "$1.23", "-$2.50", "-<$0.01"]);
    }

    #[test]
    fn programs_read_money_as_a_number() {
        let text =
            [0, 1, 10_000, 1_234_567, 2_000_000, -2_500_000].map(|micros| dollars(Dollars(micros)));
        assert_eq!(text, ["0", "0.000001", "0.01", "1.234567", "2", "-2.5"]);
    }

    #[test]
    fn foreign_text_cannot_move_the_cursor() {
        assert_eq!(one_line("a\u{1b}[2Jb\nc"), "ab c");
    }
}

//! Normalizes output: replaces times, keys, ports and machine properties, and keeps the alignment.

use std::fmt::Write as _;

/// Replacements for one script.
#[derive(Default)]
pub(crate) struct Normal {
    hidden: Vec<(String, String)>,
}

/// Patterns of fixed width: `9` is a digit, `x` a hexadecimal digit.
const FORMS: [(&str, &str); 4] = [
    ("9999-99-99T99:99:99.999Z", "YYYY-MM-DDTHH:MM:SS.mmmZ"),
    ("9999-99-99", "YYYY-MM-DD"),
    ("gpu-xxxxxxxxxxxx", "gpu-NNNNNNNNNNNN"),
    ("SIM-xxxxxxxx", "SIM-NNNNNNNN"),
];

const KEYS: [&str; 4] = ["aft_", "afi_", "afr_", "afw_"];

/// Fields of JSON and YAML that depend on time or machine.
const FIELDS: [&str; 21] = [
    "duration_seconds",
    "cost",
    "micros",
    "gpu_hours",
    "balance",
    "spent_this_month",
    "utilization",
    "temperature",
    "power_usage",
    "sm_clock",
    "cpu_cores",
    "cpu_cores_available",
    "memory_total",
    "memory_available",
    "storage_total",
    "storage_available",
    "device_control",
    "hostname",
    "ip_address",
    "seq",
    "trace_id",
];

impl Normal {
    pub(crate) fn hide(&mut self, text: &str, by: &str) {
        self.hidden.push((text.to_owned(), by.to_owned()));
    }

    /// Normalizes the output of a command.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.hidden {
            text = text.replace(from, to);
        }
        text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        for (form, by) in FORMS {
            text = replace_form(&text, form, by);
        }
        for key in KEYS {
            text = replace_keys(&text, key);
        }
        let aged = text.contains("s ago");
        let mut lines: Vec<_> = text.lines().map(line).collect();
        brief(&mut lines);
        if aged {
            lines = lines.iter().map(|line| squeezed(line)).collect();
        }
        lines.into_iter().map(|line| line + "\n").collect()
    }
}

/// A forecast shrinks while the commands before it run.
fn forecast(line: &str) -> String {
    const BEFORE: &str = "xpected to start in ";
    match line.split_once(BEFORE) {
        Some((start, _)) => format!("{start}{BEFORE}…"),
        None => line.to_owned(),
    }
}

fn line(line: &str) -> String {
    let line = machine(&field(line));
    pennies(&forecast(&times(&readings(&line))))
}

/// Small costs depend on the machine.
fn pennies(line: &str) -> String {
    if line.trim_start().starts_with("Cost ") {
        return (1..10).fold(line.to_owned(), |line, cents| {
            line.replace(&format!(" $0.0{cents}"), " <$0.01")
        });
    }
    (1..10).fold(line.to_owned(), |line, cents| line.replace(&format!(" $0.0{cents}"), "<$0.01"))
}

/// Run times of a cluster have whole seconds, so that a cost may be zero.
fn brief(lines: &mut [String]) {
    for at in 1..lines.len() {
        if lines[at - 1].trim_start().starts_with("Run time ") {
            lines[at] = lines[at].replace("Cost        $0.00", "Cost        <$0.01");
        }
    }
}

/// Replaces the value of a variable field.
fn field(line: &str) -> String {
    let Some((name, value)) = line.split_once(": ") else { return line.to_owned() };
    let bare = name.trim_start_matches([' ', '-', '"']).trim_end_matches('"');
    let number = value.trim_end_matches(',');
    if !FIELDS.contains(&bare) || number == "null" {
        return line.to_owned();
    }
    format!("{name}: #{}", if value.ends_with(',') { "," } else { "" })
}

fn machine(line: &str) -> String {
    let bare = line.trim_start();
    let before = &line[..line.len() - bare.len()];
    for (begins, by) in [
        ("CPU        ", "CPU        # cores, # free"),
        ("Memory     ", "Memory     # GiB, # GiB free"),
        ("agentaflow_gpu_utilization ", "agentaflow_gpu_utilization #"),
        ("\"hostname\": ", "\"hostname\": #,"),
    ] {
        if bare.starts_with(begins) {
            return format!("{before}{by}");
        }
    }
    line.to_owned()
}

/// Replaces GPU readings such as `91 %`, `49 °C`, `367 W` in their column width.
fn readings(line: &str) -> String {
    let mut text = line.to_owned();
    for unit in [" %", " °C", " W"] {
        let mut done = String::new();
        while let Some(at) = text.find(unit) {
            let head = &text[..at];
            let bare = head.trim_end_matches(|c: char| c.is_ascii_digit());
            let ends = text[at + unit.len()..].chars().next().is_none_or(|c| c == ' ');
            if bare.len() < head.len() && ends {
                let width = head.len() - bare.trim_end().len();
                done.push_str(bare.trim_end());
                let _ = write!(done, "{:>width$}", "#");
            } else {
                done.push_str(head);
            }
            done.push_str(unit);
            text = text[at + unit.len()..].to_owned();
        }
        text = done + &text;
    }
    text
}

/// Replaces durations such as `0.4s`, `12s`, `1m05s`.
fn times(line: &str) -> String {
    let mut done = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let token: String =
            rest[start..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
        let before = &rest[..start];
        let free = before.chars().next_back().is_none_or(|c| c == ' ' || c == ',');
        done.push_str(before);
        if free && is_time(&token) {
            let bare = done.trim_end_matches(' ').len();
            let spaces = done.len() - bare;
            // Columns of numbers are right-aligned; values after a label are left-aligned.
            let column = spaces >= 2 && done[..bare].trim_start().contains("  ");
            if column {
                done.truncate(bare);
                let _ = write!(done, "{:>width$}", "#s", width = spaces + token.len());
            } else {
                done.push_str("#s");
            }
        } else {
            done.push_str(&token);
        }
        rest = &rest[start + token.len()..];
    }
    done + rest
}

fn is_time(token: &str) -> bool {
    let Some(number) = token.strip_suffix('s') else { return false };
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    number.split(['.', 'm']).all(digits)
}

/// Removes the variable width of age columns.
fn squeezed(line: &str) -> String {
    let mut done = String::new();
    let mut rest = line;
    while let Some(gap) = rest.find("  ") {
        let word = rest[gap..].trim_start();
        let is_age = ["#s ago", "never", "SEEN", "CREATED", "LAST USED"]
            .iter()
            .any(|age| word.starts_with(age));
        let spaces = rest[gap..].len() - word.len();
        done.push_str(&rest[..gap]);
        // Only columns are squeezed, not values after a label.
        let column = done.trim().contains("  ");
        done.push_str(&" ".repeat(if is_age && column { 2 } else { spaces }));
        rest = word;
    }
    done + rest
}

fn replace_form(text: &str, form: &str, by: &str) -> String {
    let fits = |part: &str| {
        part.len() >= form.len()
            && part.bytes().zip(form.bytes()).all(|(byte, wanted)| match wanted {
                b'9' => byte.is_ascii_digit(),
                b'x' => byte.is_ascii_hexdigit(),
                other => byte == other,
            })
    };
    let mut done = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if fits(rest) {
            done.push_str(by);
            rest = &rest[form.len()..];
        } else {
            done.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    done
}

/// Replaces a key or its prefix in its width.
fn replace_keys(text: &str, begins: &str) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(begins) {
        let after = &rest[start + begins.len()..];
        let secret = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
        let secret = secret.unwrap_or(after.len());
        done.push_str(&rest[..start]);
        done.push_str(begins);
        done.push_str(if secret > 12 { "SECRET" } else { &"xxxxxxxxxxxx"[..secret] });
        rest = &after[secret..];
    }
    done + rest
}

#[test]
fn two_runs_look_alike_and_columns_stay_where_they_are() {
    let normal = Normal::default();
    for (a, b) in [
        ("1    train  0.4s   $0.02", "1    train   12s  <$0.01"),
        ("Cost        $0.02", "Cost        <$0.01"),
        ("Run time    0.4s", "Run time    12s"),
        ("ID  NAME      SEEN\n 1  a     0.1s ago", "ID  NAME     SEEN\n 1  a     12s ago"),
        ("at 2026-11-15T14:53:19.683Z", "at 2027-01-02T03:04:05.678Z"),
        ("  0  busy   91 %   49 °C", "  0  busy    0 %   31 °C"),
        ("\"cost\": 0.000159,", "\"cost\": 0,"),
        ("aft_J-LwgrbW_vmtcjPN2TtMDfdF7D55ckwh", "aft_0-LwgrbW_vmtcjPN2TtMDfdF7D55ckwh"),
    ] {
        assert_eq!(normal.text(a), normal.text(b));
    }
    for kept in ["2 GPUs\n", "$2.00 per hour\n", "gpu-1  active\n", "exit code 143\n"] {
        assert_eq!(normal.text(kept), kept);
    }
}

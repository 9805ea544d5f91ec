//! Splits lines into arguments and parses values.

use std::collections::BTreeMap;

use agentaflow_engine::labels::{Effect, Expr, Labels, Op, Taint, Toleration, TolerationOp};
use agentaflow_engine::{MilliCpu, Span};

const SECTIONS: [&str; 8] =
    ["labels", "taints", "has", "selector", "where", "tolerates", "needs", "tokens"];

/// Arguments of one command.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// File and line, for messages.
    pub(crate) place: String,
    plain: Vec<String>,
    options: BTreeMap<String, Vec<String>>,
    sections: BTreeMap<String, Vec<String>>,
    /// The part after each `and`.
    more: Vec<Arguments>,
}

impl Arguments {
    pub(crate) fn new(place: &str, line: &str) -> Self {
        let mut arguments = Self { place: place.to_owned(), ..Self::default() };
        let mut parts = line.split(" and ");
        let line = parts.next().unwrap_or_default();
        arguments.more = parts.map(|part| Self::new(place, part)).collect();
        let mut section: Option<String> = None;
        for word in line.split_whitespace() {
            if SECTIONS.contains(&word) {
                section = Some(word.to_owned());
            } else if let Some(section) = &section {
                arguments.sections.entry(section.clone()).or_default().push(word.to_owned());
            } else if let Some((key, value)) = word.split_once('=') {
                arguments.options.entry(key.to_owned()).or_default().push(value.to_owned());
            } else {
                arguments.plain.push(word.to_owned());
            }
        }
        arguments
    }

    /// Panics about an invalid script.
    pub(crate) fn mistake(&self, what: &str) -> ! {
        panic!("{}: {what}", self.place)
    }

    pub(crate) fn plain(&self, at: usize) -> &str {
        match self.plain.get(at) {
            Some(word) => word,
            None => self.mistake(&format!("word {} is missing", at + 1)),
        }
    }

    pub(crate) fn maybe(&self, at: usize) -> Option<&str> {
        self.plain.get(at).map(String::as_str)
    }

    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.plain.len();
        self.plain.retain(|word| word != name);
        self.plain.len() < before
    }

    pub(crate) fn take_more(&mut self) -> Vec<Self> {
        std::mem::take(&mut self.more)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.options.remove(name).and_then(|mut values| values.pop())
    }

    /// Removes a repeatable option.
    pub(crate) fn take_all(&mut self, name: &str) -> Vec<String> {
        self.options.remove(name).unwrap_or_default()
    }

    /// Removes the options with the prefix `name.`; returns them without it.
    pub(crate) fn take_below(&mut self, name: &str) -> Vec<(String, String)> {
        let prefix = format!("{name}.");
        let keys: Vec<String> =
            self.options.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
        let mut found = Vec::new();
        for key in keys {
            for value in self.take_all(&key) {
                found.push((key[prefix.len()..].to_owned(), value));
            }
        }
        found
    }

    pub(crate) fn take_number(&mut self, name: &str) -> Option<u64> {
        let value = self.take(name)?;
        Some(self.number(&value))
    }

    pub(crate) fn take_span(&mut self, name: &str) -> Option<Span> {
        let value = self.take(name)?;
        Some(self.span(&value))
    }

    pub(crate) fn take_cpu(&mut self, name: &str) -> Option<MilliCpu> {
        let value = self.take(name)?;
        Some(match value.strip_suffix('m') {
            Some(milli) => MilliCpu(self.number(milli)),
            None => MilliCpu(self.number(&value).saturating_mul(1000)),
        })
    }

    pub(crate) fn section(&mut self, name: &str) -> Vec<String> {
        self.sections.remove(name).unwrap_or_default()
    }

    pub(crate) fn pairs(&mut self, name: &str) -> Vec<(String, String)> {
        let pair = |word: &String| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (word.clone(), String::new()),
        };
        self.section(name).iter().map(pair).collect()
    }

    pub(crate) fn labels(&mut self, name: &str) -> Labels {
        let pairs = self.pairs(name).into_iter();
        pairs.map(|(key, value)| (key.into(), value.into())).collect()
    }

    pub(crate) fn taints(&mut self) -> Vec<Taint> {
        let arguments = self.section("taints");
        let taint = |word: &String| {
            let (rest, effect) = word.rsplit_once(':').unwrap_or((word, "NoSchedule"));
            let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
            Taint::new(key, value, self.effect(effect))
        };
        arguments.iter().map(taint).collect()
    }

    pub(crate) fn tolerations(&mut self) -> Vec<Toleration> {
        let arguments = self.section("tolerates");
        let toleration = |word: &String| {
            let (rest, effect) = match word.rsplit_once(':') {
                Some((rest, effect)) => (rest, Some(self.effect(effect))),
                None => (word.as_str(), None),
            };
            let (key, op, value) = match rest.split_once('=') {
                Some((key, value)) => (key, TolerationOp::Equal, value),
                None => (rest, TolerationOp::Exists, ""),
            };
            let key = (key != "*").then(|| key.into());
            Toleration { key, op, value: value.into(), effect }
        };
        arguments.iter().map(toleration).collect()
    }

    /// Panics about unused arguments; `plain` arguments were used.
    pub(crate) fn end(&self, plain: usize) {
        let left =
            self.options.keys().chain(self.sections.keys()).chain(self.plain.iter().skip(plain));
        let left: Vec<_> = left.collect();
        if !left.is_empty() || !self.more.is_empty() {
            self.mistake(&format!("not understood: {left:?}"));
        }
    }

    pub(crate) fn number(&self, text: &str) -> u64 {
        text.parse().unwrap_or_else(|_| self.mistake(&format!("`{text}` is no number")))
    }

    /// `90s`, `10m`, `1h30m`, `2d`, `5ms`, or 0.
    pub(crate) fn span(&self, text: &str) -> Span {
        let mut total = 0;
        let mut rest = text;
        while !rest.is_empty() && rest != "0" {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let letters =
                rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
            let unit = match &rest[digits..digits + letters] {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => self.mistake(&format!("`{text}` is no span of time")),
            };
            total += self.number(&rest[..digits]) * unit;
            rest = &rest[digits + letters..];
        }
        Span(total)
    }

    fn effect(&self, name: &str) -> Effect {
        match name {
            "NoSchedule" => Effect::NoSchedule,
            "PreferNoSchedule" => Effect::PreferNoSchedule,
            "NoExecute" => Effect::NoExecute,
            _ => self.mistake(&format!("no taint has the effect `{name}`")),
        }
    }
}

/// `rack=r1`, `rack!=r1`, `rack=r1|r2`, `cores>8`, `cores<8`, `rack`, `!rack`.
pub(crate) fn expression(text: &str) -> Expr {
    let values = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
    if let Some((key, value)) = text.split_once("!=") {
        Expr::new(key, Op::NotIn, values(value))
    } else if let Some((key, value)) = text.split_once('=') {
        Expr::new(key, Op::In, values(value))
    } else if let Some((key, value)) = text.split_once('>') {
        Expr::new(key, Op::Gt, [value])
    } else if let Some((key, value)) = text.split_once('<') {
        Expr::new(key, Op::Lt, [value])
    } else if let Some(key) = text.strip_prefix('!') {
        Expr::new(key, Op::DoesNotExist, [""; 0])
    } else {
        Expr::new(text, Op::Exists, [""; 0])
    }
}

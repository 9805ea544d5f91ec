//! Carries changes out in the text of one document, so that comments and layout stay as they are.

use serde_json::{Map, Value};

use super::operation::{Operation, apply};
use super::{emit, layout};
use crate::yaml::{Content, Document, Entry, Limits, Node, Scalar, read_text};

/// Text after an operation; none if the operation is impossible or the result would differ from the intended value.
pub(super) fn edited(text: &str, operation: &Operation) -> Option<String> {
    let document = single(text)?;
    let mut meant = document.value.clone();
    apply(&mut meant, operation)?;
    if let Operation::Document { value } = operation {
        return with_document(text, &document, value);
    }
    if meant == document.value {
        return Some(text.to_owned());
    }
    let new = Editor { text, document: &document }.edit(operation)?;
    (single(&new)?.value == meant).then_some(new)
}

/// Text after several operations that share one position in the text (an anchor and its aliases); none if the result
/// would differ from the combined operations.
pub(super) fn edited_together(text: &str, operations: &[&Operation]) -> Option<String> {
    let mut meant = single(text)?.value;
    let mut new = text.to_owned();
    for operation in operations {
        apply(&mut meant, operation)?;
        let document = single(&new)?;
        let mut next = document.value.clone();
        apply(&mut next, operation)?;
        if next != document.value {
            new = Editor { text: &new, document: &document }.edit(operation)?;
        }
    }
    (single(&new)?.value == meant).then_some(new)
}

fn single(text: &str) -> Option<Document> {
    let mut documents = read_text(text, &Limits::default()).ok()?;
    if documents.len() == 1 { documents.pop() } else { None }
}

fn with_document(text: &str, document: &Document, value: &Value) -> Option<String> {
    // JSON has a single document.
    if document.root.is_flow() {
        return None;
    }
    let newline = layout::newline(text);
    let end = if text.ends_with('\n') { "" } else { newline };
    let added = emit::block(value, 0, newline);
    (single(&added)?.value == *value).then(|| format!("{text}{end}---{newline}{added}{newline}"))
}

struct Editor<'t> {
    text: &'t str,
    document: &'t Document,
}

impl Editor<'_> {
    fn edit(&self, operation: &Operation) -> Option<String> {
        match operation {
            Operation::Set { path, value } => self.set(path, value),
            Operation::Remove { path } => self.remove(path),
            Operation::Rename { path, key } => self.rename(path, key),
            Operation::Append { path, value } => self.append(path, value),
            Operation::Split { path, at } => self.split(path, *at),
            Operation::Document { .. } => None,
        }
    }

    fn set(&self, path: &[String], value: &Value) -> Option<String> {
        let Some(node) = self.document.node(path) else { return self.add(path, value) };
        if value.is_object() || value.is_array() {
            return self.fill(path, node, value);
        }
        match &*node.content {
            Content::Scalar(_) if node.span.is_empty() => self.fill(path, node, value),
            Content::Scalar(style) => {
                let new = match (style, value) {
                    // JSON stays JSON.
                    _ if self.document.root.is_flow() => value.to_string(),
                    (Scalar::Double, Value::String(_)) => value.to_string(),
                    (Scalar::Single, Value::String(text)) if !text.contains('\'') => {
                        format!("'{text}'")
                    }
                    _ => emit::scalar(value),
                };
                Some(self.replaced(node.span.start, node.span.end, &new))
            }
            _ => None,
        }
    }

    /// Sets the value of a key without one.
    fn fill(&self, path: &[String], node: &Node, value: &Value) -> Option<String> {
        let (key, parent) = path.split_last()?;
        let entry = self.document.node(parent)?.entry(key)?;
        if !matches!(&*node.content, Content::Scalar(Scalar::Plain)) {
            return None;
        }
        let colon = entry.span.end + self.text.get(entry.span.end..)?.find(':')? + 1;
        let indent = entry.position.column - 1 + if value.is_array() { 0 } else { 2 };
        let new = emit::after_key(value, indent, layout::newline(self.text));
        let end = node.span.end.max(colon);
        // A comment after the key stays on its line.
        let at = if new.starts_with(' ') { colon } else { layout::line_end(self.text, end) };
        Some(if node.span.is_empty() {
            self.replaced(at, at, &new)
        } else {
            self.replaced(colon, end, &new)
        })
    }

    /// Adds an entry, and missing parent mappings.
    fn add(&self, path: &[String], value: &Value) -> Option<String> {
        let known =
            (0..path.len()).rev().find(|end| self.document.node(&path[..*end]).is_some())?;
        let (parent, missing) = path.split_at(known);
        let (key, rest) = missing.split_first()?;
        let nested = rest.iter().rev().fold(value.clone(), |inner, key| {
            Value::Object(Map::from_iter([(key.clone(), inner)]))
        });
        let node = self.document.node(parent)?;
        match &*node.content {
            Content::Mapping { flow: true, entries } => self.add_flow(node, entries, key, &nested),
            Content::Mapping { entries, .. } => self.add_block(node, entries, key, &nested),
            Content::Scalar(_) => {
                let whole = Value::Object(Map::from_iter([(key.clone(), nested)]));
                self.fill(parent, node, &whole)
            }
            Content::Sequence { .. } => None,
        }
    }

    fn add_block(
        &self,
        node: &Node,
        entries: &[Entry],
        key: &str,
        value: &Value,
    ) -> Option<String> {
        let first = entries.iter().find(|entry| !entry.merged)?;
        let indent = first.position.column - 1;
        let deeper = if value.is_array() { indent } else { indent + 2 };
        let newline = layout::newline(self.text);
        let after = emit::after_key(value, deeper, newline);
        let line = format!("{}{}:{after}", " ".repeat(indent), emit::text(key));
        // Readers expect the metadata at the top.
        if key == "metadata" && layout::indent_before(self.text, first.span.start).is_some() {
            let start = layout::line_start(self.text, first.span.start);
            let at = layout::above_comments(self.text, start);
            return Some(self.replaced(at, at, &(line + newline)));
        }
        Some(self.with_line_after(node.end(), indent, &line))
    }

    fn add_flow(&self, node: &Node, entries: &[Entry], key: &str, value: &Value) -> Option<String> {
        let entry = |quoted: bool| {
            let key = if quoted { Value::from(key).to_string() } else { emit::text(key) };
            format!("{key}: {value}")
        };
        let Some(last) = entries.iter().rfind(|entry| !entry.merged) else {
            let inside = node.span.start + 1;
            return Some(self.replaced(inside, node.span.end.saturating_sub(1), &entry(true)));
        };
        let quoted = self.text.get(last.span.clone())?.starts_with('"');
        let margin = layout::indent_before(self.text, last.span.start);
        let space =
            margin.map_or(" ".to_owned(), |margin| layout::newline(self.text).to_owned() + margin);
        let at = last.value.end().max(last.span.end);
        Some(self.replaced(at, at, &format!(",{space}{}", entry(quoted))))
    }

    fn append(&self, path: &[String], value: &Value) -> Option<String> {
        let whole = Value::Array(vec![value.clone()]);
        let Some(node) = self.document.node(path) else { return self.add(path, &whole) };
        match &*node.content {
            Content::Sequence { items, flow: true } => {
                let (at, comma) = match items.last() {
                    Some(last) => (last.end(), ", "),
                    None => (node.span.start + 1, ""),
                };
                Some(self.replaced(at, at, &format!("{comma}{value}")))
            }
            Content::Sequence { items, .. } => {
                let dash = layout::dash_before(self.text, items.last()?.span.start)?;
                let indent = layout::column(self.text, dash);
                let line = emit::item(value, indent, layout::newline(self.text));
                Some(self.with_line_after(
                    node.end(),
                    indent + 1,
                    &format!("{}- {line}", " ".repeat(indent)),
                ))
            }
            Content::Scalar(_) => self.fill(path, node, &whole),
            Content::Mapping { .. } => None,
        }
    }

    fn rename(&self, path: &[String], key: &str) -> Option<String> {
        let (last, parent) = path.split_last()?;
        let entry = self.document.node(parent)?.entry(last)?;
        let quoted = self.text.get(entry.span.clone())?.starts_with('"');
        let new = if quoted { Value::from(key).to_string() } else { emit::text(key) };
        Some(self.replaced(entry.span.start, entry.span.end, &new))
    }

    fn remove(&self, path: &[String]) -> Option<String> {
        let (last, parent) = path.split_last()?;
        let parent = self.document.node(parent)?;
        let own: Vec<_> = parent.entries().iter().filter(|entry| !entry.merged).collect();
        let index = own.iter().position(|entry| entry.key == *last)?;
        let (start, end) = (own[index].span.start, own[index].value.end().max(own[index].span.end));
        if parent.is_flow() || layout::indent_before(self.text, start).is_none() {
            let next = own.get(index + 1).map(|entry| entry.span.start);
            let before = index.checked_sub(1).map(|before| own[before].value.end());
            let (from, to) = match (next, before) {
                // A comment on the line of a dash stays after the dash.
                _ if layout::comment_after(self.text, end).is_some() && !parent.is_flow() => {
                    (start, end)
                }
                (Some(next), _) => (start, next),
                (None, Some(before)) => (before, end),
                (None, None) => (start, end),
            };
            return Some(self.replaced(from, to, ""));
        }
        let begin = layout::line_start(self.text, start);
        let finish = layout::next_line(self.text, end);
        let margin = self.text.get(begin..start)?;
        let newline = layout::newline(self.text);
        let kept = layout::comment_after(self.text, end)
            .map_or(String::new(), |comment| format!("{margin}{comment}{newline}"));
        Some(self.replaced(begin, finish, &kept))
    }

    /// Inserts a line before an item that starts a new parent item; comments above the item move with it.
    fn split(&self, path: &[String], at: usize) -> Option<String> {
        let (inner, outer) = path.split_last()?;
        let item = self.document.node(path)?.items().get(at)?;
        let surrounding = self.document.node(outer)?;
        let dash = layout::dash_before(self.text, surrounding.span.start)?;
        let indent = layout::column(self.text, dash);
        let own = layout::dash_before(self.text, item.span.start)?;
        let begin = layout::above_comments(self.text, layout::line_start(self.text, own));
        let newline = layout::newline(self.text);
        let line = format!("{}- {}:{newline}", " ".repeat(indent), emit::text(inner));
        Some(self.replaced(begin, begin, &line))
    }

    /// Inserts lines after the line that contains `end`, and after its comments that are indented by at least `indent`.
    fn with_line_after(&self, end: usize, indent: usize, line: &str) -> String {
        let newline = layout::newline(self.text);
        let at = layout::below_comments(self.text, layout::next_line(self.text, end), indent);
        let ended = self.text.get(..at).is_some_and(|text| text.is_empty() || text.ends_with('\n'));
        let before = if ended { "" } else { newline };
        self.replaced(at, at, &format!("{before}{line}{newline}"))
    }

    fn replaced(&self, start: usize, end: usize, new: &str) -> String {
        let (before, after) = (self.text.get(..start), self.text.get(end..));
        format!("{}{new}{}", before.unwrap_or_default(), after.unwrap_or_default())
    }
}

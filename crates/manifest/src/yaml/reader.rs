//! Builds documents from the parser's events, without recursion: nesting cannot exhaust the stack.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StructureStyle, Tag};
use serde_json::Value;

use super::error::scan;
use super::mapping::{self, FinishedNode, Key, OpenMapping};
use super::{
    AmbiguousScalar, Comment, Content, Document, Limits, Node, Problem, Scalar, SourcePosition,
    YamlError, scalar,
};

pub(super) fn documents(text: &str, limits: &Limits) -> Result<Vec<Document>, YamlError> {
    match parse(text, limits) {
        // JSON may be indented with tabs, which YAML forbids. A tab inside of a JSON string is always written `\t`, so
        // that spaces can stand for them all, and no position moves.
        Err(YamlError { problem: Problem::Tab | Problem::Syntax(_), .. })
            if text.contains('\t')
                && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() =>
        {
            parse(&text.replace('\t', " "), limits)
        }
        done => done,
    }
}

fn parse(text: &str, limits: &Limits) -> Result<Vec<Document>, YamlError> {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::new(text, text.len() - body.len(), *limits);
    for next in Parser::new_from_str_with_options(body, options(limits)) {
        let (event, span) = next.map_err(|error| scan(&error, text, limits.depth))?;
        reader.take(event, &span)?;
    }
    Ok(reader.documents)
}

fn options(limits: &Limits) -> Options {
    granit_parser::options! {
        emit_unresolved_aliases: true,
        max_buffered_comment_events: 1_000_000,
        flow_nesting_limit: limits.depth,
        block_nesting_limit: limits.depth,
    }
}

/// Target of an alias.
struct Anchored {
    value: Value,
    content: Arc<Content>,
    cost: Cost,
}

/// Size of a node with its aliases expanded.
#[derive(Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
}

struct Frame {
    position: SourcePosition,
    start: usize,
    flow: bool,
    anchor: usize,
    before: Cost,
    inside: OpenCollection,
}

enum OpenCollection {
    Sequence { items: Vec<Node>, values: Vec<Value> },
    Mapping(OpenMapping),
}

struct Reader<'t> {
    text: &'t str,
    base: usize,
    limits: Limits,
    cost: Cost,
    open: Vec<Frame>,
    anchors: HashMap<usize, Anchored>,
    comments: Vec<Comment>,
    ambiguous: Vec<AmbiguousScalar>,
    root: Option<FinishedNode>,
    start: usize,
    documents: Vec<Document>,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str, base: usize, limits: Limits) -> Self {
        Self {
            text,
            base,
            limits,
            cost: Cost::default(),
            open: Vec::new(),
            anchors: HashMap::new(),
            comments: Vec::new(),
            ambiguous: Vec::new(),
            root: None,
            start: 0,
            documents: Vec::new(),
        }
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), YamlError> {
        let position = position(span);
        let bytes = self.bytes(span);
        match event {
            Event::Comment(text, _) => self.comment(position, bytes.start, &text),
            Event::Scalar(text, style, anchor, tag) => {
                return self.scalar(&text, style, anchor, tag.as_deref(), position, bytes);
            }
            Event::SequenceStart(style, anchor, _) => {
                let inside = OpenCollection::Sequence { items: Vec::new(), values: Vec::new() };
                return self.enter(inside, style, anchor, position, bytes.start);
            }
            Event::MappingStart(style, anchor, _) => {
                let inside = OpenCollection::Mapping(OpenMapping::default());
                return self.enter(inside, style, anchor, position, bytes.start);
            }
            Event::SequenceEnd | Event::MappingEnd => return self.leave(bytes.end),
            Event::Alias(anchor) => return self.alias(anchor, position, bytes),
            Event::UnresolvedAlias(name) => {
                let name = name.into_owned();
                return Err(YamlError::at(position, Problem::UnknownAnchor { name }));
            }
            Event::DocumentStart(..) => self.start = bytes.start,
            Event::DocumentEnd => self.end_document(),
            _ => {}
        }
        Ok(())
    }

    fn comment(&mut self, position: SourcePosition, start: usize, text: &str) {
        let line = self.text.get(..start).unwrap_or_default();
        let line = line.rsplit('\n').next().unwrap_or_default();
        let alone = line.trim_matches(['\u{feff}', ' ', '\t']).is_empty();
        self.comments.push(Comment { position, text: text.trim().to_owned(), alone });
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        position: SourcePosition,
        span: Range<usize>,
    ) -> Result<(), YamlError> {
        let before = self.cost;
        self.charge(Cost { nodes: 1, bytes: text.len() }, position)?;
        let written = match style {
            ScalarStyle::Plain => Scalar::Plain,
            ScalarStyle::SingleQuoted => Scalar::Single,
            ScalarStyle::DoubleQuoted => Scalar::Double,
            _ => Scalar::Block,
        };
        let is_key = self.wants_key();
        let core = tag.and_then(Tag::core_suffix);
        let value = match core {
            Some(tag) => {
                scalar::tagged(text, tag).map_err(|problem| YamlError::at(position, problem))?
            }
            None if written == Scalar::Plain && tag.is_none() && !is_key => {
                let (value, ambiguity) = scalar::plain(text);
                self.ambiguous
                    .extend(ambiguity.map(|ambiguity| AmbiguousScalar { position, ambiguity }));
                value
            }
            None => Value::String(text.to_owned()),
        };
        let content = Arc::new(Content::Scalar(written));
        let node = Node { position, span, content, alias: false };
        if is_key {
            let merge = text == mapping::MERGE && written == Scalar::Plain;
            self.remember(anchor, &node, &Value::String(text.to_owned()), before)?;
            return self.key(text.to_owned(), position, node.span, merge);
        }
        self.remember(anchor, &node, &value, before)?;
        self.put(FinishedNode { node, value })
    }

    fn enter(
        &mut self,
        inside: OpenCollection,
        style: StructureStyle,
        anchor: usize,
        position: SourcePosition,
        start: usize,
    ) -> Result<(), YamlError> {
        if self.wants_key() {
            return Err(YamlError::at(position, Problem::KeyNotText));
        }
        if self.open.len() >= self.limits.depth {
            return Err(YamlError::at(position, Problem::TooDeep { limit: self.limits.depth }));
        }
        let before = self.cost;
        self.charge(Cost { nodes: 1, bytes: 0 }, position)?;
        let flow = matches!(style, StructureStyle::Flow);
        self.open.push(Frame { position, start, flow, anchor, before, inside });
        Ok(())
    }

    fn leave(&mut self, end: usize) -> Result<(), YamlError> {
        let Some(frame) = self.open.pop() else { return Ok(()) };
        let Frame { position, start, flow, anchor, before, inside } = frame;
        let (content, value) = match inside {
            OpenCollection::Sequence { items, values } => {
                (Content::Sequence { items, flow }, Value::Array(values))
            }
            OpenCollection::Mapping(mapping) => {
                let (entries, values) = mapping.close()?;
                (Content::Mapping { entries, flow }, Value::Object(values))
            }
        };
        let node = Node { position, span: start..end, content: Arc::new(content), alias: false };
        self.remember(anchor, &node, &value, before)?;
        self.put(FinishedNode { node, value })
    }

    fn alias(
        &mut self,
        anchor: usize,
        position: SourcePosition,
        span: Range<usize>,
    ) -> Result<(), YamlError> {
        let Some(meant) = self.anchors.get(&anchor) else {
            return Err(YamlError::at(position, Problem::EndlessAlias));
        };
        let (cost, content) = (meant.cost, Arc::clone(&meant.content));
        // Charged before the copy: an alias bomb must be rejected before it expands.
        self.charge(cost, position)?;
        let value = self.anchors.get(&anchor).map(|meant| meant.value.clone()).unwrap_or_default();
        if self.wants_key() {
            return match value {
                Value::String(text) => self.key(text, position, span, false),
                Value::Number(number) => self.key(number.to_string(), position, span, false),
                _ => Err(YamlError::at(position, Problem::KeyNotText)),
            };
        }
        self.put(FinishedNode { node: Node { position, span, content, alias: true }, value })
    }

    /// Stores a node that an alias may refer to.
    fn remember(
        &mut self,
        anchor: usize,
        node: &Node,
        value: &Value,
        before: Cost,
    ) -> Result<(), YamlError> {
        if anchor == 0 {
            return Ok(());
        }
        let cost =
            Cost { nodes: self.cost.nodes - before.nodes, bytes: self.cost.bytes - before.bytes };
        self.charge(cost, node.position)?;
        let content = Arc::clone(&node.content);
        self.anchors.insert(anchor, Anchored { value: value.clone(), content, cost });
        Ok(())
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Frame { inside: OpenCollection::Mapping(mapping), .. }) if mapping.wants_key())
    }

    fn key(
        &mut self,
        text: String,
        position: SourcePosition,
        span: Range<usize>,
        merge: bool,
    ) -> Result<(), YamlError> {
        let Some(Frame { inside: OpenCollection::Mapping(mapping), .. }) = self.open.last_mut()
        else {
            return Ok(());
        };
        mapping.name(Key { text, position, span, merge })
    }

    fn put(&mut self, built: FinishedNode) -> Result<(), YamlError> {
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(built);
            return Ok(());
        };
        match &mut frame.inside {
            OpenCollection::Sequence { items, values } => {
                items.push(built.node);
                values.push(built.value);
                Ok(())
            }
            OpenCollection::Mapping(mapping) => mapping.put(built),
        }
    }

    fn end_document(&mut self) {
        self.anchors.clear();
        let comments = std::mem::take(&mut self.comments);
        let ambiguous = std::mem::take(&mut self.ambiguous);
        match self.root.take() {
            Some(FinishedNode { node, value }) if !value.is_null() => {
                let start = self.start;
                self.documents.push(Document { value, root: node, start, comments, ambiguous });
            }
            _ => {}
        }
    }

    fn charge(&mut self, more: Cost, position: SourcePosition) -> Result<(), YamlError> {
        self.cost.nodes = self.cost.nodes.saturating_add(more.nodes);
        self.cost.bytes = self.cost.bytes.saturating_add(more.bytes);
        let problem = if self.cost.nodes > self.limits.nodes {
            Problem::TooManyNodes { limit: self.limits.nodes }
        } else if self.cost.bytes > self.limits.expanded_bytes {
            Problem::TooMuchText { limit: self.limits.expanded_bytes }
        } else {
            return Ok(());
        };
        Err(YamlError::at(position, problem))
    }

    fn bytes(&self, span: &Span) -> Range<usize> {
        let start = span.start.byte_offset().unwrap_or_default() + self.base;
        let end = span.end.byte_offset().unwrap_or_default() + self.base;
        start..end.max(start)
    }
}

fn position(span: &Span) -> SourcePosition {
    SourcePosition { line: span.start.line().max(1), column: span.start.col() + 1 }
}

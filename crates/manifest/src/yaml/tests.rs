use std::fmt::Write as _;

use serde_json::{Value, json};

use super::*;

fn one(text: &str) -> Document {
    read_one(text.as_bytes(), &Limits::default()).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn refused(bytes: &[u8]) -> String {
    read(bytes, &Limits::default()).expect_err("it should be refused").to_string()
}

fn problem(bytes: &[u8]) -> Problem {
    read(bytes, &Limits::default()).expect_err("it should be refused").problem
}

/// Asserts the value of a scalar in a manifest.
fn check(scalar: &str, means: &Value) {
    let document = one(&format!("value: {scalar}\n"));
    assert_eq!(document.value["value"], *means, "{scalar}");
}

#[test]
fn scalars_are_parsed_like_kubernetes_tools() {
    let table = [
        ("", json!(null)),
        ("~", json!(null)),
        ("null", json!(null)),
        ("true", json!(true)),
        ("False", json!(false)),
        ("yes", json!("yes")),
        ("on", json!("on")),
        ("12", json!(12)),
        ("-12", json!(-12)),
        ("+12", json!(12)),
        ("0", json!(0)),
        ("0644", json!(0o644)),
        ("0o644", json!(0o644)),
        ("0899", json!(899)),
        ("0x1F", json!(31)),
        ("1.5", json!(1.5)),
        (".5", json!(0.5)),
        ("1e3", json!(1000.0)),
        ("1.2.3", json!("1.2.3")),
        ("1_000", json!("1_000")),
        (".inf", json!(".inf")),
        ("-", json!([null])),
        ("\"12\"", json!("12")),
        ("'true'", json!("true")),
        ("!!str 12", json!("12")),
        ("! 12", json!("12")),
        ("9007199254740993", json!(9_007_199_254_740_993_u64)),
        ("18446744073709551615", json!(u64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("18446744073709551616", json!("18446744073709551616")),
        ("2024-01-02", json!("2024-01-02")),
        ("16Gi", json!("16Gi")),
        ("-x", json!("-x")),
        ("+", json!("+")),
        (".", json!(".")),
        ("0x", json!("0x")),
        ("1e", json!("1e")),
        ("1e999", json!("1e999")),
    ];
    for (scalar, means) in table {
        if scalar != "-" {
            check(scalar, &means);
        }
    }
}

#[test]
fn ambiguous_scalars_are_noted() {
    let ambiguous = |text: &str| -> Vec<(usize, Ambiguity)> {
        let found = one(text).ambiguous;
        found.into_iter().map(|note| (note.position.line, note.ambiguity)).collect()
    };
    for (text, expected) in [
        ("a: 1\nb: yes\n", (2, Ambiguity::Truth("yes".to_owned()))),
        ("mode: 0755\n", (1, Ambiguity::Octal("0755".to_owned(), 493.into()))),
        ("big: 99999999999999999999\n", (1, Ambiguity::Large("99999999999999999999".to_owned()))),
        ("some: 1_000\n", (1, Ambiguity::Number("1_000".to_owned()))),
    ] {
        assert_eq!(ambiguous(text), [expected]);
    }
    assert_eq!(ambiguous("a: \"yes\"\nb: 'no'\non: push\nc: 0\nd: yesterday\n"), []);
}

#[test]
fn every_path_has_its_line_and_column() {
    let document = one(
        "# a pod\nspec:\n  containers:\n  - name: a\n    image: \"b\" # c\n  -   name: d\n      # e\n      args: [x, {y: z}]\n",
    );
    let position = |path: &[&str]| {
        let position = document.position(path);
        (position.line, position.column)
    };
    assert_eq!(position(&[]), (2, 1));
    assert_eq!(position(&["spec"]), (2, 1));
    assert_eq!(position(&["spec", "containers", "0", "image"]), (5, 5));
    assert_eq!(position(&["spec", "containers", "1"]), (6, 7));
    assert_eq!(position(&["spec", "containers", "1", "args", "1", "y"]), (8, 18));
    assert_eq!(position(&["spec", "containers", "1", "missing", "more"]), (6, 7));
}

#[test]
fn spans_are_byte_ranges_of_the_source() {
    let text = "\u{feff}ä: 'x' # y\nb:\n- {c: \"d\"}\ne: |\n  f\n  g\nh: i\n";
    let document = one(text);
    let slice = |path: &[&str]| &text[document.node(path).unwrap().span.clone()];
    assert_eq!(slice(&["ä"]), "'x'");
    assert_eq!(slice(&["b", "0"]), "{c: \"d\"}");
    assert_eq!(slice(&["b", "0", "c"]), "\"d\"");
    assert_eq!(&text[document.root.entry("b").unwrap().span.clone()], "b");
    let ends = |path: &[&str]| text[..document.node(path).unwrap().end()].trim_end().to_owned();
    assert!(ends(&["b"]).ends_with("{c: \"d\"}"));
    assert!(ends(&["e"]).ends_with('g'));
    assert!(ends(&[]).ends_with("h: i"));
}

#[test]
fn documents_without_content_are_left_out() {
    let text = "---\n# nothing\n---\na: 1\n---\n---\n# Source: chart/templates/x.yaml\nb: 2\n...\n";
    let documents = read(text.as_bytes(), &Limits::default()).unwrap();
    let values: Vec<_> = documents.iter().map(|document| document.value.clone()).collect();
    assert_eq!(values, [json!({"a": 1}), json!({"b": 2})]);
    assert_eq!(documents[1].helm_source(), Some("chart/templates/x.yaml"));
    assert_eq!(documents[1].root.position.line, 8);
}

#[test]
fn json_is_read_too_even_when_tabs_indent_it() {
    let text = "{\n\t\"a\": {\n\t\t\"b\": [1, 2.5, \"\\t\\u00e4\"]\n\t}\n}";
    let document = one(text);
    assert_eq!(document.value, serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(document.position(&["a", "b"]).line, 3);
}

#[test]
fn anchors_and_merge_keys_are_written_out() {
    let text = "base: &base\n  a: 1\n  b: 2\nmore: &more {b: 3, c: 4}\none:\n  <<: *base\n  a: 9\ntwo:\n  <<: [*more, *base]\nlist: [*base, *more]\n";
    let document = one(text);
    assert_eq!(document.value["one"], json!({"a": 9, "b": 2}));
    assert_eq!(document.value["two"], json!({"a": 1, "b": 3, "c": 4}));
    assert_eq!(document.value["list"], json!([{"a": 1, "b": 2}, {"b": 3, "c": 4}]));
    assert_eq!(document.position(&["one", "b"]).line, 3);
    assert_eq!(document.position(&["one", "a"]).line, 7);
}

#[test]
fn errors_have_lines() {
    let table: [(&[u8], &str); 19] = [
        (b"", "it is empty"),
        (b" \n\n", "it is empty"),
        (b"# only this\n---\n", "it contains only comments and separators"),
        (b"a: \x00", "line 1, column 4: it is a binary file: it contains the byte 0x00"),
        (b"\x7fELF\x02\x01\x00\xff", "line 1, column 5: it is a binary file"),
        (b"a: 1\nb: \xff\n", "line 2, column 4: it is not UTF-8: invalid byte 0xff"),
        (b"\xff\xfea\x00", "it is UTF-16; save it as UTF-8"),
        (b"a:\n\tb: 1\n", "line 2, column 1: a tab cannot indent YAML; use spaces"),
        (b"a:\n  b: 1\n\tc: 1\n", "line 3, column 1: a tab cannot indent YAML"),
        (b"a: 1\nb: 2\na: 3\n", "line 3, column 1: duplicate key `a`; the first is in line 1"),
        (b"a: *b\n", "line 1, column 4: `*b` refers to an undefined anchor"),
        (b"a: &a [*a]\n", "line 1, column 8: this alias refers to a node that contains it"),
        (b"[a]: 1\n", "line 1, column 1: a key must be plain text"),
        (b"image: {{ .Values.image }}\n", "line 1, column 9: a key must be plain text"),
        (b"<<: 3\n", "line 1, column 5: `<<` merges mappings"),
        (b"a: !!int x\n", "`x` does not match its tag int"),
        (b"a: \"b\n", "unclosed quote?"),
        (b"a: b: c\n", "line 1, column 5: unexpected `:`"),
        (b"a: [1, 2\n", "unclosed `[`"),
    ];
    for (bytes, output) in table {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let error = refused(bytes);
        assert!(
            error.starts_with(output) || error.ends_with(output) || error.contains(output),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn limits_bound_length_depth_and_expansion() {
    let limits = Limits { bytes: 100, ..Limits::default() };
    let error = read(&[b'a'; 101], &limits).unwrap_err();
    assert_eq!(error.to_string(), "it has 101 bytes, more than the limit of 100");

    let nested = "[".repeat(50_000);
    assert_eq!(problem(nested.as_bytes()), Problem::TooDeep { limit: 100 });
    let nested: String = (0..200).map(|depth| " ".repeat(depth) + "a:\n").collect();
    assert_eq!(problem(nested.as_bytes()), Problem::TooDeep { limit: 100 });

    let mut bomb = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for step in 1..10 {
        let before = vec![format!("*a{}", step - 1); 9].join(", ");
        let _ = writeln!(bomb, "a{step}: &a{step} [{before}]");
    }
    assert!(matches!(problem(bomb.as_bytes()), Problem::TooManyNodes { .. }));

    let long = "x".repeat(1_000_000);
    let bomb = format!("a: &a {long}\nb: [{}]\n", vec!["*a"; 100].join(", "));
    assert_eq!(problem(bomb.as_bytes()), Problem::TooMuchText { limit: 64 << 20 });
}

#[test]
fn many_comments_in_a_row_are_no_trouble() {
    let text = "# word\n".repeat(5000) + "a: 1\n" + &"# word\n".repeat(5000) + "b: 2\n";
    assert_eq!(one(&text).comments.len(), 10_000);
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Requirements {
    gpu_count: Option<u32>,
    mode: Option<Mode>,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Shared,
    Exclusive,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Workload {
    spec: Vec<Requirements>,
}

#[test]
fn decode_errors_have_lines_and_suggestions() {
    let error = |text: &str| one(text).decode::<Workload>().unwrap_err().to_string();
    assert_eq!(
        error("spec:\n- gpuCount: 1\n- gpuCuont: 2\n"),
        "line 3, column 3: spec[1].gpuCuont: unknown field `gpuCuont` (did you mean `gpuCount`?)"
    );
    assert_eq!(
        error("spec:\n- gpuCount: many\n"),
        "line 2, column 3: spec[0].gpuCount: invalid type: string \"many\", expected a whole number such as 2"
    );
    assert_eq!(
        error("spec:\n- mode: exclusiv\n"),
        "line 2, column 3: spec[0].mode: unknown value `exclusiv` (did you mean `exclusive`?)"
    );
    assert_eq!(
        error("spec:\n- zzz: 1\n"),
        "line 2, column 3: spec[0].zzz: unknown field `zzz`; use one of `gpuCount`, `mode`"
    );
    assert_eq!(error("speck: 1\n"), "line 1, column 1: missing field `spec`");
    assert!(one("spec: []").decode::<Workload>().is_ok());
}

#[test]
fn two_documents_are_not_one() {
    let error = read_one(b"a: 1\n---\nb: 1\n", &Limits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 3, column 1: it contains 2 documents instead of one; the second starts here"
    );
}

//! Input: a text, or files with relevant formats.

use serde::Deserialize;
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// Path for display.
    pub path: String,
    /// Empty if only the name counts, as for weight files.
    pub content: String,
}

impl File {
    /// A file of this name with this text.
    pub fn new(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self { path: path.into(), content: content.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Prose,
    Python,
    /// One package a line: `requirements.txt`, `environment.yml`.
    Requirements,
    /// Packages in quotes or as keys: `pyproject.toml`, `Pipfile`, `setup.py`.
    Project,
    Docker,
    Notebook,
}

/// Part of a source that is analyzed as one text.
#[derive(Clone, Debug)]
pub(super) struct Passage<'a> {
    pub(super) file: Option<&'a str>,
    pub(super) cell: Option<usize>,
    pub(super) format: Format,
    pub(super) content: std::borrow::Cow<'a, str>,
}

/// Format by file name.
pub(super) fn format(path: &str) -> Format {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path).to_lowercase();
    let ends = |end: &str| name.ends_with(end);
    if ends(".ipynb") {
        return Format::Notebook;
    }
    if matches!(name.as_str(), "pyproject.toml" | "pipfile" | "setup.py" | "setup.cfg") {
        return Format::Project;
    }
    if name.contains("dockerfile") || name.contains("containerfile") {
        return Format::Docker;
    }
    let requirements = name.starts_with("requirements") || name.starts_with("constraints");
    if requirements && (ends(".txt") || ends(".in"))
        || matches!(
            name.as_str(),
            "environment.yml" | "environment.yaml" | "conda.yml" | "conda.yaml"
        )
    {
        return Format::Requirements;
    }
    if ends(".py") { Format::Python } else { Format::Prose }
}

/// The weight of a file by its name alone: weights of models, and CUDA sources.
pub(super) fn by_name(path: &str) -> Option<(&'static str, f64)> {
    let name = path.to_lowercase();
    [
        (".safetensors", 0.8),
        (".gguf", 0.8),
        (".onnx", 0.8),
        (".cu", 0.8),
        (".cuh", 0.8),
        (".pt", 0.4),
        (".pth", 0.4),
        (".ckpt", 0.4),
    ]
    .into_iter()
    .find(|(end, _)| name.ends_with(end))
}

/// Passages of a file, and a note about problems.
pub(super) fn passages(file: &File) -> (Vec<Passage<'_>>, Option<String>) {
    let format = format(&file.path);
    let whole = |format| Passage {
        file: Some(file.path.as_str()),
        cell: None,
        format,
        content: file.content.as_str().into(),
    };
    if format != Format::Notebook {
        return (vec![whole(format)], None);
    }
    match serde_json::from_str::<Notebook>(&file.content) {
        Ok(notebook) => (cells(&file.path, notebook), None),
        Err(error) => {
            let note =
                format!("{} is not a notebook ({error}): it was read as plain text", file.path);
            (vec![whole(Format::Prose)], Some(note))
        }
    }
}

#[derive(Deserialize)]
struct Notebook {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    #[serde(default)]
    cell_type: String,
    #[serde(default)]
    source: Value,
}

/// Input cells; outputs are skipped because they quote other runs.
fn cells(path: &str, notebook: Notebook) -> Vec<Passage<'_>> {
    let passage = |(index, cell): (usize, Cell)| {
        let content = match cell.source {
            Value::String(text) => text,
            Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
            _ => String::new(),
        };
        let format = if cell.cell_type == "code" { Format::Python } else { Format::Prose };
        Passage { file: Some(path), cell: Some(index + 1), format, content: content.into() }
    };
    notebook.cells.into_iter().enumerate().map(passage).collect()
}

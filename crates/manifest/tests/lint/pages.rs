//! The pages in `docs/lint` match the rules. `UPDATE=1` writes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use agentaflow_manifest::lint::{RULES, index, page};

#[test]
fn the_pages_match_the_rules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lint");
    let mut meant: BTreeMap<String, String> =
        RULES.iter().map(|rule| (format!("{}.md", rule.id), page(rule))).collect();
    meant.insert("README.md".to_owned(), index());
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in &meant {
            fs::write(folder.join(name), text).unwrap();
        }
    }
    let written: BTreeMap<String, String> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                fs::read_to_string(path).unwrap(),
            )
        })
        .collect();
    let names = |pages: &BTreeMap<String, String>| pages.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&written), names(&meant), "UPDATE=1 writes the pages");
    for (name, text) in &meant {
        assert_eq!(&written[name], text, "docs/lint/{name}: UPDATE=1 writes it");
    }
}

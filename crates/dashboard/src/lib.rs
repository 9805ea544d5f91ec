//! Files of the browser dashboard. `cargo xtask web` builds them from `web` into `web/dist`; a program built without
//! them has no dashboard.

mod files;

pub use files::{HEADERS, NOT_BUILT, accepts};

use std::borrow::Cow;

#[derive(rust_embed::RustEmbed)]
#[folder = "../../web/dist"]
#[allow_missing = true]
struct Built;

/// Reads a file by its path below `web/dist`.
type Find = fn(&str) -> Option<Cow<'static, [u8]>>;

/// Source of the files of a dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Dashboard(Find);

impl Dashboard {
    /// Dashboard in this program; none if the program was built without one.
    pub fn embedded() -> Option<Self> {
        Built::get("index.html").map(|_| Self(|path| Built::get(path).map(|file| file.data)))
    }

    /// Dashboard with files from elsewhere.
    pub fn new(find: Find) -> Self {
        Self(find)
    }

    /// Content of a file, such as `index.html` or `assets/index-1a2b3c.js`.
    pub fn file(self, path: &str) -> Option<Cow<'static, [u8]>> {
        (self.0)(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_a_dashboard_if_it_was_built_and_then_all_of_its_files() {
        let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/dist/index.html");
        let dashboard = Dashboard::embedded();
        assert_eq!(dashboard.is_some(), std::path::Path::new(built).is_file());
        let Some(dashboard) = dashboard else { return };
        let page = String::from_utf8(dashboard.file("index.html").unwrap().into_owned()).unwrap();
        let names: Vec<_> = page.split('"').filter(|text| text.starts_with("/assets/")).collect();
        assert!(names.len() >= 2, "a script and a style: {page}");
        for name in names {
            let path = name.trim_start_matches('/');
            assert!(dashboard.file(path).is_some(), "{path}");
            assert!(dashboard.file(&format!("{path}.gz")).is_some(), "{path}.gz");
        }
        assert!(dashboard.file("assets/missing.js").is_none());
    }
}

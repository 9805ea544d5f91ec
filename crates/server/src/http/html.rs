//! HTML helpers for the server's own pages.

/// Style sheet of all pages.
pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--mark:#2563eb}\
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{margin-top:2.2rem;border-bottom:1px solid var(--line)}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem .3rem 0;vertical-align:top;\
border-bottom:1px solid var(--line)}code,pre{font:13px/1.45 ui-monospace,monospace}\
pre{background:var(--soft);padding:.7rem;overflow-x:auto;border-radius:6px}\
details{border:1px solid var(--line);border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}\
summary{cursor:pointer}summary code{font-weight:600}.way{color:var(--mark);display:inline-block;min-width:4.2em}\
.soft{opacity:.7}.note{border-left:4px solid #d97706;padding:.4rem .8rem;background:var(--soft)}\
a{color:var(--mark)}";

pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{}</title><style>{STYLE}</style></head><body>{body}</body></html>\n",
        escaped(title)
    )
}

/// Escapes text for HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Escapes text for HTML and renders backticks as code.
pub(crate) fn prose(text: &str) -> String {
    let parts = escaped(text);
    let mut out = String::with_capacity(parts.len());
    for (at, part) in parts.split('`').enumerate() {
        if at % 2 == 1 {
            out.push_str("<code>");
            out.push_str(part);
            out.push_str("</code>");
        } else {
            out.push_str(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_users_is_escaped() {
        assert_eq!(escaped("<b a='1'>\"&"), "&lt;b a=&#39;1&#39;&gt;&quot;&amp;");
        assert_eq!(prose("see `<x>` now"), "see <code>&lt;x&gt;</code> now");
    }
}

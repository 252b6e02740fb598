//! The page at `/` of an HTTP door: the process's name, its health, and links to its views.

use std::fmt::Write;

use super::view::{AdminPage, AdminView};

/// Returns the page of the process at path `path_prefix`, with links to the members named in `other_members`.
pub(super) fn page(admin_view: &dyn AdminView, path_prefix: &str, other_members: &[&'static str]) -> String {
    let name = escaped(&admin_view.name());
    let health = match admin_view.health() {
        Ok(()) => String::from("This process can do its work."),
        Err(why) => format!("<strong>This process cannot do its work:</strong> {}.", escaped(&why)),
    };
    let mut links = String::new();
    for view in AdminPage::ALL.into_iter().filter(|view| admin_view.has(*view)) {
        let (path, what) = (view.path(), view.describes());
        let _ = writeln!(links, "<li><a href=\"{path_prefix}/{path}\">{path_prefix}/{path}</a> {what}</li>");
    }
    for name in other_members {
        let _ = writeln!(
            links,
            "<li><a href=\"/{name}\">/{name}</a> the pages of the {name} that runs in the same process</li>"
        );
    }
    PAGE.replace("{name}", &name).replace("{health}", &health).replace("{links}", &links)
}

const PAGE: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{name} – Quorate</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40em; margin: 2em auto; padding: 0 1em; }
li { margin: .3em 0; }
</style>
<h1>{name}</h1>
<p>{health}</p>
<ul>
{links}</ul>
<p>This is one process of a Quorate cluster. <code>quorate status</code> shows all of them.</p>
"#;

/// Escapes a text for HTML.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

//! Identifiers as SQL text: quotes a name, and takes a qualified name apart.

/// Returns a name, quoted if necessary.
pub(crate) fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '$');
    let keyword = sqlparser::keywords::ALL_KEYWORDS.binary_search(&name.to_uppercase().as_str()).is_ok()
        && [
            "user", "table", "order", "group", "select", "from", "where", "column", "default", "end", "limit",
        ]
        .contains(&name);
    if plain && !keyword { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Splits a qualified name at its dots as SQL does, in lower case outside of quotes. `None` if the name is
/// malformed.
pub(crate) fn parts(name: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = name.trim();
    loop {
        let part = match rest.strip_prefix('"') {
            None => {
                let end = rest.find('.').unwrap_or(rest.len());
                let (part, after) = rest.split_at(end);
                rest = after;
                part.to_lowercase()
            }
            Some(mut quoted) => {
                let mut part = String::new();
                loop {
                    let end = quoted.find('"')?;
                    part.push_str(&quoted[..end]);
                    quoted = &quoted[end + 1..];
                    match quoted.strip_prefix('"') {
                        Some(after) => {
                            part.push('"');
                            quoted = after;
                        }
                        None => break,
                    }
                }
                rest = quoted;
                part
            }
        };
        if part.is_empty() {
            return None;
        }
        parts.push(part);
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None => return rest.is_empty().then_some(parts),
        }
    }
}

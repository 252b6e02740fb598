//! Reads the text of one file: its modules, the names that it defines, its imports, and the paths in its
//! code.
//!
//! The compiler's lexer (`proc_macro2`) splits the text, so comments, strings and lifetimes never pass for
//! code. A keyword marks an item. The scanner reads code in the arguments of a macro like other code.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// One name that a `use` declaration imports.
#[derive(Debug, PartialEq)]
pub(super) struct Import {
    /// The path as written; `*` as its last segment imports all names of a module.
    pub path: Vec<String>,
    /// The name in the importing module.
    pub name: String,
    /// Whether the declaration re-exports the name.
    pub is_public: bool,
}

/// The content of a module.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The names of the module's functions, types, traits, constants and macros.
    pub items: Vec<String>,
    /// The module's imports, including imports inside functions.
    pub imports: Vec<Import>,
    /// Child modules in files of their own.
    pub declared: Vec<String>,
    /// Child modules whose content is in this file.
    pub inline: Vec<(String, Content)>,
    /// Paths in bodies and types, including paths of one segment.
    pub paths: Vec<Vec<String>>,
}

/// Keywords that precede the name of an item.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

/// Reads a file.
pub(super) fn read(text: &str) -> Result<Content> {
    let stream = TokenStream::from_str(text).map_err(|error| anyhow!("the text is not Rust: {error}"))?;
    let mut content = Content::default();
    scan(stream, true, &mut content);
    Ok(content)
}

/// Reads the tokens of a module if `is_module` is true, and otherwise the tokens inside an item.
fn scan(stream: TokenStream, is_module: bool, content: &mut Content) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    // Whether the last tokens were `pub`, possibly with a restriction.
    let mut is_public = false;
    while at < tokens.len() {
        if is_test(&tokens[at..]) {
            at = skip(&tokens, at + 2);
            is_public = false;
            continue;
        }
        let was_public = std::mem::take(&mut is_public);
        match &tokens[at] {
            TokenTree::Group(group) => scan(group.stream(), false, content),
            TokenTree::Ident(ident) => match ident.to_string().as_str() {
                "pub" => {
                    is_public = true;
                    at += usize::from(group(tokens.get(at + 1), Delimiter::Parenthesis).is_some());
                }
                // `use<'a>` is a bound of a type and no import.
                "use" if !is_punct(tokens.get(at + 1), '<') => {
                    let end = (at..tokens.len()).find(|end| is_punct(tokens.get(*end), ';'));
                    let end = end.unwrap_or(tokens.len());
                    import(&tokens[at + 1..end], Vec::new(), was_public, &mut content.imports);
                    at = end;
                }
                "mod" if is_module => {
                    let name = tokens.get(at + 1).map(name).unwrap_or_default();
                    match group(tokens.get(at + 2), Delimiter::Brace) {
                        Some(group) => {
                            let mut inner = Content::default();
                            scan(group.stream(), true, &mut inner);
                            content.inline.push((name, inner));
                        }
                        None => content.declared.push(name),
                    }
                    at += 2;
                }
                "macro_rules" if is_module => {
                    content.items.extend(tokens.get(at + 2).map(name));
                    at += 2;
                }
                word if ITEMS.contains(&word) => {
                    let named = at + 1 + usize::from(is_word(tokens.get(at + 1), "mut"));
                    if let Some(TokenTree::Ident(defined)) = tokens.get(named)
                        && !ITEMS.contains(&defined.to_string().as_str())
                    {
                        // `<const N: usize>` and `*const T` define nothing.
                        let is_part = at > 0 && "<,*".chars().any(|sign| is_punct(tokens.get(at - 1), sign));
                        if is_module && !is_part {
                            content.items.push(name(&tokens[named]));
                        }
                        if !is_part {
                            at = named;
                        }
                    }
                }
                _ => at = path(&tokens, at, content),
            },
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
}

/// Records the path that begins with the name at `at`, and returns the index after the path.
fn path(tokens: &[TokenTree], at: usize, content: &mut Content) -> usize {
    let mut end = at;
    let mut path = vec![name(&tokens[at])];
    while is_separator(&tokens[end + 1..])
        && let Some(next @ TokenTree::Ident(_)) = tokens.get(end + 3)
    {
        path.push(name(next));
        end += 3;
    }
    // Not a path from this module: it belongs to a field, a method, the rest of `<T>::name`, or another
    // crate.
    let is_rest = at > 0 && is_punct(tokens.get(at - 1), '.') && !is_range(&tokens[..at]);
    let is_rest = is_rest || at > 1 && is_separator(&tokens[at - 2..at]);
    if !is_rest && (path.len() > 1 || is_taken(tokens, end)) {
        content.paths.push(path);
    }
    end
}

/// Whether a single name refers to an item: a type, a constant, or a called function. Names of variables and
/// fields do not count, because they often equal names of functions.
fn is_taken(tokens: &[TokenTree], at: usize) -> bool {
    let is_called = group(tokens.get(at + 1), Delimiter::Parenthesis).is_some()
        || is_punct(tokens.get(at + 1), '!') && !is_punct(tokens.get(at + 2), '=')
        || is_separator(&tokens[at + 1..]);
    is_called || name(&tokens[at]).starts_with(char::is_uppercase)
}

/// Whether the tokens end with `..`, which a path may follow.
fn is_range(tokens: &[TokenTree]) -> bool {
    tokens.len() > 1 && is_punct(tokens.get(tokens.len() - 2), '.')
}

/// Splits the tree after `use` into imports. `parent` holds the segments before the tree.
fn import(tokens: &[TokenTree], parent: Vec<String>, is_public: bool, imports: &mut Vec<Import>) {
    let mut path = parent;
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in inner.split(|token| is_punct(Some(token), ',')).filter(|part| !part.is_empty()) {
                    import(part, path.clone(), is_public, imports);
                }
                return;
            }
            TokenTree::Ident(ident) if ident == "as" => {
                let name = tokens.get(at + 1).map(name).unwrap_or_default();
                imports.push(Import { path, name, is_public });
                return;
            }
            // `use ::name` names another crate.
            TokenTree::Punct(sign) if sign.as_char() == ':' && path.is_empty() => return,
            TokenTree::Punct(sign) if sign.as_char() == '*' => path.push("*".into()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            // `use a::{self}` names `a`.
            TokenTree::Ident(ident) if ident == "self" && !path.is_empty() => {}
            token => path.push(name(token)),
        }
        at += 1;
    }
    if let Some(name) = path.last().cloned() {
        imports.push(Import { path, name, is_public });
    }
}

/// Whether the tokens begin with `#[cfg(test)]`, or with an `all` that contains `test`.
fn is_test(tokens: &[TokenTree]) -> bool {
    let attribute =
        if is_punct(tokens.first(), '#') { group(tokens.get(1), Delimiter::Bracket) } else { None };
    attribute.is_some_and(|attribute| {
        let text = attribute.stream().to_string().replace(' ', "");
        text == "cfg(test)" || text.starts_with("cfg(all(test,")
    })
}

/// Returns the index after the item, statement or field that begins at `at`.
fn skip(tokens: &[TokenTree], at: usize) -> usize {
    let mut at = at;
    let mut is_item = false;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(ident) => {
                let word = ident.to_string();
                is_item |= ITEMS.contains(&word.as_str()) || ["use", "mod", "impl"].contains(&word.as_str());
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return at + 1,
            TokenTree::Punct(sign) if sign.as_char() == ';' || sign.as_char() == ',' && !is_item => {
                return at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    at
}

/// Returns the text of a name, without the prefix of a raw identifier.
fn name(token: &TokenTree) -> String {
    token.to_string().trim_start_matches("r#").to_owned()
}

fn group(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == word)
}

/// Whether the tokens begin with `::`.
fn is_separator(tokens: &[TokenTree]) -> bool {
    is_punct(tokens.first(), ':') && is_punct(tokens.get(1), ':')
}

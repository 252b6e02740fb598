//! Arrays of one dimension. A row carries an array as its text form: `{1,NULL,"a b"}`. The elements of a
//! vector (`int2vector`, `oidvector`) are separated by spaces, without braces.

use quorate_table::{text::parse_text, value::Value};

use crate::{
    error::{Result, SqlError, code},
    types::PgType,
};

/// Returns the text form of these elements; `None` is NULL.
pub fn text(elements: impl IntoIterator<Item = Option<String>>) -> String {
    let mut text = String::from("{");
    for (index, element) in elements.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        match element {
            None => text.push_str("NULL"),
            Some(element) if is_plain(&element) => text.push_str(&element),
            Some(element) => {
                text.push('"');
                for c in element.chars() {
                    if matches!(c, '"' | '\\') {
                        text.push('\\');
                    }
                    text.push(c);
                }
                text.push('"');
            }
        }
    }
    text.push('}');
    text
}

fn is_plain(element: &str) -> bool {
    let special = |c: char| c.is_whitespace() || "{},\"\\".contains(c);
    !element.is_empty() && !element.eq_ignore_ascii_case("null") && !element.contains(special)
}

/// Returns the error about an array whose first index is not 1.
pub fn other_bounds() -> SqlError {
    SqlError::unsupported("an array whose first index is not 1")
}

/// Reads the elements of an array's text form; `None` is NULL.
pub fn read(text: &str) -> Result<Vec<Option<String>>> {
    let malformed =
        || SqlError::new(code::INVALID_TEXT_REPRESENTATION, format!("malformed array literal: \"{text}\""));
    if text.trim_start().starts_with('[') {
        return Err(other_bounds());
    }
    let inner =
        text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).ok_or_else(malformed)?;
    let mut elements = Vec::new();
    if inner.trim().is_empty() {
        return Ok(elements);
    }
    let mut characters = inner.chars().peekable();
    loop {
        while characters.next_if(|c| c.is_whitespace()).is_some() {}
        let mut element = String::new();
        if characters.next_if_eq(&'"').is_some() {
            loop {
                match characters.next().ok_or_else(malformed)? {
                    '"' => break,
                    '\\' => element.push(characters.next().ok_or_else(malformed)?),
                    c => element.push(c),
                }
            }
            while characters.next_if(|c| c.is_whitespace()).is_some() {}
            elements.push(Some(element));
        } else {
            // A backslash makes the next character ordinary. So a space behind a backslash is not trimmed
            // at the end.
            let mut kept = 0;
            while let Some(c) = characters.next_if(|c| *c != ',') {
                match c {
                    '{' if element.is_empty() => {
                        return Err(SqlError::unsupported("an array of several dimensions"));
                    }
                    '{' | '}' | '"' => return Err(malformed()),
                    '\\' => {
                        element.push(characters.next().ok_or_else(malformed)?);
                        kept = element.len();
                    }
                    c => {
                        element.push(c);
                        if !c.is_whitespace() {
                            kept = element.len();
                        }
                    }
                }
            }
            element.truncate(kept);
            if element.is_empty() {
                return Err(malformed());
            }
            elements.push((!element.eq_ignore_ascii_case("null")).then_some(element));
        }
        match characters.next() {
            None => return Ok(elements),
            Some(',') => {}
            Some(_) => return Err(malformed()),
        }
    }
}

/// Reads the elements of the text form of an array or a vector of this type.
pub fn read_as(text: &str, ty: PgType) -> Result<Vec<Option<String>>> {
    match ty {
        PgType::Int2Vector | PgType::OidVector => {
            Ok(text.split_ascii_whitespace().map(|element| Some(element.to_owned())).collect())
        }
        _ => read(text),
    }
}

/// Reads the elements of an array or a vector of this type, as values of the element's type.
pub fn values(text: &str, ty: PgType) -> Result<Vec<Value>> {
    let element = ty.element().unwrap_or(PgType::TEXT);
    let value = |text: Option<String>| match text {
        None => Ok(Value::Null),
        Some(text) => Ok(parse_text(element.plain(), &text)?),
    };
    read_as(text, ty)?.into_iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_read_back_as_written() {
        for elements in [
            vec![],
            vec![Some("a"), None, Some("b c"), Some("q\"\\")],
            vec![Some(""), Some("NULL"), Some("x,y"), Some("{")],
        ] {
            let elements: Vec<Option<String>> = elements.iter().map(|e| e.map(str::to_owned)).collect();
            assert_eq!(read(&text(elements.clone())).unwrap(), elements);
        }
        let spaced = read(" { 1 , \"a b\" ,  c d\\  } ").unwrap();
        assert_eq!(spaced, [Some("1".to_owned()), Some("a b".to_owned()), Some("c d ".to_owned())]);
    }

    #[test]
    fn malformed_arrays_are_refused() {
        for text in [
            "", "1", "{", "}", "{1", "{1,}", "{,1}", "{1,,2}", "{\"a}", "{\"a\"b}", "{a\"b\"}", "{1}2", "{\\",
        ] {
            assert_eq!(read(text).unwrap_err().code, "22P02", "{text}");
        }
        assert_eq!(read("{{1},{2}}").unwrap_err().code, "0A000");
    }
}

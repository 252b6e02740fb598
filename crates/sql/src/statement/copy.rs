//! Binds COPY: the table or query, the direction, and the format of rows.

use std::sync::Arc;

use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{Field, parameters::Parameters, scope, select, write};
use crate::{
    backend::{Catalog, Table},
    error::{Result, SqlError, code},
};

/// A bound COPY.
#[derive(Debug)]
pub struct Copy {
    /// The direction of the rows.
    pub direction: Direction,
    /// The format of the rows.
    pub form: CopyForm,
}

/// The format of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyForm {
    /// Lines of text.
    Lines(Format),
    /// Binary values.
    Binary,
}

/// The direction of rows.
#[derive(Debug)]
pub enum Direction {
    /// FROM STDIN.
    In {
        /// The table that receives the rows.
        table: Arc<Table>,
        /// The columns of the table, by position, in the order of the fields of the data.
        columns: Vec<usize>,
    },
    /// TO STDOUT.
    Out(Box<select::Query>),
}

/// The format of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Whether the format is CSV rather than text.
    pub csv: bool,
    /// Whether the first line has the names of the columns.
    pub header: bool,
    /// The byte between fields.
    pub delimiter: u8,
    /// The text that means NULL.
    pub null: String,
    /// The byte around quoted fields (CSV).
    pub quote: u8,
    /// The byte that escapes a quote within a field (CSV).
    pub escape: u8,
    /// Positions of columns in which an unquoted NULL text is an ordinary string.
    pub force_not_null: Vec<usize>,
    /// Positions of columns that COPY TO always quotes.
    pub force_quote: Vec<usize>,
}

/// The names of the formats.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Text,
    Csv,
    Binary,
}

/// The options as the statement gives them, before they are checked against each other.
#[derive(Default)]
struct Options {
    kind: Kind,
    header: bool,
    delimiter: Option<char>,
    null: Option<String>,
    quote: Option<char>,
    escape: Option<char>,
    force_not_null: Vec<ast::Ident>,
    force_quote: Vec<ast::Ident>,
}

/// Binds a COPY.
pub fn bind(statement: &ast::Statement, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Copy> {
    let ast::Statement::Copy { source, to, target, options, legacy_options, .. } = statement else {
        unreachable!("only COPY is bound here")
    };
    match (to, target) {
        (false, ast::CopyTarget::Stdin) | (true, ast::CopyTarget::Stdout) => {}
        (_, ast::CopyTarget::File { .. } | ast::CopyTarget::Program { .. }) => {
            return Err(SqlError::unsupported("COPY with a file or program of the server")
                .hint("Use STDIN or STDOUT; psql's \\copy reads and writes files of the client."));
        }
        _ => return Err(SqlError::new(code::SYNTAX_ERROR, "COPY must be FROM STDIN or TO STDOUT")),
    }
    let mut given = Options::default();
    for (index, option) in options.iter().enumerate() {
        let same = |other: &ast::CopyOption| std::mem::discriminant(other) == std::mem::discriminant(option);
        if options[..index].iter().any(same) {
            return Err(SqlError::new(code::SYNTAX_ERROR, "conflicting or redundant options"));
        }
        given.take(option)?;
    }
    for option in legacy_options {
        given.take_legacy(option)?;
    }
    let (direction, names) = match source {
        ast::CopySource::Table { table_name, columns } => {
            let table = match to {
                true => scope::table(catalog, table_name)?,
                false => scope::changed_table(catalog, table_name)?,
            };
            let names: Vec<String> = columns.iter().map(scope::fold).collect();
            let spans: Vec<Span> = columns.iter().map(|column| column.span).collect();
            let mut positions = write::columns(&table.schema, &names, &spans)?;
            if positions.is_empty() {
                positions = (0..table.schema.columns.len()).collect();
            }
            let names: Vec<String> =
                positions.iter().map(|&p| table.schema.columns[p].name.clone()).collect();
            let direction = if *to {
                Direction::Out(Box::new(select::whole_table(table, &positions)))
            } else {
                Direction::In { table, columns: positions }
            };
            (direction, names)
        }
        ast::CopySource::Query(query) if *to => {
            let query = select::bind(query, parameters, catalog)?;
            let names = query.fields.iter().map(|field| field.name.clone()).collect();
            (Direction::Out(Box::new(query)), names)
        }
        ast::CopySource::Query(query) => {
            return Err(
                SqlError::new(code::SYNTAX_ERROR, "COPY FROM needs a table, not a query").at(query.span())
            );
        }
    };
    let form = match given.kind {
        Kind::Binary => given.check_binary()?,
        Kind::Text | Kind::Csv => CopyForm::Lines(given.check(&names)?),
    };
    Ok(Copy { direction, form })
}

impl Copy {
    /// Returns the columns of the data.
    pub fn fields(&self) -> Vec<Field> {
        match &self.direction {
            Direction::Out(query) => query.fields.clone(),
            Direction::In { table, columns } => {
                columns.iter().map(|&position| Field::of(&table.schema.columns[position])).collect()
            }
        }
    }
}

impl Options {
    fn format(&mut self, name: &str) -> Result<()> {
        self.kind = match name.to_lowercase().as_str() {
            "text" => Kind::Text,
            "csv" => Kind::Csv,
            "binary" => Kind::Binary,
            other => {
                return Err(SqlError::new(
                    code::INVALID_PARAMETER_VALUE,
                    format!("COPY format \"{other}\" not recognized"),
                ));
            }
        };
        Ok(())
    }

    fn take(&mut self, option: &ast::CopyOption) -> Result<()> {
        match option {
            ast::CopyOption::Format(name) => self.format(&name.value)?,
            ast::CopyOption::Header(header) => self.header = *header,
            ast::CopyOption::Delimiter(c) => self.delimiter = Some(*c),
            ast::CopyOption::Null(text) => self.null = Some(text.clone()),
            ast::CopyOption::Quote(c) => self.quote = Some(*c),
            ast::CopyOption::Escape(c) => self.escape = Some(*c),
            ast::CopyOption::ForceNotNull(columns) => self.force_not_null.clone_from(columns),
            ast::CopyOption::ForceQuote(columns) => self.force_quote.clone_from(columns),
            ast::CopyOption::Encoding(name) if matches!(name.to_lowercase().as_str(), "utf8" | "utf-8") => {}
            ast::CopyOption::Freeze(false) => {}
            other => return Err(SqlError::unsupported(format!("the COPY option {other}"))),
        }
        Ok(())
    }

    fn take_legacy(&mut self, option: &ast::CopyLegacyOption) -> Result<()> {
        match option {
            ast::CopyLegacyOption::Csv(options) => {
                self.kind = Kind::Csv;
                for option in options {
                    match option {
                        ast::CopyLegacyCsvOption::Header => self.header = true,
                        ast::CopyLegacyCsvOption::Quote(c) => self.quote = Some(*c),
                        ast::CopyLegacyCsvOption::Escape(c) => self.escape = Some(*c),
                        ast::CopyLegacyCsvOption::ForceQuote(columns) => self.force_quote.clone_from(columns),
                        ast::CopyLegacyCsvOption::ForceNotNull(columns) => {
                            self.force_not_null.clone_from(columns);
                        }
                    }
                }
            }
            ast::CopyLegacyOption::Header => self.header = true,
            ast::CopyLegacyOption::Delimiter(c) => self.delimiter = Some(*c),
            ast::CopyLegacyOption::Null(text) => self.null = Some(text.clone()),
            ast::CopyLegacyOption::Binary => self.format("binary")?,
            other => return Err(SqlError::unsupported(format!("the COPY option {other}"))),
        }
        Ok(())
    }

    fn check_binary(self) -> Result<CopyForm> {
        let refused = |what: &str| {
            Err(SqlError::new(code::SYNTAX_ERROR, format!("cannot specify {what} in BINARY mode")))
        };
        if self.delimiter.is_some() {
            return refused("DELIMITER");
        }
        if self.null.is_some() {
            return refused("NULL");
        }
        if self.header {
            return Err(SqlError::unsupported("HEADER in BINARY mode"));
        }
        let csv = self.quote.is_some() || self.escape.is_some();
        if csv || !self.force_not_null.is_empty() || !self.force_quote.is_empty() {
            return Err(SqlError::unsupported("an option of CSV in BINARY mode"));
        }
        Ok(CopyForm::Binary)
    }

    fn check(self, names: &[String]) -> Result<Format> {
        let csv = self.kind == Kind::Csv;
        let one_byte = |c: char, what: &str| {
            u8::try_from(u32::from(c))
                .ok()
                .filter(u8::is_ascii)
                .ok_or_else(|| SqlError::unsupported(format!("a COPY {what} of more than one byte")))
        };
        let only_csv =
            |what: &str| Err(SqlError::unsupported(format!("COPY {what} in another mode than CSV")));
        if !csv {
            if self.quote.is_some() {
                return only_csv("QUOTE");
            }
            if self.escape.is_some() {
                return only_csv("ESCAPE");
            }
            if !self.force_not_null.is_empty() {
                return only_csv("FORCE_NOT_NULL");
            }
            if !self.force_quote.is_empty() {
                return only_csv("FORCE_QUOTE");
            }
        }
        let invalid = |message: &str| Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message));
        let delimiter = one_byte(self.delimiter.unwrap_or(if csv { ',' } else { '\t' }), "delimiter")?;
        let quote = one_byte(self.quote.unwrap_or('"'), "quote")?;
        let escape = one_byte(self.escape.unwrap_or(quote as char), "escape")?;
        let null = self.null.unwrap_or_else(|| if csv { String::new() } else { "\\N".to_owned() });
        if matches!(delimiter, b'\n' | b'\r') {
            return invalid("COPY delimiter cannot be newline or carriage return");
        }
        if null.contains(['\n', '\r']) {
            return invalid("COPY null representation cannot use newline or carriage return");
        }
        if null.as_bytes().contains(&delimiter) {
            return invalid("COPY delimiter must not appear in the NULL specification");
        }
        if !csv
            && (delimiter.is_ascii_lowercase()
                || delimiter.is_ascii_digit()
                || matches!(delimiter, b'\\' | b'.'))
        {
            return invalid(&format!("COPY delimiter cannot be \"{}\"", delimiter as char));
        }
        if csv && quote == delimiter {
            return invalid("COPY delimiter and quote must be different");
        }
        if csv && null.as_bytes().contains(&quote) {
            return invalid("CSV quote character must not appear in the NULL specification");
        }
        let positions = |columns: &[ast::Ident]| -> Result<Vec<usize>> {
            if let [one] = columns
                && one.value == "*"
            {
                return Ok((0..names.len()).collect());
            }
            columns
                .iter()
                .map(|column| {
                    let name = scope::fold(column);
                    names.iter().position(|known| *known == name).ok_or_else(|| {
                        SqlError::new(
                            code::INVALID_COLUMN_REFERENCE,
                            format!("column \"{name}\" is not part of this COPY"),
                        )
                        .at(column.span)
                    })
                })
                .collect()
        };
        Ok(Format {
            csv,
            header: self.header,
            delimiter,
            null,
            quote,
            escape,
            force_not_null: positions(&self.force_not_null)?,
            force_quote: positions(&self.force_quote)?,
        })
    }
}

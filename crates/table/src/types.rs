//! The types of columns and expressions.

use serde::{Deserialize, Serialize};

/// The type of a column or expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Type {
    /// `boolean`.
    Bool,
    /// `smallint`, 16 bits.
    Int2,
    /// `integer`, 32 bits.
    Int4,
    /// `bigint`, 64 bits.
    Int8,
    /// `double precision`.
    Float8,
    /// `numeric`, exact decimal.
    Numeric,
    /// `text`; C collation (bytewise).
    Text,
    /// `date`.
    Date,
    /// `timestamp without time zone`.
    Timestamp,
    /// `timestamp with time zone`, held in UTC.
    Timestamptz,
    /// `uuid`.
    Uuid,
    /// `bytea`, a string of bytes.
    Bytea,
    /// `json`, which keeps its text. SQL compares no values of this type.
    Json,
    /// `jsonb`, a document in normal form.
    Jsonb,
    /// `real`.
    Float4,
    /// `time without time zone`.
    Time,
    /// `character`: a text whose blanks at the end mean nothing.
    Bpchar,
}

impl Type {
    /// Returns the name that PostgreSQL uses in messages.
    pub fn name(self) -> &'static str {
        match self {
            Type::Bool => "boolean",
            Type::Int2 => "smallint",
            Type::Int4 => "integer",
            Type::Int8 => "bigint",
            Type::Float8 => "double precision",
            Type::Numeric => "numeric",
            Type::Text => "text",
            Type::Date => "date",
            Type::Timestamp => "timestamp without time zone",
            Type::Timestamptz => "timestamp with time zone",
            Type::Uuid => "uuid",
            Type::Bytea => "bytea",
            Type::Json => "json",
            Type::Jsonb => "jsonb",
            Type::Float4 => "real",
            Type::Time => "time without time zone",
            Type::Bpchar => "character",
        }
    }

    /// Whether every build knows the type. Storage processes of earlier builds cannot read the later types.
    pub fn is_of_first_form(self) -> bool {
        self <= Type::Timestamptz
    }

    /// Whether the type is `smallint`, `integer` or `bigint`.
    pub fn is_integer(self) -> bool {
        matches!(self, Type::Int2 | Type::Int4 | Type::Int8)
    }

    /// Whether the type is `json` or `jsonb`.
    pub fn is_json(self) -> bool {
        matches!(self, Type::Json | Type::Jsonb)
    }

    /// Whether values can be of any length, as texts.
    pub fn has_length(self) -> bool {
        matches!(self, Type::Text | Type::Bytea | Type::Json | Type::Jsonb | Type::Bpchar)
    }

    /// Whether the type is an integer, `real`, `double precision` or `numeric`.
    pub fn is_number(self) -> bool {
        self.is_integer() || matches!(self, Type::Float4 | Type::Float8 | Type::Numeric)
    }
}

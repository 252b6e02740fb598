//! PostgreSQL's types as clients see them: object ids, names, sizes.
//!
//! Rows hold values of the types of `quorate_table`. Values of the catalog's other types (`oid`, `name`,
//! `"char"`, arrays …) are carried as values of those types: an oid is a [`Value::Int8`], an array is its
//! text form. A [`PgType`] says how such a value is named and encoded.
//!
//! [`Value::Int8`]: quorate_table::value::Value::Int8

use quorate_table::{modifier::Modifier, schema::Column, value::Type};
use sqlparser::ast::{ArrayElemTypeDef, CharacterLength, DataType, ExactNumberInfo, TimezoneInfo};

use crate::error::{Result, SqlError, code};

/// A type that a client can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are PostgreSQL's own")]
pub enum PgType {
    /// A type that columns of tables can have.
    Plain(Type),
    Unknown,
    Void,
    Varchar,
    Char,
    Name,
    Oid,
    Xid,
    Regclass,
    Regtype,
    Regproc,
    Regprocedure,
    Regnamespace,
    Regrole,
    NodeTree,
    AclItem,
    Int2Vector,
    OidVector,
    Record,
    Interval,
    IntervalArray,
    BoolArray,
    Int2Array,
    Int4Array,
    Int8Array,
    Float8Array,
    NumericArray,
    TextArray,
    VarcharArray,
    BpcharArray,
    Float4Array,
    DateArray,
    TimestampArray,
    TimestamptzArray,
    UuidArray,
    ByteaArray,
    JsonArray,
    JsonbArray,
    TimeArray,
    CharArray,
    NameArray,
    OidArray,
    RegclassArray,
    RegtypeArray,
    AclItemArray,
}

/// The catalog's description of a type.
#[derive(Clone, Copy, Debug)]
pub struct TypeInfo {
    /// The type that is described.
    pub ty: PgType,
    /// `pg_type.oid`.
    pub oid: u32,
    /// `pg_type.typname`.
    pub name: &'static str,
    /// The name in SQL (`format_type`).
    pub display: &'static str,
    /// `pg_type.typlen`: bytes, or -1.
    pub length: i16,
    /// `pg_type.typcategory`.
    pub category: char,
    /// The type of an array's elements.
    pub element: Option<PgType>,
}

macro_rules! types {
    ($($ty:expr, $oid:literal, $name:literal, $display:literal, $length:literal, $category:literal, $element:expr;)*) => {
        /// All types, sorted by oid within each kind of type.
        pub const TYPES: &[TypeInfo] = &[$(TypeInfo {
            ty: $ty, oid: $oid, name: $name, display: $display, length: $length, category: $category, element: $element,
        }),*];
    };
}

use PgType::*;
types! {
    Plain(Type::Bool), 16, "bool", "boolean", 1, 'B', None;
    Plain(Type::Bytea), 17, "bytea", "bytea", -1, 'U', None;
    Char, 18, "char", "\"char\"", 1, 'Z', None;
    Name, 19, "name", "name", 64, 'S', Some(Char);
    Plain(Type::Int8), 20, "int8", "bigint", 8, 'N', None;
    Plain(Type::Int2), 21, "int2", "smallint", 2, 'N', None;
    Int2Vector, 22, "int2vector", "int2vector", -1, 'A', Some(Plain(Type::Int2));
    Plain(Type::Int4), 23, "int4", "integer", 4, 'N', None;
    Regproc, 24, "regproc", "regproc", 4, 'N', None;
    Plain(Type::Text), 25, "text", "text", -1, 'S', None;
    Oid, 26, "oid", "oid", 4, 'N', None;
    Xid, 28, "xid", "xid", 4, 'U', None;
    OidVector, 30, "oidvector", "oidvector", -1, 'A', Some(Oid);
    Plain(Type::Json), 114, "json", "json", -1, 'U', None;
    NodeTree, 194, "pg_node_tree", "pg_node_tree", -1, 'Z', None;
    JsonArray, 199, "_json", "json[]", -1, 'A', Some(Plain(Type::Json));
    Plain(Type::Float4), 700, "float4", "real", 4, 'N', None;
    Plain(Type::Float8), 701, "float8", "double precision", 8, 'N', None;
    Unknown, 705, "unknown", "unknown", -2, 'X', None;
    BoolArray, 1000, "_bool", "boolean[]", -1, 'A', Some(Plain(Type::Bool));
    ByteaArray, 1001, "_bytea", "bytea[]", -1, 'A', Some(Plain(Type::Bytea));
    CharArray, 1002, "_char", "\"char\"[]", -1, 'A', Some(Char);
    NameArray, 1003, "_name", "name[]", -1, 'A', Some(Name);
    Int2Array, 1005, "_int2", "smallint[]", -1, 'A', Some(Plain(Type::Int2));
    Int4Array, 1007, "_int4", "integer[]", -1, 'A', Some(Plain(Type::Int4));
    TextArray, 1009, "_text", "text[]", -1, 'A', Some(Plain(Type::Text));
    BpcharArray, 1014, "_bpchar", "character[]", -1, 'A', Some(Plain(Type::Bpchar));
    VarcharArray, 1015, "_varchar", "character varying[]", -1, 'A', Some(Varchar);
    Int8Array, 1016, "_int8", "bigint[]", -1, 'A', Some(Plain(Type::Int8));
    Float4Array, 1021, "_float4", "real[]", -1, 'A', Some(Plain(Type::Float4));
    Float8Array, 1022, "_float8", "double precision[]", -1, 'A', Some(Plain(Type::Float8));
    OidArray, 1028, "_oid", "oid[]", -1, 'A', Some(Oid);
    AclItem, 1033, "aclitem", "aclitem", 12, 'U', None;
    AclItemArray, 1034, "_aclitem", "aclitem[]", -1, 'A', Some(AclItem);
    Plain(Type::Bpchar), 1042, "bpchar", "character", -1, 'S', None;
    Varchar, 1043, "varchar", "character varying", -1, 'S', None;
    Plain(Type::Date), 1082, "date", "date", 4, 'D', None;
    Plain(Type::Time), 1083, "time", "time without time zone", 8, 'D', None;
    Plain(Type::Timestamp), 1114, "timestamp", "timestamp without time zone", 8, 'D', None;
    TimestampArray, 1115, "_timestamp", "timestamp without time zone[]", -1, 'A', Some(Plain(Type::Timestamp));
    DateArray, 1182, "_date", "date[]", -1, 'A', Some(Plain(Type::Date));
    TimeArray, 1183, "_time", "time without time zone[]", -1, 'A', Some(Plain(Type::Time));
    Plain(Type::Timestamptz), 1184, "timestamptz", "timestamp with time zone", 8, 'D', None;
    TimestamptzArray, 1185, "_timestamptz", "timestamp with time zone[]", -1, 'A', Some(Plain(Type::Timestamptz));
    Interval, 1186, "interval", "interval", 16, 'T', None;
    IntervalArray, 1187, "_interval", "interval[]", -1, 'A', Some(Interval);
    NumericArray, 1231, "_numeric", "numeric[]", -1, 'A', Some(Plain(Type::Numeric));
    Plain(Type::Numeric), 1700, "numeric", "numeric", -1, 'N', None;
    Regprocedure, 2202, "regprocedure", "regprocedure", 4, 'N', None;
    Regclass, 2205, "regclass", "regclass", 4, 'N', None;
    Regtype, 2206, "regtype", "regtype", 4, 'N', None;
    RegclassArray, 2210, "_regclass", "regclass[]", -1, 'A', Some(Regclass);
    RegtypeArray, 2211, "_regtype", "regtype[]", -1, 'A', Some(Regtype);
    Record, 2249, "record", "record", -1, 'P', None;
    Void, 2278, "void", "void", 4, 'P', None;
    Plain(Type::Uuid), 2950, "uuid", "uuid", 16, 'U', None;
    UuidArray, 2951, "_uuid", "uuid[]", -1, 'A', Some(Plain(Type::Uuid));
    Plain(Type::Jsonb), 3802, "jsonb", "jsonb", -1, 'U', None;
    JsonbArray, 3807, "_jsonb", "jsonb[]", -1, 'A', Some(Plain(Type::Jsonb));
    Regnamespace, 4089, "regnamespace", "regnamespace", 4, 'N', None;
    Regrole, 4096, "regrole", "regrole", 4, 'N', None;
}

impl PgType {
    /// `text`, which is also the type that an expression without a type gets.
    pub const TEXT: PgType = PgType::Plain(Type::Text);
    /// `boolean`.
    pub const BOOL: PgType = PgType::Plain(Type::Bool);
    /// `integer`.
    pub const INT4: PgType = PgType::Plain(Type::Int4);
    /// `bigint`.
    pub const INT8: PgType = PgType::Plain(Type::Int8);

    /// Returns the catalog's description of the type.
    pub fn info(self) -> &'static TypeInfo {
        TYPES.iter().find(|info| info.ty == self).expect("every type is in the table")
    }

    /// Returns the type's object id.
    pub fn oid(self) -> u32 {
        self.info().oid
    }

    /// Returns the type's name in SQL.
    pub fn display(self) -> &'static str {
        self.info().display
    }

    /// Returns the type with this object id.
    pub fn from_oid(oid: u32) -> Option<PgType> {
        TYPES.iter().find(|info| info.oid == oid).map(|info| info.ty)
    }

    /// Returns the type of this name, which may be its catalog name or its SQL name.
    pub fn named(name: &str) -> Option<PgType> {
        let name = match name {
            "int" => "int4",
            "decimal" => "numeric",
            "char" => "bpchar",
            _ => name,
        };
        TYPES.iter().find(|info| info.name == name || info.display == name).map(|info| info.ty)
    }

    /// Returns the type of an array whose elements have this type, if there is one.
    pub fn array(self) -> Option<PgType> {
        TYPES.iter().find(|info| info.element == Some(self) && info.name.starts_with('_')).map(|info| info.ty)
    }

    /// Returns the type of a vector whose elements have this type, if there is one.
    pub fn vector(self) -> Option<PgType> {
        match self {
            PgType::Plain(Type::Int2) => Some(PgType::Int2Vector),
            PgType::Plain(Type::Int8) | PgType::Oid => Some(PgType::OidVector),
            _ => None,
        }
    }

    /// Returns the type of an array's elements. PostgreSQL gives `name` an element type, too, but a `name` is
    /// no array.
    pub fn element(self) -> Option<PgType> {
        self.info().element.filter(|_| self != PgType::Name)
    }

    /// Returns the type of the table value that carries a value of this type.
    pub fn plain(self) -> Type {
        match self {
            PgType::Plain(ty) => ty,
            PgType::Oid | PgType::Xid => Type::Int8,
            _ => Type::Text,
        }
    }

    /// Returns the type in which a result shows values of this type. An object id that has a name is shown as
    /// the name.
    pub fn shown(self) -> PgType {
        match self {
            PgType::Oid | PgType::Xid => self,
            PgType::RegclassArray | PgType::RegtypeArray => PgType::TextArray,
            ty if ty.is_oid() => PgType::TEXT,
            ty => ty,
        }
    }

    /// Whether the type's values are object ids.
    pub fn is_oid(self) -> bool {
        use PgType::*;
        matches!(self, Oid | Xid | Regclass | Regtype | Regproc | Regprocedure | Regnamespace | Regrole)
    }
}

/// Returns the type of a column for clients, and its modifier in PostgreSQL's encoding (-1 is none).
pub fn of_column(column: &Column) -> (PgType, i32) {
    type_with_modifier(column.ty, column.modifier)
}

/// Returns a type for clients, and its modifier in PostgreSQL's encoding (-1 is none).
pub fn type_with_modifier(ty: Type, modifier: Option<Modifier>) -> (PgType, i32) {
    /// PostgreSQL's offset of an encoded modifier: the size of a value's length field, in bytes.
    const HEADER: i32 = 4;
    match modifier {
        None => (PgType::Plain(ty), -1),
        Some(Modifier::Char(length)) => (PgType::Plain(ty), length as i32 + HEADER),
        Some(Modifier::Varchar(None)) => (PgType::Varchar, -1),
        Some(Modifier::Varchar(Some(most))) => (PgType::Varchar, most as i32 + HEADER),
        Some(Modifier::Digits { precision, scale }) => {
            (PgType::Plain(Type::Numeric), ((i32::from(precision) << 16) | i32::from(scale)) + HEADER)
        }
    }
}

/// Returns the SQL text of a type with a modifier in PostgreSQL's encoding.
pub fn spelled(ty: PgType, modifier: i32) -> String {
    let shown = ty.display();
    match (ty, modifier.checked_sub(4)) {
        (PgType::Varchar | PgType::Plain(Type::Bpchar), Some(most @ 1..)) => format!("{shown}({most})"),
        (PgType::Plain(Type::Numeric), Some(digits @ 0..)) => {
            format!("{shown}({},{})", digits >> 16, digits & 0x7ff)
        }
        _ => shown.to_owned(),
    }
}

/// Returns the type and the modifier that a declaration or a cast asks for. A modifier that Quorate does not
/// enforce (`timestamp(3)`) is refused rather than ignored.
pub fn modified(data_type: &DataType) -> Result<(Type, Option<Modifier>)> {
    const VARCHAR_MAX: u64 = 10_485_760;
    const PRECISION_MAX: u64 = 1000;
    let invalid = |message: String| Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message));
    match data_type {
        DataType::Varchar(Some(CharacterLength::IntegerLength { length, unit: None }))
        | DataType::CharacterVarying(Some(CharacterLength::IntegerLength { length, unit: None }))
        | DataType::CharVarying(Some(CharacterLength::IntegerLength { length, unit: None })) => match *length
        {
            0 => invalid("length for type varchar must be at least 1".to_owned()),
            most if most > VARCHAR_MAX => {
                invalid(format!("length for type varchar cannot exceed {VARCHAR_MAX}"))
            }
            most => Ok((Type::Text, Some(Modifier::Varchar(Some(most as u32))))),
        },
        DataType::Char(length) | DataType::Character(length) => {
            let length = match length {
                None => 1,
                Some(CharacterLength::IntegerLength { length, unit: None }) => *length,
                Some(_) => return named(data_type).map(|ty| (ty.plain(), None)),
            };
            match length {
                0 => invalid("length for type char must be at least 1".to_owned()),
                most if most > VARCHAR_MAX => {
                    invalid(format!("length for type char cannot exceed {VARCHAR_MAX}"))
                }
                most => Ok((Type::Bpchar, Some(Modifier::Char(most as u32)))),
            }
        }
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info)
            if *info != ExactNumberInfo::None =>
        {
            let (precision, scale) = match *info {
                ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
                ExactNumberInfo::Precision(precision) => (precision, 0),
                ExactNumberInfo::None => unreachable!("it has one"),
            };
            if !(1..=PRECISION_MAX).contains(&precision) {
                return invalid(format!(
                    "NUMERIC precision {precision} must be between 1 and {PRECISION_MAX}"
                ));
            }
            match u64::try_from(scale) {
                Ok(scale) if scale <= precision => Ok((
                    Type::Numeric,
                    Some(Modifier::Digits { precision: precision as u16, scale: scale as u16 }),
                )),
                _ => Err(SqlError::unsupported(format!("numeric({precision},{scale})"))),
            }
        }
        _ => match named(data_type)? {
            PgType::Plain(ty) => Ok((ty, None)),
            PgType::Varchar => Ok((Type::Text, Some(Modifier::Varchar(None)))),
            other => Err(SqlError::unsupported(format!("a column of type {}", other.display()))),
        },
    }
}

/// Returns the type of the numbers of a serial column. `None` if the declaration is not of a serial type.
pub fn serial(data_type: &DataType) -> Option<Type> {
    let DataType::Custom(name, modifiers) = data_type else { return None };
    let ident = name.0.last().and_then(|part| part.as_ident())?;
    if !modifiers.is_empty() || ident.quote_style.is_some() {
        return None;
    }
    match ident.value.to_lowercase().as_str() {
        "smallserial" | "serial2" => Some(Type::Int2),
        "serial" | "serial4" => Some(Type::Int4),
        "bigserial" | "serial8" => Some(Type::Int8),
        _ => None,
    }
}

/// Returns the type that a cast or declaration names, and ignores its modifier.
pub fn base(data_type: &DataType) -> Option<PgType> {
    match modified(data_type) {
        Ok((_, Some(Modifier::Varchar(_)))) => Some(PgType::Varchar),
        Ok((ty, _)) => Some(PgType::Plain(ty)),
        Err(_) => named(data_type).ok(),
    }
}

/// Returns the type that a cast or declaration names. Refuses a modifier.
pub fn named(data_type: &DataType) -> Result<PgType> {
    let refuse = |what: &str, instead: &str| {
        Err(SqlError::unsupported(format!("the type modifier of {what}"))
            .hint(format!("Use {instead} without a modifier.")))
    };
    let plain = |ty| Ok(PgType::Plain(ty));
    match data_type {
        DataType::Bool | DataType::Boolean => plain(Type::Bool),
        DataType::SmallInt(None) | DataType::Int2(None) => plain(Type::Int2),
        DataType::Int(None) | DataType::Integer(None) | DataType::Int4(None) => plain(Type::Int4),
        DataType::BigInt(None) | DataType::Int8(None) => plain(Type::Int8),
        DataType::Double(ExactNumberInfo::None) | DataType::DoublePrecision | DataType::Float8 => {
            plain(Type::Float8)
        }
        DataType::Float(ExactNumberInfo::None) => plain(Type::Float8),
        DataType::Float(ExactNumberInfo::Precision(p)) => {
            if *p >= 25 && *p <= 53 {
                plain(Type::Float8)
            } else {
                plain(Type::Float4)
            }
        }
        DataType::Real | DataType::Float4 => plain(Type::Float4),
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => match info {
            ExactNumberInfo::None => plain(Type::Numeric),
            _ => refuse("numeric", "numeric"),
        },
        DataType::Text => plain(Type::Text),
        DataType::Uuid => plain(Type::Uuid),
        DataType::Bytea => plain(Type::Bytea),
        DataType::JSON => plain(Type::Json),
        DataType::JSONB => plain(Type::Jsonb),
        DataType::Varchar(length) | DataType::CharacterVarying(length) | DataType::CharVarying(length) => {
            match length {
                None => Ok(PgType::Varchar),
                Some(CharacterLength::Max) => Ok(PgType::Varchar),
                Some(_) => refuse("character varying", "text"),
            }
        }
        DataType::Char(_) | DataType::Character(_) => refuse("character", "bpchar"),
        DataType::Date => plain(Type::Date),
        DataType::Timestamp(precision, zone) => match (precision, zone) {
            // Timestamps always have six decimals.
            (Some(..6 | 7..), _) => refuse("timestamp", "timestamp"),
            (None | Some(6), TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => plain(Type::Timestamp),
            (None | Some(6), TimezoneInfo::WithTimeZone | TimezoneInfo::Tz) => plain(Type::Timestamptz),
        },
        DataType::Interval { fields: None, precision: None } => Ok(PgType::Interval),
        DataType::Interval { .. } => Err(SqlError::unsupported("fields or a precision of type interval")),
        DataType::Regclass => Ok(PgType::Regclass),
        DataType::Array(ArrayElemTypeDef::SquareBracket(element, _)) => {
            let element = named(element)?;
            element.array().ok_or_else(|| SqlError::unsupported(format!("an array of {}", element.display())))
        }
        DataType::Custom(name, modifiers) if modifiers.is_empty() => {
            let last = name.0.last().and_then(|part| part.as_ident());
            let Some(ident) = last else { return Err(unknown(data_type)) };
            if ident.quote_style.is_some() && ident.value == "char" {
                return Ok(PgType::Char);
            }
            let lower =
                if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() };
            PgType::named(&lower).ok_or_else(|| unknown(data_type))
        }
        DataType::Time(precision, zone) => match (precision, zone) {
            (_, TimezoneInfo::WithTimeZone | TimezoneInfo::Tz) => {
                Err(SqlError::unsupported("type time with time zone"))
            }
            // Times always have six decimals.
            (Some(..6 | 7..), _) => refuse("time", "time"),
            (None | Some(6), _) => plain(Type::Time),
        },
        _ => Err(unknown(data_type)),
    }
}

fn unknown(data_type: &DataType) -> SqlError {
    let shown = data_type.to_string();
    let shown = if shown.starts_with('"') { shown } else { shown.to_lowercase() };
    SqlError::new(code::UNDEFINED_OBJECT, format!("type \"{shown}\" does not exist"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_oid_and_its_name() {
        for info in TYPES {
            assert_eq!(PgType::from_oid(info.oid), Some(info.ty));
            assert_eq!(info.ty.info().oid, info.oid);
            if info.name != "char" {
                assert_eq!(PgType::named(info.name), Some(info.ty), "{}", info.name);
            }
        }
    }
}

//! Functions and casts in queries of the catalog.

use quorate_table::{
    text::parse_text,
    value::{Type, Value},
};

use super::{
    CatalogContext,
    builtin::Fixed,
    datum::{Datum, elements},
    identifier::{parts, quoted},
    oid::{self, NAMESPACES, index_oid, table_oid},
    relations::{self, CatalogIndex},
};
use crate::{
    array,
    error::{Result, SqlError, code},
    sequence,
    types::{self, PgType},
};

pub(super) use super::builtin::Builtin;

/// Returns the index of an array's first element: 1, and 0 for a vector.
pub(super) fn first_index(ty: PgType) -> i64 {
    i64::from(!matches!(ty, PgType::Int2Vector | PgType::OidVector))
}

/// Whether a function of this name takes this number of arguments.
pub(super) fn is_known(name: &str, count: usize) -> bool {
    find(name, &vec![PgType::Int2Vector; count]).is_some()
}

/// Returns the function of this name with this number of arguments, and the type of its result.
pub(super) fn find(name: &str, arguments: &[PgType]) -> Option<(Builtin, PgType)> {
    use Builtin::*;
    let first = arguments.first().copied().unwrap_or(PgType::Unknown);
    Some(match (name, arguments.len()) {
        ("array_length", 2) => (ArrayLength, PgType::INT4),
        ("cardinality", 1) => (ArrayLength, PgType::INT4),
        ("array_lower", 2) => (ArrayLower(first_index(first)), PgType::INT4),
        ("array_upper", 2) => (ArrayUpper(first_index(first)), PgType::INT4),
        ("generate_subscripts", 2) => (Subscripts(first_index(first)), PgType::INT4),
        ("json_build_object", _) => (JsonObject, PgType::Plain(Type::Json)),
        ("getdatabaseencoding", 0) => (Encoding, PgType::Name),
        ("array_to_string", 2 | 3) => (ArrayToString, PgType::TEXT),
        ("current_schemas", 1) => (CurrentSchemas, PgType::NameArray),
        ("set_config", 3) => (SetConfig, PgType::TEXT),
        ("current_setting", 1 | 2) => (CurrentSetting, PgType::TEXT),
        ("pg_encoding_to_char", 1) => (EncodingToChar, PgType::Name),
        ("_pg_expandarray", 1) if first == PgType::Int2Vector => (ExpandArray, PgType::Record),
        ("format_type", 2) => (FormatType, PgType::TEXT),
        ("pg_get_constraintdef", 1 | 2) => (GetConstraintDefinition, PgType::TEXT),
        ("pg_get_expr", 2 | 3) => (GetExpression, PgType::TEXT),
        ("pg_get_indexdef", 1 | 3) => (GetIndexDefinition, PgType::TEXT),
        ("pg_get_serial_sequence", 2) => (GetSerialSequence, PgType::TEXT),
        ("pg_get_userbyid", 1) => (GetUserById, PgType::Name),
        (
            "pg_table_is_visible"
            | "pg_type_is_visible"
            | "pg_function_is_visible"
            | "pg_collation_is_visible"
            | "pg_operator_is_visible"
            | "pg_opclass_is_visible"
            | "pg_opfamily_is_visible"
            | "pg_conversion_is_visible"
            | "pg_statistics_obj_is_visible"
            | "pg_ts_config_is_visible"
            | "pg_ts_dict_is_visible"
            | "pg_ts_parser_is_visible"
            | "pg_ts_template_is_visible",
            1,
        ) => (IsVisible, PgType::BOOL),
        ("quote_ident", 1) => (QuoteIdent, PgType::TEXT),
        ("quote_literal", 1) => (QuoteLiteral, PgType::TEXT),
        ("pg_size_pretty", 1) => (SizePretty, PgType::TEXT),
        ("to_regclass", 1) => (ToRegclass, PgType::Regclass),
        ("to_regtype", 1) => (ToRegtype, PgType::Regtype),
        (
            "has_table_privilege"
            | "has_schema_privilege"
            | "has_database_privilege"
            | "has_column_privilege"
            | "has_any_column_privilege"
            | "has_function_privilege"
            | "has_type_privilege"
            | "has_sequence_privilege"
            | "has_tablespace_privilege"
            | "has_language_privilege"
            | "has_server_privilege"
            | "pg_has_role",
            1..,
        ) => (Fixed(self::Fixed::True), PgType::BOOL),
        (
            "pg_is_in_recovery"
            | "pg_relation_is_publishable"
            | "pg_is_other_temp_schema"
            | "row_security_active",
            _,
        ) => (Fixed(self::Fixed::False), PgType::BOOL),
        ("pg_my_temp_schema", 0) => (Fixed(self::Fixed::Zero), PgType::Oid),
        (
            "obj_description"
            | "col_description"
            | "shobj_description"
            | "pg_get_viewdef"
            | "pg_get_ruledef"
            | "pg_get_triggerdef"
            | "pg_get_functiondef"
            | "pg_get_function_result"
            | "pg_get_function_arguments"
            | "pg_get_function_identity_arguments"
            | "pg_get_function_sqlbody"
            | "pg_get_partkeydef"
            | "pg_get_statisticsobjdef_columns"
            | "pg_tablespace_location",
            _,
        ) => (Fixed(self::Fixed::Null), PgType::TEXT),
        (
            "pg_table_size"
            | "pg_relation_size"
            | "pg_total_relation_size"
            | "pg_database_size"
            | "pg_indexes_size"
            | "pg_tablespace_size",
            _,
        ) => (Fixed(self::Fixed::Null), PgType::INT8),
        ("pg_advisory_unlock_all", 0) => (Fixed(self::Fixed::Null), PgType::Void),
        _ => return None,
    })
}

/// Calls a function.
pub(super) fn call(builtin: Builtin, arguments: &[Datum], context: &CatalogContext<'_>) -> Result<Datum> {
    use Builtin::*;
    let strict = !matches!(builtin, SetConfig | Fixed(_) | FormatType | JsonObject | ArrayToString);
    if strict && arguments.iter().any(Datum::is_null) {
        return Ok(Datum::NULL);
    }
    let text = |index: usize| arguments.get(index).and_then(Datum::to_text).unwrap_or_default();
    let number = |index: usize| arguments.get(index).and_then(Datum::integer);
    let items = |index: usize| match arguments.get(index) {
        Some(argument) => elements(argument.clone()),
        None => Ok(None),
    };
    Ok(match builtin {
        Fixed(self::Fixed::Null) => Datum::NULL,
        Fixed(self::Fixed::True) => Datum::bool(true),
        Fixed(self::Fixed::False) => Datum::bool(false),
        Fixed(self::Fixed::Zero) => Datum::int8(0),
        ArrayLength => match items(0)? {
            Some(items) if !items.is_empty() => Datum::int8(items.len() as i64),
            _ => Datum::NULL,
        },
        ArrayUpper(first) => match items(0)? {
            Some(items) if !items.is_empty() => Datum::int8(first + items.len() as i64 - 1),
            _ => Datum::NULL,
        },
        ArrayLower(first) => match items(0)? {
            Some(items) if !items.is_empty() => Datum::int8(first),
            _ => Datum::NULL,
        },
        Subscripts(first) => {
            let count = items(0)?.map_or(0, |items| items.len()) as i64;
            Datum::array((first..first + count).map(Datum::int8).collect())
        }
        JsonObject => Datum::Value(Value::Json(json_object(arguments)?.into())),
        Encoding => Datum::text("UTF8"),
        ArrayToString => match items(0)? {
            None => Datum::NULL,
            Some(items) => {
                let null = arguments.get(2).and_then(Datum::to_text);
                let texts: Vec<String> =
                    items.iter().filter_map(|item| item.to_text().or_else(|| null.clone())).collect();
                Datum::text(texts.join(&text(1)))
            }
        },
        CurrentSchemas => {
            let implicit = arguments[0].truth() == Some(true);
            let names = if implicit { &["pg_catalog", "public"][..] } else { &["public"] };
            Datum::array(names.iter().map(Datum::text).collect())
        }
        CurrentSetting => match (context.setting)(&text(0)) {
            Some(value) => Datum::text(value),
            None if arguments.get(1).and_then(Datum::truth) == Some(true) => Datum::NULL,
            None => {
                return Err(SqlError::new(
                    code::UNDEFINED_OBJECT,
                    format!("unrecognized configuration parameter \"{}\"", text(0)),
                ));
            }
        },
        SetConfig => {
            let value = arguments.get(1).and_then(Datum::to_text);
            let local = arguments.get(2).and_then(Datum::truth) == Some(true);
            Datum::text((context.assign)(&text(0), value.as_deref(), local)?)
        }
        EncodingToChar => Datum::text(if number(0) == Some(6) { "UTF8" } else { "" }),
        ExpandArray => {
            let numbered = items(0)?.unwrap_or_default().into_iter().zip(1i64..);
            Datum::array(numbered.map(|(x, n)| Datum::record(vec![x, Datum::int8(n)])).collect())
        }
        FormatType => match number(0) {
            None => Datum::NULL,
            Some(0) => Datum::text("-"),
            Some(oid) => {
                let modifier = number(1).and_then(|modifier| i32::try_from(modifier).ok()).unwrap_or(-1);
                Datum::text(match u32::try_from(oid).ok().and_then(PgType::from_oid) {
                    Some(ty) => types::spelled(ty, modifier),
                    None => "???".to_owned(),
                })
            }
        },
        GetConstraintDefinition => {
            let is_pretty = arguments.get(1).and_then(Datum::truth) == Some(true);
            let constraint =
                relations::all_constraints(context).find(|one| number(0) == Some(one.oid.into()));
            constraint.map_or(Datum::NULL, |constraint| Datum::text(constraint.definition(is_pretty)))
        }
        GetExpression => arguments[0].clone(),
        GetIndexDefinition => match (index_of(number(0), context), number(1)) {
            (None, _) => Datum::NULL,
            (Some(index), None | Some(0)) => {
                let pretty = arguments.get(2).and_then(Datum::truth).unwrap_or(false);
                Datum::text(index.definition(pretty))
            }
            (Some(index), Some(key)) => {
                let key = usize::try_from(key - 1).ok().and_then(|key| index.keys.get(key));
                key.map_or(Datum::text(""), |key| Datum::text(quoted(index.column(key))))
            }
        },
        GetSerialSequence => serial_sequence(&text(0), &text(1), context)?,
        GetUserById => match number(0) {
            Some(number) if number == i64::from(oid::USER) => Datum::text(context.user),
            Some(number) => Datum::text(format!("unknown (OID={number})")),
            None => Datum::NULL,
        },
        GenerateSeries => {
            const SERIES_MAX: i64 = 1_000_000;
            let (from, to) = (number(0).unwrap_or(0), number(1).unwrap_or(-1));
            if to.saturating_sub(from) > SERIES_MAX {
                return Err(SqlError::new(
                    code::PROGRAM_LIMIT_EXCEEDED,
                    format!("generate_series would return more than {SERIES_MAX} values"),
                ));
            }
            Datum::array((from..=to).map(Datum::int8).collect())
        }
        IsVisible => {
            // All schemas except the information schema are on the search path.
            let hidden = relations::all().iter().any(|relation| {
                relation.schema == "information_schema" && number(0) == Some(relation.oid.into())
            });
            Datum::bool(!hidden)
        }
        QuoteIdent => Datum::text(quoted(&text(0))),
        QuoteLiteral => Datum::text(format!("'{}'", text(0).replace('\'', "''"))),
        SizePretty => Datum::text(size(number(0).unwrap_or(0))),
        ToRegclass => class_named(&text(0), context).map_or(Datum::NULL, Datum::int8),
        ToRegtype => type_named(&text(0)).map_or(Datum::NULL, Datum::int8),
    })
}

/// Returns the table whose primary key has this object id, as a constraint or as an index.
fn index_of<'w>(number: Option<i64>, context: &'w CatalogContext<'_>) -> Option<CatalogIndex<'w>> {
    relations::all_indexes(context).find(|index| Some(i64::from(index.oid)) == number)
}

/// Returns the name of the sequence that belongs to a column.
fn serial_sequence(table: &str, column: &str, context: &CatalogContext<'_>) -> Result<Datum> {
    let bare = parts(table).and_then(|mut parts| parts.pop()).unwrap_or_default();
    let Some(known) = context.catalog.table(&bare) else {
        let message = format!("relation \"{table}\" does not exist");
        return Err(SqlError::new(code::UNDEFINED_TABLE, message));
    };
    if !known.schema.columns.iter().any(|known| known.name == column) {
        let message = format!("column \"{column}\" of relation \"{bare}\" does not exist");
        return Err(SqlError::new(code::UNDEFINED_COLUMN, message));
    }
    let sequence = sequence::of_column(&context.catalog, &bare, column);
    Ok(sequence.map_or(Datum::NULL, |sequence| Datum::text(format!("public.{}", quoted(&sequence.name)))))
}

/// Writes a JSON object from a list in which names and values alternate.
fn json_object(arguments: &[Datum]) -> Result<String> {
    let invalid = |message: &str| SqlError::new(code::INVALID_PARAMETER_VALUE, message);
    let string = |text: &str| {
        let mut quoted = String::from("\"");
        for c in text.chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => quoted.push(c),
            }
        }
        quoted + "\""
    };
    let mut members = Vec::with_capacity(arguments.len() / 2);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            return Err(invalid("argument list must have even number of elements"));
        };
        let name = name.to_text().ok_or_else(|| invalid("null value not allowed for object key"))?;
        let value = match value {
            Datum::Value(Value::Null) => "null".to_owned(),
            Datum::Value(Value::Bool(truth)) => truth.to_string(),
            Datum::Value(value) if value.ty().is_some_and(Type::is_number) => {
                value.text().unwrap_or_default()
            }
            other => string(&other.to_text().unwrap_or_default()),
        };
        members.push(format!("{} : {value}", string(&name)));
    }
    Ok(format!("{{{}}}", members.join(", ")))
}

fn size(bytes: i64) -> String {
    const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
    let mut size = bytes;
    let mut unit = 0;
    while size.abs() >= 10_240 && unit + 1 < UNITS.len() {
        size = (size + 512) / 1024;
        unit += 1;
    }
    format!("{size} {}", UNITS[unit])
}

fn class_named(name: &str, context: &CatalogContext<'_>) -> Option<i64> {
    let parts = parts(name)?;
    let (schema, bare) = match parts.as_slice() {
        [bare] => (None, bare),
        [schema, bare] => (Some(schema.as_str()), bare),
        [database, schema, bare] if database == context.database => (Some(schema.as_str()), bare),
        _ => return None,
    };
    let bare = bare.as_str();
    if let Some(relation) = relations::find(schema, bare) {
        return Some(relation.oid.into());
    }
    if schema.is_some_and(|schema| schema != "public") {
        return None;
    }
    if let Some(table) = context.catalog.table(bare) {
        return Some(table_oid(table.id).into());
    }
    let keyed = context.keyed_tables().find(|table| table.schema.key_name() == bare)?;
    Some(index_oid(keyed.id).into())
}

fn class_name(number: i64, context: &CatalogContext<'_>) -> Option<String> {
    if let Some(relation) = relations::all().iter().find(|relation| i64::from(relation.oid) == number) {
        let hidden = relation.schema == "information_schema";
        return Some(if hidden {
            format!("{}.{}", relation.schema, relation.name)
        } else {
            relation.name.to_owned()
        });
    }
    context.catalog.tables.iter().find_map(|table| {
        if i64::from(table_oid(table.id)) == number {
            Some(quoted(&table.schema.name))
        } else if i64::from(index_oid(table.id)) == number {
            Some(quoted(&table.schema.key_name()))
        } else {
            None
        }
    })
}

fn type_named(name: &str) -> Option<i64> {
    let parts = parts(name)?;
    let bare = match parts.as_slice() {
        [bare] => bare,
        [schema, bare] if schema == "pg_catalog" => bare,
        _ => return None,
    };
    PgType::named(bare).map(|ty| ty.oid().into())
}

/// Converts a value to another type.
pub(super) fn cast(datum: Datum, from: PgType, to: PgType, context: &CatalogContext<'_>) -> Result<Datum> {
    if datum.is_null() || from == to {
        return Ok(datum);
    }
    let no_cast = || {
        let message = format!("cannot cast type {} to {}", from.display(), to.display());
        SqlError::new(code::CANNOT_COERCE, message)
    };
    let missing = |kind: &str, name: &str| {
        SqlError::new(code::UNDEFINED_TABLE, format!("{kind} \"{name}\" does not exist"))
    };
    // A name or a number becomes an object id.
    if to.is_oid() {
        if datum.integer().is_some() {
            return Ok(datum);
        }
        let text = datum.to_text().unwrap_or_default();
        if let Ok(number) = text.parse::<u32>() {
            return Ok(Datum::int8(number));
        }
        return match to {
            PgType::Regclass => {
                class_named(&text, context).map(Datum::int8).ok_or_else(|| missing("relation", &text))
            }
            PgType::Regtype => type_named(&text).map(Datum::int8).ok_or_else(|| {
                SqlError::new(code::UNDEFINED_OBJECT, format!("type \"{text}\" does not exist"))
            }),
            PgType::Regnamespace => NAMESPACES
                .iter()
                .find(|(name, _)| *name == text)
                .map(|(_, number)| Datum::int8(*number))
                .ok_or_else(|| missing("schema", &text)),
            PgType::Regrole if text == context.user => Ok(Datum::int8(oid::USER)),
            PgType::Regproc => Ok(Datum::text(text)),
            // The catalog knows functions by their names only, so every function has the number 1. The name
            // `-` means no function and has the number 0.
            PgType::Oid | PgType::Xid if from == PgType::Regproc => Ok(Datum::int8(text != "-")),
            // The names of the catalog's functions are unique, so the types of the arguments do not matter.
            PgType::Regprocedure => {
                match text.trim_end().strip_suffix(')').and_then(|text| text.split_once('(')) {
                    Some((name, _)) => Ok(Datum::text(name.trim())),
                    None => {
                        Err(SqlError::new(code::INVALID_TEXT_REPRESENTATION, "expected a left parenthesis"))
                    }
                }
            }
            _ => Err(SqlError::new(
                code::INVALID_TEXT_REPRESENTATION,
                format!("invalid input syntax for type {}: \"{text}\"", to.display()),
            )),
        };
    }
    if let Some(element) = to.info().element
        && to != PgType::Name
    {
        let (items, from) = match datum {
            Datum::Array(items) => (items.to_vec(), from.element().unwrap_or(PgType::Unknown)),
            Datum::Value(Value::Text(text)) if from.plain() == Type::Text => {
                let items = array::read_as(&text, to)?.into_iter();
                let items = items.map(|item| item.map_or(Datum::NULL, Datum::text));
                (items.collect(), PgType::Unknown)
            }
            Datum::Value(_) | Datum::Record(_) => return Err(no_cast()),
        };
        let items = items.into_iter().map(|item| cast(item, from, element, context));
        return Ok(Datum::array(items.collect::<Result<_>>()?));
    }
    // An object id becomes a name.
    if to.plain() == Type::Text {
        if let (Some(number), true) = (datum.integer(), from.is_oid()) {
            let name = match from {
                PgType::Oid | PgType::Xid => None,
                _ if number == 0 => Some("-".to_owned()),
                PgType::Regclass => class_name(number, context),
                PgType::Regtype => {
                    u32::try_from(number).ok().and_then(PgType::from_oid).map(|ty| ty.display().to_owned())
                }
                PgType::Regnamespace => NAMESPACES
                    .iter()
                    .find(|(_, known)| i64::from(*known) == number)
                    .map(|(name, _)| (*name).to_owned()),
                PgType::Regrole if number == i64::from(oid::USER) => Some(context.user.to_owned()),
                _ => None,
            };
            return Ok(Datum::text(name.unwrap_or_else(|| number.to_string())));
        }
        let text = match &datum {
            Datum::Value(Value::Bool(truth)) => truth.to_string(),
            other => other.to_text().unwrap_or_default(),
        };
        let cut = if to == PgType::Char { text.chars().take(1).collect() } else { text };
        return Ok(Datum::text(cut));
    }
    let ty = to.plain();
    Ok(Datum::Value(match datum {
        Datum::Value(Value::Text(text)) => parse_text(ty, &text)?,
        Datum::Value(value) => quorate_table::cast::cast(&value, ty)?,
        Datum::Array(_) | Datum::Record(_) => return Err(no_cast()),
    }))
}

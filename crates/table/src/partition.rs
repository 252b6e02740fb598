//! Partitions: the place of each row on the ring, and the arcs of the ring that a filter can touch.
//!
//! Source: 002 §6.1 (hash and range partitioning of the key space by one column). A row's ring key is
//! computed once, when the row is inserted; its partition column is never assigned afterwards. All processes
//! compute the same key: gateways split inserts and prune reads by this key, and storage processes decide by
//! it which rows they own. NULL has a place like every other value.
//!
//! Pruning is conservative. [`Partition::ranges`] may return arcs without a matching row, but never omits an
//! arc that has one. If it returns no arcs, no row can match.

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    calendar::DAY,
    expr::{Binary, Expr, Unary},
    failure::Failure,
    schema::{Column, KeyRange, Partition},
    value::{Type, Value, key_of, unpadded},
};

impl Partition {
    /// Returns the partition column.
    pub fn column(&self) -> usize {
        match self {
            Partition::Hash { column } | Partition::Range { column, .. } => *column,
        }
    }

    /// Returns the ring key of a row of the table.
    pub fn key(&self, row: &[Value]) -> u64 {
        self.key_of(row.get(self.column()).unwrap_or(&Value::Null))
    }

    /// Returns the ring key of a value of the partition column.
    pub fn key_of(&self, value: &Value) -> u64 {
        match self {
            Partition::Hash { .. } => xxh3_64(&key_of([value])),
            Partition::Range { low, high, .. } => interpolate(value, low.as_ref(), high.as_ref()),
        }
    }

    /// Refuses a partition that its columns do not allow: bounds of another type, or bounds with no values
    /// between them.
    pub fn check(&self, columns: &[Column]) -> Result<(), Failure> {
        let invalid = |message: String| Err(Failure::new("42P17", message));
        let Some(column) = columns.get(self.column()) else {
            return Err(Failure::malformed("the partition column does not exist"));
        };
        let Partition::Range { low, high, .. } = self else { return Ok(()) };
        if column.ty.is_json() {
            return invalid(format!(
                "column \"{}\" of type {} cannot be partitioned by range",
                column.name,
                column.ty.name()
            ));
        }
        for bound in [low, high].into_iter().flatten() {
            if bound.ty() != Some(column.ty) {
                return invalid(format!(
                    "a partition bound of column \"{}\" is not of type {}",
                    column.name,
                    column.ty.name()
                ));
            }
            if matches!(bound, Value::Float8(f) if !f.is_finite())
                || matches!(bound, Value::Float4(f) if !f.is_finite())
            {
                return invalid(format!("a partition bound of column \"{}\" is not finite", column.name));
            }
        }
        if matches!(column.ty, Type::Float4 | Type::Float8 | Type::Numeric) && low.is_some() != high.is_some()
        {
            return invalid(format!("partition column \"{}\" needs both bounds or no bounds", column.name));
        }
        if let (Some(low), Some(high)) = (low, high)
            && low.order(high).is_ge()
        {
            return invalid(format!(
                "the low partition bound of column \"{}\" is not below the high bound",
                column.name
            ));
        }
        Ok(())
    }

    /// Returns the arcs that rows satisfying `filter` can lie in, sorted and disjoint; none if no row can
    /// satisfy it. Parameters must be bound, or pruning ignores them.
    pub fn ranges(&self, filter: &Expr) -> Vec<KeyRange> {
        self.arcs(filter).unwrap_or_else(|| vec![KeyRange::ALL])
    }

    /// Returns the arcs that rows satisfying `filter` can lie in, as [`ranges`](Self::ranges) does, or `None`
    /// for the whole ring. Most terms of most filters do not narrow the ring.
    fn arcs(&self, filter: &Expr) -> Option<Vec<KeyRange>> {
        match filter {
            Expr::Constant(Value::Bool(false) | Value::Null, _) => Some(Vec::new()),
            Expr::Binary(Binary::And, left, right) => match (self.arcs(left), self.arcs(right)) {
                (Some(left), Some(right)) => Some(KeyRange::intersection(&left, &right)),
                (one, other) => one.or(other),
            },
            Expr::Binary(Binary::Or, left, right) => {
                let mut ranges = self.arcs(left)?;
                ranges.extend(self.arcs(right)?);
                Some(KeyRange::union(ranges))
            }
            Expr::Binary(operator, left, right) => {
                if let (Some(ty), Some(value)) = (self.of_column(left), constant(right)) {
                    self.compared(*operator, ty, value)
                } else if let (Some(ty), Some(value)) = (self.of_column(right), constant(left)) {
                    self.compared(operator.mirrored(), ty, value)
                } else {
                    None
                }
            }
            Expr::In(probe, list) => {
                let ty = self.of_column(probe)?;
                let mut points = Vec::with_capacity(list.len());
                for item in &**list {
                    points.extend(self.compared(Binary::Equal, ty, constant(item)?)?);
                }
                Some(KeyRange::union(points))
            }
            Expr::IsNull(probe) if self.of_column(probe).is_some() => Some(self.point(&Value::Null)),
            Expr::Column(..) if self.of_column(filter).is_some() => Some(self.point(&Value::Bool(true))),
            Expr::Unary(Unary::Not, inner)
                if matches!(**inner, Expr::Column(..)) && self.of_column(inner).is_some() =>
            {
                Some(self.point(&Value::Bool(false)))
            }
            _ => None,
        }
    }

    /// Returns the partition column's type if `expr` is that column, or a cast of it that keeps its order and
    /// its values.
    fn of_column(&self, expr: &Expr) -> Option<Type> {
        match expr {
            Expr::Column(column, ty) => (*column == self.column()).then_some(*ty),
            Expr::Cast(inner, to) => {
                let from = self.of_column(inner)?;
                let exact = match from {
                    Type::Int2 => matches!(to, Type::Int4 | Type::Int8 | Type::Numeric),
                    Type::Int4 => matches!(to, Type::Int8 | Type::Numeric),
                    Type::Int8 => *to == Type::Numeric,
                    Type::Date => matches!(to, Type::Timestamp | Type::Timestamptz),
                    _ => false,
                };
                (exact || from == *to).then_some(from)
            }
            _ => None,
        }
    }

    fn point(&self, value: &Value) -> Vec<KeyRange> {
        let key = self.key_of(value);
        vec![KeyRange { low: key, high: key }]
    }

    /// Returns the arcs of `column operator value` for a column of type `ty`; `None` if they are not known.
    fn compared(&self, operator: Binary, ty: Type, value: &Value) -> Option<Vec<KeyRange>> {
        let comparison = matches!(
            operator,
            Binary::Equal
                | Binary::NotEqual
                | Binary::Less
                | Binary::LessEqual
                | Binary::Greater
                | Binary::GreaterEqual
        );
        if !comparison {
            return None;
        }
        if value.is_null() {
            return Some(Vec::new());
        }
        if operator == Binary::Equal && value.ty() == Some(ty) {
            return Some(self.point(value));
        }
        let (below, above) = nearest(ty, value)?;
        let range = matches!(self, Partition::Range { .. });
        match operator {
            Binary::Equal => Some(match (below, above) {
                (Some(below), Some(above)) if below.order(&above).is_eq() => self.point(&below),
                _ => Vec::new(),
            }),
            Binary::Less | Binary::LessEqual if range => {
                Some(below.map(|below| KeyRange { low: 0, high: self.key_of(&below) }).into_iter().collect())
            }
            Binary::Greater | Binary::GreaterEqual if range => Some(
                above
                    .map(|above| KeyRange { low: self.key_of(&above), high: u64::MAX })
                    .into_iter()
                    .collect(),
            ),
            _ => None,
        }
    }
}

impl KeyRange {
    /// Returns the ring keys of `ranges` as sorted, disjoint arcs that do not touch.
    pub fn union(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
        ranges.sort_unstable();
        let mut joined: Vec<KeyRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.low <= last.high.saturating_add(1) => {
                    last.high = last.high.max(range.high)
                }
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Returns the keys that two sorted, disjoint lists have in common.
    pub fn intersection(left: &[KeyRange], right: &[KeyRange]) -> Vec<KeyRange> {
        let (mut common, mut i, mut j) = (Vec::new(), 0, 0);
        while let (Some(a), Some(b)) = (left.get(i), right.get(j)) {
            let both = KeyRange { low: a.low.max(b.low), high: a.high.min(b.high) };
            if both.low <= both.high {
                common.push(both);
            }
            if a.high < b.high {
                i += 1;
            } else {
                j += 1;
            }
        }
        common
    }
}

fn constant(expr: &Expr) -> Option<&Value> {
    match expr {
        Expr::Constant(value, _) => Some(value),
        _ => None,
    }
}

/// Returns the greatest value of a column's type that is not above `value`, and the least that is not below
/// it; either is `None` if there is no such value. Returns `None` if the two types have no common order.
pub(crate) fn nearest(ty: Type, value: &Value) -> Option<(Option<Value>, Option<Value>)> {
    let same = |value: &Value| Some((Some(value.clone()), Some(value.clone())));
    match (ty, value) {
        _ if value.ty() == Some(ty) => same(value),
        (Type::Int2 | Type::Int4 | Type::Int8, Value::Int2(_) | Value::Int4(_) | Value::Int8(_)) => {
            let integer = i128::from(value.as_integer().expect("an integer"));
            Some(nearest_integers(ty, integer, integer))
        }
        (Type::Int2 | Type::Int4 | Type::Int8, Value::Numeric(number)) => {
            // No column holds an integer beyond 64 bits, so any integer beyond them of the same sign can
            // stand for this number.
            let beyond = i128::MAX / 2 * i128::from(number.signum());
            let whole = |rounded: Result<crate::numeric::Numeric, Failure>| {
                rounded.ok().and_then(|whole| whole.to_i64()).map_or(beyond, i128::from)
            };
            Some(nearest_integers(ty, whole(number.floor()), whole(number.ceil())))
        }
        (Type::Date, Value::Timestamp(micros) | Value::Timestamptz(micros)) => {
            if matches!(*micros, i64::MIN | i64::MAX) {
                return same(&Value::Date(if *micros == i64::MIN { i32::MIN } else { i32::MAX }));
            }
            let day = |days: i64| Some(Value::Date(days as i32));
            let below = micros.div_euclid(DAY);
            Some((day(below), day(below + i64::from(micros.rem_euclid(DAY) != 0))))
        }
        _ => None,
    }
}

fn nearest_integers(ty: Type, below: i128, above: i128) -> (Option<Value>, Option<Value>) {
    let (least, most): (i128, i128) = match ty {
        Type::Int2 => (i16::MIN.into(), i16::MAX.into()),
        Type::Int4 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN.into(), i64::MAX.into()),
    };
    // The integer was clamped to the column's width (in the last line of this function), so the casts are
    // exact.
    let value = |integer: i128| match ty {
        Type::Int2 => Value::Int2(integer as i16),
        Type::Int4 => Value::Int4(integer as i32),
        _ => Value::Int8(integer as i64),
    };
    ((below >= least).then(|| value(below.min(most))), (above <= most).then(|| value(above.max(least))))
}

/// The position of a value among the values of its type.
enum RingPosition {
    /// An integer, for types whose values are mapped to integers.
    Step(i128),
    /// A real number.
    Real(f64),
}

fn place(value: &Value) -> RingPosition {
    match value {
        Value::Null => RingPosition::Step(i128::MAX),
        Value::Bool(b) => RingPosition::Step(i128::from(*b)),
        Value::Int2(_) | Value::Int4(_) | Value::Int8(_) => {
            RingPosition::Step(value.as_integer().expect("an integer").into())
        }
        Value::Float8(f) => RingPosition::Real(*f),
        Value::Float4(f) => RingPosition::Real((*f).into()),
        Value::Time(micros) => RingPosition::Step((*micros).into()),
        Value::Numeric(number) => RingPosition::Real(number.to_f64()),
        Value::Text(text) | Value::Json(text) | Value::Jsonb(text) => prefix(text.as_bytes()),
        Value::Bpchar(text) => prefix(unpadded(text).as_bytes()),
        Value::Uuid(uuid) => prefix(uuid),
        Value::Bytea(bytes) => prefix(bytes),
        Value::Date(days) => RingPosition::Step((*days).into()),
        Value::Timestamp(micros) | Value::Timestamptz(micros) => RingPosition::Step((*micros).into()),
    }
}

/// Returns the position of a string of bytes: its first eight bytes as a number.
fn prefix(bytes: &[u8]) -> RingPosition {
    let mut prefix = [0; 8];
    let length = bytes.len().min(8);
    prefix[..length].copy_from_slice(&bytes[..length]);
    RingPosition::Step(u64::from_be_bytes(prefix).into())
}

/// Returns the least and the greatest integer to which `place` maps values of this value's type.
fn ends(value: &Value) -> (i128, i128) {
    match value {
        Value::Bool(_) => (0, 1),
        Value::Int2(_) => (i16::MIN.into(), i16::MAX.into()),
        Value::Int4(_) | Value::Date(_) => (i32::MIN.into(), i32::MAX.into()),
        Value::Time(_) => (0, DAY.into()),
        Value::Int8(_) | Value::Timestamp(_) | Value::Timestamptz(_) => (i64::MIN.into(), i64::MAX.into()),
        Value::Null
        | Value::Float4(_)
        | Value::Float8(_)
        | Value::Numeric(_)
        | Value::Text(_)
        | Value::Uuid(_)
        | Value::Bytea(_)
        | Value::Json(_)
        | Value::Jsonb(_)
        | Value::Bpchar(_) => (0, u64::MAX.into()),
    }
}

/// Maps a value monotonically to the ring. NULL and NaN map to the top.
fn interpolate(value: &Value, low: Option<&Value>, high: Option<&Value>) -> u64 {
    let (first, last) = ends(value);
    let step = |bound: &Value| match place(bound) {
        RingPosition::Step(step) => step,
        RingPosition::Real(real) => ordered_bits(real).into(),
    };
    let (position, first, last) = match (place(value), low, high) {
        (RingPosition::Real(real), Some(low), Some(high)) => {
            let (RingPosition::Real(low), RingPosition::Real(high)) = (place(low), place(high)) else {
                return u64::MAX;
            };
            if real.is_nan() || real >= high {
                return u64::MAX;
            }
            // Each operation is monotone, and so is their composition. The cast saturates.
            return (((real - low) / (high - low)).max(0.0) * u64::MAX as f64) as u64;
        }
        (RingPosition::Real(real), _, _) => (ordered_bits(real).into(), first, last),
        (RingPosition::Step(position), low, high) => {
            (position, low.map_or(first, step), high.map_or(last, step))
        }
    };
    if position >= last {
        return u64::MAX;
    }
    if position <= first {
        return 0;
    }
    ((position - first) as u128 * u128::from(u64::MAX) / (last - first) as u128) as u64
}

/// Returns the float's bits as an integer of the same order. Both zeros are one number, and NaN is at the
/// top.
fn ordered_bits(float: f64) -> u64 {
    if float.is_nan() {
        return u64::MAX;
    }
    let bits = (float + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

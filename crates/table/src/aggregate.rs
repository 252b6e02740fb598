//! Aggregates: partial states at the replicas, merged and finished at the gateway.
//!
//! Engines and gateways use the same accumulators: an engine adds rows and returns [`State`]s, and a gateway
//! absorbs these states and finishes them. A sum of integers or numerics is exact at any size until it is
//! finished, and only then checked as in PostgreSQL. So neither the number of ranges and threads nor their
//! order affects the sum. A sum of floats is added in the order of rows and ranges, and rounded accordingly.
//!
//! Results have PostgreSQL's types ([`Aggregate::ty`]), and `avg` of exact numbers has the scale of its
//! division.

use std::collections::{HashMap, HashSet};

use rustc_hash::FxBuildHasher;

use crate::{
    eval::evaluate,
    expr::{Aggregate, AggregateFunction},
    failure::Failure,
    group::Group,
    numeric::Numeric,
    spread::Spread,
    total::Total,
    value::{Row, Type, Value, key_of},
};

pub use crate::group::State;

/// Groups under construction, in the order of their first row.
pub struct Groups {
    /// The number of grouping expressions.
    keys: usize,
    aggregates: Vec<Aggregate>,
    /// The index of each group, by key bytes.
    index: HashMap<Vec<u8>, usize, FxBuildHasher>,
    groups: Vec<(Row, Vec<Accumulator>)>,
    bytes: usize,
}

impl Groups {
    /// Creates groups without rows. Without grouping expressions there is one group from the start.
    pub fn new(keys: usize, aggregates: Vec<Aggregate>) -> Groups {
        let index = HashMap::with_hasher(FxBuildHasher);
        let mut groups = Groups { keys, aggregates, index, groups: Vec::new(), bytes: 0 };
        if keys == 0 {
            groups.group(Vec::new());
        }
        groups
    }

    /// Returns the index of the group of these keys, and creates the group if necessary.
    fn group(&mut self, keys: Row) -> usize {
        let next = self.groups.len();
        let key = key_of(&keys);
        let bytes = key.len();
        let index = *self.index.entry(key).or_insert(next);
        if index == next {
            self.bytes += bytes + 2 * size_of::<(Vec<u8>, usize)>() + size_of::<(Row, Vec<Accumulator>)>();
            self.bytes += keys.iter().map(Value::bytes).sum::<usize>();
            self.bytes += self.aggregates.len() * size_of::<Accumulator>();
            self.groups.push((keys, self.aggregates.iter().map(Accumulator::new).collect()));
        }
        index
    }

    /// Adds a row to the group of these keys.
    pub fn add(&mut self, keys: Row, row: &[Value]) -> Result<(), Failure> {
        let index = self.group(keys);
        for (accumulator, aggregate) in self.groups[index].1.iter_mut().zip(&self.aggregates) {
            match &aggregate.argument {
                None => accumulator.count_row(),
                Some(argument) => self.bytes += accumulator.add(&*evaluate(argument, row)?)?,
            }
        }
        Ok(())
    }

    /// Returns the memory of the groups in bytes, without the texts that `min` and `max` have found so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Merges another replica's partial group into the group of the same keys.
    pub fn absorb(&mut self, group: Group) -> Result<(), Failure> {
        if group.keys.len() != self.keys || group.states.len() != self.aggregates.len() {
            return Err(Failure::malformed(
                "a group of an answer does not have the keys and aggregates of its query",
            ));
        }
        let index = self.group(group.keys);
        for (accumulator, state) in self.groups[index].1.iter_mut().zip(group.states) {
            self.bytes += accumulator.absorb(state)?;
        }
        Ok(())
    }

    /// Returns the partial groups.
    pub fn into_groups(self) -> Vec<Group> {
        let state = |(keys, accumulators): (Row, Vec<Accumulator>)| Group {
            keys,
            states: accumulators.into_iter().map(Accumulator::into_state).collect(),
        };
        self.groups.into_iter().map(state).collect()
    }

    /// Returns the result rows [keys…, results…].
    pub fn finish(self) -> Result<Vec<Row>, Failure> {
        let row = |(mut row, accumulators): (Row, Vec<Accumulator>)| {
            for accumulator in accumulators {
                row.push(accumulator.finish()?);
            }
            Ok(row)
        };
        self.groups.into_iter().map(row).collect()
    }
}

/// One aggregate of one group.
struct Accumulator {
    function: AggregateFunction,
    /// The type of the result.
    ty: Type,
    /// The distinct values so far, if the aggregate has DISTINCT.
    seen: Option<DistinctValues>,
    count: u64,
    total: Total,
    extreme: Value,
    /// The sums that a variance or deviation is computed from.
    spread: Option<Box<Spread>>,
}

/// Distinct values in the order of arrival, and their keys.
#[derive(Default)]
struct DistinctValues {
    keys: HashSet<Vec<u8>, FxBuildHasher>,
    values: Vec<Value>,
}

impl Accumulator {
    fn new(aggregate: &Aggregate) -> Accumulator {
        let float = aggregate.argument.as_ref().is_some_and(|argument| argument.ty() == Type::Float8);
        Accumulator {
            function: aggregate.function,
            ty: aggregate.ty(),
            seen: aggregate.distinct.then(DistinctValues::default),
            count: 0,
            total: Total::new(float),
            extreme: Value::Null,
            spread: aggregate.function.spread().map(|_| Box::new(Spread::new(float))),
        }
    }

    fn count_row(&mut self) {
        self.count += 1;
    }

    /// Adds a value, and returns the growth in bytes.
    fn add(&mut self, value: &Value) -> Result<usize, Failure> {
        if value.is_null() {
            return Ok(0);
        }
        let mut bytes = 0;
        if let Some(seen) = &mut self.seen {
            let key = key_of([value]);
            bytes = key.len() + 2 * size_of::<Vec<u8>>() + value.bytes();
            if !seen.keys.insert(key) {
                return Ok(0);
            }
            seen.values.push(value.clone());
        }
        self.count += 1;
        if let Some(spread) = &mut self.spread {
            spread.add(value)?;
            return Ok(bytes);
        }
        match self.function {
            AggregateFunction::Sum | AggregateFunction::Avg => self.total.add(value)?,
            AggregateFunction::Min | AggregateFunction::Max => self.compare(value)?,
            _ => {}
        }
        Ok(bytes)
    }

    fn compare(&mut self, value: &Value) -> Result<(), Failure> {
        if self.extreme.is_null() {
            self.extreme = value.clone();
            return Ok(());
        }
        if !value.compares_with(&self.extreme) {
            return Err(Failure::malformed("an aggregate gets values of different types"));
        }
        let order = value.order(&self.extreme);
        if if self.function == AggregateFunction::Min { order.is_lt() } else { order.is_gt() } {
            self.extreme = value.clone();
        }
        Ok(())
    }

    /// Merges another replica's partial aggregate, and returns the growth in bytes.
    fn absorb(&mut self, state: State) -> Result<usize, Failure> {
        match state {
            State::Distinct(values) if self.seen.is_some() => {
                return values.iter().try_fold(0, |bytes, value| Ok(bytes + self.add(value)?));
            }
            State::Count(count) => self.count += count,
            State::Sum { count, sum } => {
                self.count += count;
                if count > 0 {
                    self.total.add(&sum)?;
                }
            }
            State::Extreme(value) if value.is_null() => {}
            State::Extreme(value) => self.compare(&value)?,
            State::Spread { count, sum, squares } => match &mut self.spread {
                Some(spread) => spread.absorb(count, &sum, &squares)?,
                None => {
                    return Err(Failure::malformed(
                        "an aggregate other than a variance gets the state of a variance",
                    ));
                }
            },
            State::Distinct(_) => {
                return Err(Failure::malformed("an aggregate without DISTINCT gets distinct values"));
            }
        }
        Ok(0)
    }

    fn into_state(self) -> State {
        if let Some(seen) = self.seen {
            return State::Distinct(seen.values);
        }
        if let Some(spread) = self.spread {
            return spread.into_state();
        }
        match self.function {
            AggregateFunction::Sum | AggregateFunction::Avg => {
                State::Sum { count: self.count, sum: self.total.into_value() }
            }
            AggregateFunction::Min | AggregateFunction::Max => State::Extreme(self.extreme),
            _ => State::Count(self.count),
        }
    }

    fn finish(self) -> Result<Value, Failure> {
        if let (Some(spread), Some((sample, root))) = (self.spread, self.function.spread()) {
            return spread.finish(sample, root);
        }
        match self.function {
            AggregateFunction::Count => Ok(Value::Int8(self.count as i64)),
            AggregateFunction::Min | AggregateFunction::Max => Ok(self.extreme),
            _ if self.count == 0 => Ok(Value::Null),
            AggregateFunction::Sum => crate::cast::cast(&self.total.finish()?, self.ty),
            _ => match self.total.finish()? {
                Value::Numeric(sum) => sum.divide(&Numeric::from_i128(self.count.into())).map(Value::Numeric),
                Value::Float8(sum) => Ok(Value::Float8(sum / self.count as f64)),
                _ => unreachable!("a total is a numeric or a float"),
            },
        }
    }
}

//! Evaluates queries: nested loops, groups, windows, order.

use std::{
    cell::RefCell,
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use quorate_table::{
    expr::Expr,
    operation::Order,
    value::{Row, Type, Value},
};
use regex::{Regex, RegexBuilder};

use super::{
    CatalogContext,
    datum::{Datum, elements},
    functions,
    plan::{Body, CatalogPlan, From, Leaf, QueryPlan, RecursionPlan, Select},
    relations::Relation,
};
use crate::{
    budget::{self, MemoryReservation},
    error::{Result, SqlError, code},
    types::PgType,
};

/// Maximum number of rows that a query may process before it is stopped.
const STEPS_MAX: u64 = 50_000_000;

/// The number of steps that a round of a recursion counts as. A round takes about as long as these steps.
const ROUND_STEPS: u64 = 100;

/// The current row of one level, and the levels around it.
pub(super) struct Frame<'f> {
    pub(super) row: &'f [Datum],
    pub(super) group: Option<&'f [Vec<Datum>]>,
    pub(super) numbers: &'f [i64],
    pub(super) outer: Option<&'f Frame<'f>>,
}

/// One evaluation: its surroundings, and caches of relations and patterns.
pub(super) struct Evaluation<'w> {
    pub context: &'w CatalogContext<'w>,
    /// The leaves of the query.
    pub leaves: &'w [Leaf],
    relations: RefCell<BTreeMap<u32, Rc<Vec<Vec<Datum>>>>>,
    patterns: RefCell<BTreeMap<(String, bool), Regex>>,
    /// The working tables of the recursions under way, by their numbers. Their rows are bounded by the memory
    /// of the session.
    working_tables: RefCell<BTreeMap<usize, Rc<CatalogRows>>>,
    steps: RefCell<u64>,
    /// Memory of all rows that the evaluation keeps.
    hold: RefCell<MemoryReservation>,
}

/// Memory of the rows that one part of the evaluation keeps, freed at its end.
pub(super) struct PartReservation<'e> {
    hold: &'e RefCell<MemoryReservation>,
    bytes: usize,
}

impl PartReservation<'_> {
    fn rows(&mut self, rows: usize, width: usize) -> Result<()> {
        self.bytes(rows.saturating_mul(size_of::<Vec<Datum>>() + width * size_of::<Datum>()))
    }

    /// Counts only these rows from now on, and frees the memory of all other rows. These rows must have been
    /// counted here.
    fn only(mut self, rows: &CatalogRows) -> Self {
        let width = rows.first().map_or(0, Vec::len);
        let left = rows.len() * (size_of::<Vec<Datum>>() + width * size_of::<Datum>());
        let gone = self.bytes.saturating_sub(left);
        self.hold.borrow_mut().shrink(gone);
        self.bytes -= gone;
        self
    }

    pub(super) fn bytes(&mut self, bytes: usize) -> Result<()> {
        self.hold.borrow_mut().grow(bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for PartReservation<'_> {
    fn drop(&mut self) {
        self.hold.borrow_mut().shrink(self.bytes);
    }
}

impl Evaluation<'_> {
    /// Starts counting memory for one part of the evaluation.
    pub(super) fn kept(&self) -> PartReservation<'_> {
        PartReservation { hold: &self.hold, bytes: 0 }
    }
}

/// Returns the memory of a row of results, in bytes.
pub(super) fn weight(row: &[Datum]) -> usize {
    let of_datum = |datum: &Datum| match datum {
        Datum::Value(value) => budget::weight_of(value),
        // Only the list of elements is counted: records are short, and the rows from which an array was made
        // were counted.
        Datum::Array(elements) | Datum::Record(elements) => elements.len() * size_of::<Datum>(),
    };
    size_of::<Vec<Datum>>() + row.iter().map(of_datum).sum::<usize>()
}

pub(super) type CatalogRows = Vec<Vec<Datum>>;

impl CatalogPlan {
    /// Evaluates the query. Its intermediate rows and its result are counted in `hold`, which is returned
    /// with the rows.
    pub fn rows(
        &self,
        context: &CatalogContext<'_>,
        hold: MemoryReservation,
    ) -> Result<(Vec<Row>, MemoryReservation)> {
        let evaluation = Evaluation {
            context,
            leaves: &self.leaves,
            relations: RefCell::default(),
            patterns: RefCell::default(),
            working_tables: RefCell::default(),
            steps: RefCell::new(0),
            hold: RefCell::new(hold),
        };
        let rows = self.query.run(&evaluation, None)?;
        let mut hold = evaluation.hold.into_inner();
        let mut fitted = Vec::with_capacity(rows.len());
        for row in rows {
            let row = row.into_iter().zip(&self.query.types).map(|(datum, ty)| fit(datum, *ty, context));
            let row = row.collect::<Result<Row>>()?;
            hold.grow(budget::weight(&row))?;
            fitted.push(row);
        }
        Ok((fitted, hold))
    }
}

impl QueryPlan {
    pub(super) fn run(&self, evaluation: &Evaluation<'_>, outer: Option<&Frame<'_>>) -> Result<CatalogRows> {
        let mut rows = match &self.body {
            Body::Select(select) => select.run(evaluation, outer, self.visible)?,
            Body::Union { left, right, all } => {
                let mut rows = left.run(evaluation, outer)?;
                rows.extend(right.run(evaluation, outer)?);
                if !all {
                    distinct(&mut rows, self.visible);
                }
                rows
            }
            Body::Recursion(recursion) => recursion.run(evaluation, outer)?,
            Body::Values(rows) => {
                let frame = Frame { row: &[], group: None, numbers: &[], outer };
                rows.iter()
                    .map(|row| row.iter().map(|node| evaluation.eval(node, &frame)).collect())
                    .collect::<Result<_>>()?
            }
        };
        if !self.order.is_empty() {
            rows.sort_by(|a, b| compare(&self.order, a, b));
        }
        let frame = Frame { row: &[], group: None, numbers: &[], outer };
        let count = |node: &Option<Expr>| -> Result<Option<usize>> {
            match node {
                None => Ok(None),
                Some(node) => Ok(evaluation.eval(node, &frame)?.integer().map(|n| n.max(0) as usize)),
            }
        };
        if let Some(offset) = count(&self.offset)? {
            rows.drain(..offset.min(rows.len()));
        }
        if let Some(limit) = count(&self.limit)? {
            rows.truncate(limit);
        }
        for row in &mut rows {
            row.truncate(self.visible);
        }
        Ok(rows)
    }
}

impl RecursionPlan {
    fn run(&self, evaluation: &Evaluation<'_>, outer: Option<&Frame<'_>>) -> Result<CatalogRows> {
        let mut kept = evaluation.kept();
        let mut seen = BTreeSet::new();
        let mut rows = CatalogRows::new();
        let mut round = self.base.run(evaluation, outer)?;
        loop {
            if !self.all {
                let mut keys = 0;
                round.retain(|row| {
                    let key = key_of(row);
                    keys += size_of::<Vec<u8>>() + key.len();
                    seen.insert(key)
                });
                kept.bytes(keys)?;
            }
            if round.is_empty() {
                return Ok(rows);
            }
            // A recursion that does not end by itself ends here, at the bound of steps or of memory.
            evaluation.step(ROUND_STEPS)?;
            for row in &round {
                kept.bytes(weight(row))?;
            }
            rows.extend(round.iter().cloned());
            evaluation.working_tables.borrow_mut().insert(self.working_table, Rc::new(round));
            let next = self.step.run(evaluation, outer);
            evaluation.working_tables.borrow_mut().remove(&self.working_table);
            round = next?;
        }
    }
}

/// Converts a value to the form that a column of this type has in a result.
fn fit(datum: Datum, ty: PgType, context: &CatalogContext<'_>) -> Result<Value> {
    Ok(match (datum, ty) {
        (
            Datum::Value(value @ (Value::Int2(_) | Value::Int4(_) | Value::Int8(_))),
            PgType::Plain(ty @ (Type::Int2 | Type::Int4 | Type::Int8 | Type::Numeric)),
        ) => quorate_table::cast::cast(&value, ty)?,
        (Datum::Value(value), ty) if ty.is_oid() => match value.as_integer() {
            Some(number) => Value::Int8(number),
            None => value,
        },
        (Datum::Value(value), PgType::Plain(Type::Text)) if value.ty().is_some_and(|ty| ty != Type::Text) => {
            functions::cast(Datum::Value(value.clone()), PgType::Unknown, PgType::TEXT, context)
                .map_or(value, Datum::into_value)
        }
        (datum, _) => datum.into_value(),
    })
}

pub(super) fn compare(order: &[Order], a: &[Datum], b: &[Datum]) -> Ordering {
    order
        .iter()
        .map(|key| {
            let (a, b) = (&a[key.column], &b[key.column]);
            match (a.is_null(), b.is_null()) {
                (true, true) => Ordering::Equal,
                (true, false) if key.nulls_first => Ordering::Less,
                (true, false) => Ordering::Greater,
                (false, true) if key.nulls_first => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) if key.descending => b.order(a),
                (false, false) => a.order(b),
            }
        })
        .find(|ordering| ordering.is_ne())
        .unwrap_or(Ordering::Equal)
}

pub(super) fn descending(keys: &[(Expr, bool)]) -> Vec<Order> {
    keys.iter()
        .enumerate()
        .map(|(column, (_, descending))| Order { column, descending: *descending, nulls_first: *descending })
        .collect()
}

pub(super) fn distinct(rows: &mut CatalogRows, visible: usize) {
    let mut seen = BTreeSet::new();
    rows.retain(|row| seen.insert(key_of(&row[..visible])));
}

fn key_of(row: &[Datum]) -> Vec<u8> {
    let mut key = Vec::new();
    row.iter().for_each(|datum| datum.write_key(&mut key));
    key
}

impl Select {
    fn run(
        &self,
        evaluation: &Evaluation<'_>,
        outer: Option<&Frame<'_>>,
        visible: usize,
    ) -> Result<CatalogRows> {
        let mut kept = evaluation.kept();
        let mut from_rows = evaluation.kept();
        let mut rows: CatalogRows = vec![Vec::new()];
        let mut applied = vec![false; self.conjuncts.len()];
        for from in &self.from {
            let mut more = evaluation.kept();
            rows = self.expand(from, rows, (evaluation, &mut more), outer, Some(&mut applied))?;
            // Frees the memory of the rows from before this FROM item, and counts only the rows that passed
            // the conditions.
            from_rows = more.only(&rows);
        }
        for (index, (conjunct, _)) in self.conjuncts.iter().enumerate() {
            if !applied[index] {
                filter(&mut rows, conjunct, evaluation, outer)?;
            }
        }
        // Keeps the memory of the rows from FROM counted until the select ends.
        let _from_rows = from_rows;
        let project = |row: &[Datum], group: Option<&[Vec<Datum>]>, numbers: &[i64]| -> Result<Vec<Datum>> {
            let frame = Frame { row, group, numbers, outer };
            self.columns.iter().map(|column| evaluation.eval(column, &frame)).collect()
        };
        let mut projected = Vec::new();
        match &self.groups {
            None => {
                let numbers = self.numbers(&rows, evaluation, outer)?;
                for (row, numbers) in rows.iter().zip(&numbers) {
                    let row = project(row, None, numbers)?;
                    kept.bytes(weight(&row))?;
                    projected.push(row);
                }
            }
            Some(keys) => {
                let mut order: Vec<Vec<u8>> = Vec::new();
                let mut groups: BTreeMap<Vec<u8>, CatalogRows> = BTreeMap::new();
                for row in rows {
                    let frame = Frame { row: &row, group: None, numbers: &[], outer };
                    let key: Vec<Datum> =
                        keys.iter().map(|key| evaluation.eval(key, &frame)).collect::<Result<_>>()?;
                    let key = key_of(&key);
                    let group = groups.entry(key.clone()).or_default();
                    if group.is_empty() {
                        order.push(key);
                    }
                    group.push(row);
                }
                if keys.is_empty() && order.is_empty() {
                    order.push(Vec::new());
                    groups.insert(Vec::new(), Vec::new());
                }
                let width = self.from.iter().map(From::width).sum();
                let nothing = vec![Datum::NULL; width];
                for key in order {
                    let group = &groups[&key];
                    let first = group.first().unwrap_or(&nothing);
                    if let Some(having) = &self.having {
                        let frame = Frame { row: first, group: Some(group), numbers: &[], outer };
                        if !evaluation.holds(having, &frame)? {
                            continue;
                        }
                    }
                    let row = project(first, Some(group), &[])?;
                    kept.bytes(weight(&row))?;
                    projected.push(row);
                }
            }
        }
        if self.distinct {
            distinct(&mut projected, visible);
        }
        Ok(projected)
    }

    /// Returns the number of every row in every window.
    fn numbers(
        &self,
        rows: &CatalogRows,
        evaluation: &Evaluation<'_>,
        outer: Option<&Frame<'_>>,
    ) -> Result<Vec<Vec<i64>>> {
        let mut numbers = vec![Vec::new(); rows.len()];
        for window in &self.windows {
            let mut keyed = Vec::with_capacity(rows.len());
            for (index, row) in rows.iter().enumerate() {
                let frame = Frame { row, group: None, numbers: &[], outer };
                let eval = |node: &Expr| evaluation.eval(node, &frame);
                let partition = window.partition.iter().map(eval).collect::<Result<Vec<_>>>()?;
                let keys = window.order.iter().map(|(node, _)| eval(node)).collect::<Result<Vec<_>>>()?;
                keyed.push((key_of(&partition), keys, index));
            }
            let order = descending(&window.order);
            keyed.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| compare(&order, &a.1, &b.1)));
            let mut number = 0;
            for at in 0..keyed.len() {
                let same = at > 0 && keyed[at - 1].0 == keyed[at].0;
                number = if same { number + 1 } else { 1 };
                numbers[keyed[at].2].push(number);
            }
        }
        Ok(numbers)
    }

    /// Joins each of the rows so far with the rows of a FROM item. `applied` is `None` on the side of an
    /// outer join that may become NULL, because conditions of WHERE must not be applied there yet.
    fn expand(
        &self,
        from: &From,
        before: CatalogRows,
        (evaluation, kept): (&Evaluation<'_>, &mut PartReservation<'_>),
        outer: Option<&Frame<'_>>,
        mut applied: Option<&mut Vec<bool>>,
    ) -> Result<CatalogRows> {
        let (before, more) = match from {
            From::Join { left, right, .. } => {
                let context = (evaluation, &mut *kept);
                (self.expand(left, before, context, outer, applied.as_deref_mut())?, right.width())
            }
            _ => (before, from.width()),
        };
        let Some(width) = before.first().map(|row| row.len() + more) else { return Ok(CatalogRows::new()) };
        let ready: Vec<usize> = match &applied {
            None => Vec::new(),
            Some(applied) => (0..self.conjuncts.len())
                .filter(|index| !applied[*index])
                .filter(|index| self.conjuncts[*index].1.is_some_and(|needs| needs <= width))
                .collect(),
        };
        let mut rows = CatalogRows::new();
        // The conditions are applied to the joined rows of one earlier row at a time, so that a whole product
        // is never in memory.
        let mut keep = |mut more: CatalogRows, counted: PartReservation<'_>| {
            for index in &ready {
                filter(&mut more, &self.conjuncts[*index].0, evaluation, outer)?;
            }
            drop(counted);
            kept.rows(more.len(), width)?;
            rows.extend(more);
            Ok::<_, SqlError>(())
        };
        let product = |row: &[Datum], all: &[Vec<Datum>]| {
            let mut tried = evaluation.kept();
            tried.rows(all.len(), width)?;
            Ok::<_, SqlError>((all.iter().map(|more| joined(row, more)).collect(), tried))
        };
        match from {
            From::Join { right, on, outer: is_outer, .. } => {
                for row in before {
                    let mut tried = evaluation.kept();
                    let mut matches =
                        self.expand(right, vec![row.clone()], (evaluation, &mut tried), outer, None)?;
                    if let Some(on) = on {
                        filter(&mut matches, on, evaluation, outer)?;
                    }
                    if matches.is_empty() && *is_outer {
                        let mut alone = row;
                        alone.resize(width, Datum::NULL);
                        matches.push(alone);
                    }
                    keep(matches, tried)?;
                }
            }
            From::Relation(relation) => {
                let all = evaluation.relation(relation);
                for row in &before {
                    evaluation.step(all.len() as u64)?;
                    let (more, tried) = product(row, &all)?;
                    keep(more, tried)?;
                }
            }
            From::WorkingTable { number, .. } => {
                let all = evaluation.working_tables.borrow()[number].clone();
                for row in &before {
                    evaluation.step(all.len() as u64)?;
                    let (more, tried) = product(row, &all)?;
                    keep(more, tried)?;
                }
            }
            From::Derived { plan, lateral: false } => {
                let all = plan.run(evaluation, outer)?;
                for row in &before {
                    evaluation.step(all.len() as u64)?;
                    let (more, tried) = product(row, &all)?;
                    keep(more, tried)?;
                }
            }
            From::Derived { plan, lateral: true } => {
                for row in &before {
                    let frame = Frame { row, group: None, numbers: &[], outer };
                    let all = plan.run(evaluation, Some(&frame))?;
                    let (more, tried) = product(row, &all)?;
                    keep(more, tried)?;
                }
            }
            From::Elements(arrays) => {
                for row in &before {
                    let frame = Frame { row, group: None, numbers: &[], outer };
                    let mut columns = Vec::with_capacity(arrays.len());
                    for array in arrays {
                        columns.push(elements(evaluation.eval(array, &frame)?)?.unwrap_or_default());
                    }
                    let longest = columns.iter().map(Vec::len).max().unwrap_or(0);
                    evaluation.step(longest as u64)?;
                    let mut tried = evaluation.kept();
                    tried.rows(longest, width)?;
                    let mut more = CatalogRows::with_capacity(longest);
                    for index in 0..longest {
                        let element = |column: &Vec<Datum>| column.get(index).cloned().unwrap_or(Datum::NULL);
                        let elements: Vec<Datum> = columns.iter().map(element).collect();
                        more.push(joined(row, &elements));
                    }
                    keep(more, tried)?;
                }
            }
        }
        if let Some(applied) = applied {
            for index in ready {
                applied[index] = true;
            }
        }
        Ok(rows)
    }
}

fn joined(row: &[Datum], more: &[Datum]) -> Vec<Datum> {
    row.iter().chain(more).cloned().collect()
}

fn filter(
    rows: &mut CatalogRows,
    condition: &Expr,
    evaluation: &Evaluation<'_>,
    outer: Option<&Frame<'_>>,
) -> Result<()> {
    let mut failed = None;
    rows.retain(|row| {
        if failed.is_some() {
            return false;
        }
        match evaluation.holds(condition, &Frame { row, group: None, numbers: &[], outer }) {
            Ok(holds) => holds,
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    });
    failed.map_or(Ok(()), Err)
}

impl Evaluation<'_> {
    fn relation(&self, relation: &'static Relation) -> Rc<CatalogRows> {
        self.relations
            .borrow_mut()
            .entry(relation.oid)
            .or_insert_with(|| Rc::new(relation.rows(self.context)))
            .clone()
    }

    /// Counts processed rows. Stops a query that processes too many, so that it does not block a thread.
    fn step(&self, count: u64) -> Result<()> {
        let mut steps = self.steps.borrow_mut();
        *steps += count;
        if *steps > STEPS_MAX {
            return Err(SqlError::new(
                code::PROGRAM_LIMIT_EXCEEDED,
                "the query of the system catalog is too large",
            )
            .detail(format!("A query of the system catalog may process at most {STEPS_MAX} rows.")));
        }
        Ok(())
    }

    pub(super) fn matches(&self, text: &str, pattern: &str, insensitive: bool) -> Result<bool> {
        let mut patterns = self.patterns.borrow_mut();
        let key = (pattern.to_owned(), insensitive);
        if let Some(regex) = patterns.get(&key) {
            return Ok(regex.is_match(text));
        }
        let regex = RegexBuilder::new(pattern).case_insensitive(insensitive).build().map_err(|error| {
            SqlError::new(code::INVALID_REGULAR_EXPRESSION, format!("invalid regular expression: {error}"))
        })?;
        let matched = regex.is_match(text);
        patterns.insert(key, regex);
        Ok(matched)
    }
}

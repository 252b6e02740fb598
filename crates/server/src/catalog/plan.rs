//! Bound queries of the catalog, and their evaluation.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use quorate_table::{
    eval::eval,
    expr::{Binary, Expr},
    operation::Order,
    value::{Row, Type, Value},
};
use regex::{Regex, RegexBuilder};

use super::{
    World,
    datum::{Datum, array_elements},
    functions::{self, Builtin},
    relations::Relation,
};
use crate::{
    error::{Result, SqlError, code},
    types::PgType,
};

/// Rows a query may go through before it is stopped.
const STEPS_MAX: u64 = 50_000_000;

/// A bound query.
#[derive(Debug)]
pub struct Plan {
    pub(super) body: Body,
    /// Over the body's columns, of which those behind `visible` exist to sort by.
    pub(super) order: Vec<Order>,
    pub(super) limit: Option<Node>,
    pub(super) offset: Option<Node>,
    pub(super) visible: usize,
    /// Types of the visible columns.
    pub(super) types: Vec<PgType>,
}

#[derive(Debug)]
pub(super) enum Body {
    Select(Box<Select>),
    Union { left: Box<Plan>, right: Box<Plan>, all: bool },
    Values(Vec<Vec<Node>>),
}

#[derive(Debug)]
pub(super) struct Select {
    pub from: Vec<From>,
    /// WHERE in its conjuncts, each with how many of the level's columns it needs; `None` for all.
    pub conjuncts: Vec<(Node, Option<usize>)>,
    /// Grouping keys; `Some` of none is one group.
    pub groups: Option<Vec<Node>>,
    pub having: Option<Node>,
    pub columns: Vec<Node>,
    pub distinct: bool,
    /// `row_number()` over partitions, each in an order.
    pub windows: Vec<Window>,
}

/// Rows numbered within their partition.
#[derive(Debug)]
pub(super) struct Window {
    pub partition: Vec<Node>,
    pub order: Vec<(Node, bool)>,
}

#[derive(Debug)]
pub(super) enum From {
    Relation(&'static Relation),
    Derived { plan: Box<Plan>, lateral: bool },
    Function { node: Node, kind: SetFunction },
    Join { left: Box<From>, right: Box<From>, on: Option<Node>, outer: bool },
}

/// Functions that make rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetFunction {
    /// A row per element.
    Unnest,
    /// No rows; the argument is evaluated for nothing.
    Empty,
}

impl From {
    pub(super) fn width(&self) -> usize {
        match self {
            From::Relation(relation) => relation.columns.len(),
            From::Derived { plan, .. } => plan.visible,
            From::Function { .. } => 1,
            From::Join { left, right, .. } => left.width() + right.width(),
        }
    }
}

/// An expression.
#[derive(Debug)]
pub(super) enum Node {
    Constant(Datum),
    Parameter(usize),
    /// A column, so many levels out.
    Column {
        level: usize,
        index: usize,
    },
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
    IsNull(Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    Distinct(Box<Node>, Box<Node>),
    Negate(Box<Node>),
    Match {
        text: Box<Node>,
        pattern: Box<Node>,
        insensitive: bool,
    },
    Like {
        text: Box<Node>,
        pattern: Box<Node>,
        escape: Option<char>,
        insensitive: bool,
    },
    In(Box<Node>, Vec<Node>),
    Case {
        subject: Option<Box<Node>>,
        branches: Vec<(Node, Node)>,
        otherwise: Option<Box<Node>>,
    },
    Any {
        left: Box<Node>,
        op: Binary,
        right: Box<Node>,
        all: bool,
    },
    Array(Vec<Node>),
    Element(Box<Node>, Box<Node>),
    /// A field of a record, by its place.
    Field(Box<Node>, usize),
    Cast(Box<Node>, PgType, PgType),
    Call(Builtin, Vec<Node>),
    Scalar(Box<Plan>),
    Exists(Box<Plan>),
    InQuery(Box<Node>, Box<Plan>),
    ArrayOf(Box<Plan>),
    Aggregate(Box<Aggregate>),
    /// The row's number in this window of its select.
    Number(usize),
}

#[derive(Debug)]
pub(super) struct Aggregate {
    pub function: AggregateFunction,
    pub arguments: Vec<Node>,
    pub distinct: bool,
    pub order: Vec<(Node, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AggregateFunction {
    Count,
    Min,
    Max,
    Sum,
    Array,
    String,
    And,
    Or,
}

/// A level's row, and the levels around it.
pub(super) struct Frame<'f> {
    row: &'f [Datum],
    group: Option<&'f [Vec<Datum>]>,
    numbers: &'f [i64],
    outer: Option<&'f Frame<'f>>,
}

/// One evaluation: the world, and what need not be made twice.
pub(super) struct Evaluation<'w> {
    pub world: &'w World<'w>,
    relations: RefCell<BTreeMap<u32, Rc<Vec<Vec<Datum>>>>>,
    patterns: RefCell<BTreeMap<(String, bool), Regex>>,
    steps: RefCell<u64>,
}

type Rows = Vec<Vec<Datum>>;

impl Plan {
    /// Evaluates the query.
    pub fn rows(&self, world: &World<'_>) -> Result<Vec<Row>> {
        let evaluation = Evaluation {
            world,
            relations: RefCell::default(),
            patterns: RefCell::default(),
            steps: RefCell::new(0),
        };
        let rows = self.run(&evaluation, None)?;
        Ok(rows
            .into_iter()
            .map(|row| row.into_iter().zip(&self.types).map(|(datum, ty)| fit(datum, *ty, world)).collect())
            .collect())
    }

    fn run(&self, evaluation: &Evaluation<'_>, outer: Option<&Frame<'_>>) -> Result<Rows> {
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
            Body::Values(rows) => {
                let frame = Frame { row: &[], group: None, numbers: &[], outer };
                rows.iter()
                    .map(|row| row.iter().map(|node| node.eval(evaluation, &frame)).collect())
                    .collect::<Result<_>>()?
            }
        };
        if !self.order.is_empty() {
            rows.sort_by(|a, b| compare(&self.order, a, b));
        }
        let frame = Frame { row: &[], group: None, numbers: &[], outer };
        let count = |node: &Option<Node>| -> Result<Option<usize>> {
            match node {
                None => Ok(None),
                Some(node) => Ok(node.eval(evaluation, &frame)?.integer().map(|n| n.max(0) as usize)),
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

/// The value that a column of this type carries.
fn fit(datum: Datum, ty: PgType, world: &World<'_>) -> Value {
    match (datum, ty) {
        (Datum::Value(Value::Int8(i)), PgType::Plain(Type::Int2)) => Value::Int2(i as i16),
        (Datum::Value(Value::Int8(i)), PgType::Plain(Type::Int4)) => Value::Int4(i as i32),
        (Datum::Value(Value::Int4(i)), PgType::Plain(Type::Int8)) => Value::Int8(i.into()),
        (Datum::Value(Value::Int2(i)), PgType::Plain(Type::Int8)) => Value::Int8(i.into()),
        (Datum::Value(Value::Int2(i)), PgType::Plain(Type::Int4)) => Value::Int4(i.into()),
        (Datum::Value(value), ty) if ty.is_oid() => match value.as_integer() {
            Some(number) => Value::Int8(number),
            None => value,
        },
        (Datum::Value(value), PgType::Plain(Type::Text)) if value.ty().is_some_and(|ty| ty != Type::Text) => {
            functions::cast(Datum::Value(value.clone()), PgType::Unknown, PgType::TEXT, world)
                .map_or(value, Datum::into_value)
        }
        (datum, _) => datum.into_value(),
    }
}

fn compare(order: &[Order], a: &[Datum], b: &[Datum]) -> std::cmp::Ordering {
    order
        .iter()
        .map(|key| {
            let (a, b) = (&a[key.column], &b[key.column]);
            match (a.is_null(), b.is_null()) {
                (true, true) => std::cmp::Ordering::Equal,
                (true, false) if key.nulls_first => std::cmp::Ordering::Less,
                (true, false) => std::cmp::Ordering::Greater,
                (false, true) if key.nulls_first => std::cmp::Ordering::Greater,
                (false, true) => std::cmp::Ordering::Less,
                (false, false) if key.descending => b.order(a),
                (false, false) => a.order(b),
            }
        })
        .find(|ordering| ordering.is_ne())
        .unwrap_or(std::cmp::Ordering::Equal)
}

fn descending(keys: &[(Node, bool)]) -> Vec<Order> {
    keys.iter()
        .enumerate()
        .map(|(column, (_, descending))| Order { column, descending: *descending, nulls_first: *descending })
        .collect()
}

fn distinct(rows: &mut Rows, visible: usize) {
    let mut seen = BTreeSet::new();
    rows.retain(|row| seen.insert(key_of(&row[..visible])));
}

fn key_of(row: &[Datum]) -> Vec<u8> {
    let mut key = Vec::new();
    row.iter().for_each(|datum| datum.write_key(&mut key));
    key
}

impl Select {
    fn run(&self, evaluation: &Evaluation<'_>, outer: Option<&Frame<'_>>, visible: usize) -> Result<Rows> {
        let mut rows: Rows = vec![Vec::new()];
        let mut applied = vec![false; self.conjuncts.len()];
        for from in &self.from {
            rows = self.expand(from, rows, evaluation, outer, Some(&mut applied))?;
        }
        for (index, (conjunct, _)) in self.conjuncts.iter().enumerate() {
            if !applied[index] {
                filter(&mut rows, conjunct, evaluation, outer)?;
            }
        }
        let project = |row: &[Datum], group: Option<&[Vec<Datum>]>, numbers: &[i64]| -> Result<Vec<Datum>> {
            let frame = Frame { row, group, numbers, outer };
            self.columns.iter().map(|column| column.eval(evaluation, &frame)).collect()
        };
        let mut projected = Vec::new();
        match &self.groups {
            None => {
                let numbers = self.numbers(&rows, evaluation, outer)?;
                for (row, numbers) in rows.iter().zip(&numbers) {
                    projected.push(project(row, None, numbers)?);
                }
            }
            Some(keys) => {
                let mut order: Vec<Vec<u8>> = Vec::new();
                let mut groups: BTreeMap<Vec<u8>, Rows> = BTreeMap::new();
                for row in rows {
                    let frame = Frame { row: &row, group: None, numbers: &[], outer };
                    let key: Vec<Datum> =
                        keys.iter().map(|key| key.eval(evaluation, &frame)).collect::<Result<_>>()?;
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
                        if having.eval(evaluation, &frame)?.truth() != Some(true) {
                            continue;
                        }
                    }
                    projected.push(project(first, Some(group), &[])?);
                }
            }
        }
        if self.distinct {
            distinct(&mut projected, visible);
        }
        Ok(projected)
    }

    /// For every row, its number in every window.
    fn numbers(
        &self,
        rows: &Rows,
        evaluation: &Evaluation<'_>,
        outer: Option<&Frame<'_>>,
    ) -> Result<Vec<Vec<i64>>> {
        let mut numbers = vec![Vec::new(); rows.len()];
        for window in &self.windows {
            let mut keyed = Vec::with_capacity(rows.len());
            for (index, row) in rows.iter().enumerate() {
                let frame = Frame { row, group: None, numbers: &[], outer };
                let eval = |node: &Node| node.eval(evaluation, &frame);
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

    /// Puts a FROM item behind each of the rows so far. `applied` is absent where WHERE may not look yet: on the side
    /// of an outer join that may be NULL.
    fn expand(
        &self,
        from: &From,
        before: Rows,
        evaluation: &Evaluation<'_>,
        outer: Option<&Frame<'_>>,
        mut applied: Option<&mut Vec<bool>>,
    ) -> Result<Rows> {
        let mut rows = Vec::new();
        match from {
            From::Join { left, right, on, outer: is_outer } => {
                let before = self.expand(left, before, evaluation, outer, applied.as_deref_mut())?;
                for row in before {
                    let width = row.len();
                    let mut matches = self.expand(right, vec![row.clone()], evaluation, outer, None)?;
                    if let Some(on) = on {
                        filter(&mut matches, on, evaluation, outer)?;
                    }
                    if matches.is_empty() && *is_outer {
                        let mut alone = row;
                        alone.resize(width + right.width(), Datum::NULL);
                        matches.push(alone);
                    }
                    rows.extend(matches);
                }
            }
            From::Relation(relation) => {
                let all = evaluation.relation(relation);
                for row in &before {
                    evaluation.step(all.len() as u64)?;
                    rows.extend(all.iter().map(|more| joined(row, more)));
                }
            }
            From::Derived { plan, lateral: false } => {
                let all = plan.run(evaluation, outer)?;
                for row in &before {
                    evaluation.step(all.len() as u64)?;
                    rows.extend(all.iter().map(|more| joined(row, more)));
                }
            }
            From::Derived { plan, lateral: true } => {
                for row in &before {
                    let frame = Frame { row, group: None, numbers: &[], outer };
                    rows.extend(plan.run(evaluation, Some(&frame))?.iter().map(|more| joined(row, more)));
                }
            }
            From::Function { node, kind } => {
                for row in &before {
                    let frame = Frame { row, group: None, numbers: &[], outer };
                    if let (Some(elements), SetFunction::Unnest) =
                        (elements(node.eval(evaluation, &frame)?), kind)
                    {
                        evaluation.step(elements.len() as u64)?;
                        rows.extend(
                            elements.iter().map(|element| joined(row, std::slice::from_ref(element))),
                        );
                    }
                }
            }
        }
        let width = rows.first().map_or(0, Vec::len);
        if let Some(applied) = applied {
            for (index, (conjunct, needs)) in self.conjuncts.iter().enumerate() {
                if !applied[index] && needs.is_some_and(|needs| needs <= width) {
                    filter(&mut rows, conjunct, evaluation, outer)?;
                    applied[index] = true;
                }
            }
        }
        Ok(rows)
    }
}

fn joined(row: &[Datum], more: &[Datum]) -> Vec<Datum> {
    row.iter().chain(more).cloned().collect()
}

fn filter(
    rows: &mut Rows,
    condition: &Node,
    evaluation: &Evaluation<'_>,
    outer: Option<&Frame<'_>>,
) -> Result<()> {
    let mut failed = None;
    rows.retain(|row| {
        if failed.is_some() {
            return false;
        }
        match condition.eval(evaluation, &Frame { row, group: None, numbers: &[], outer }) {
            Ok(datum) => datum.truth() == Some(true),
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    });
    failed.map_or(Ok(()), Err)
}

impl Evaluation<'_> {
    fn relation(&self, relation: &'static Relation) -> Rc<Rows> {
        self.relations
            .borrow_mut()
            .entry(relation.oid)
            .or_insert_with(|| Rc::new(relation.rows(self.world)))
            .clone()
    }

    /// Counts work; a query that goes through too much of it is stopped rather than holding a thread.
    fn step(&self, count: u64) -> Result<()> {
        let mut steps = self.steps.borrow_mut();
        *steps += count;
        if *steps > STEPS_MAX {
            return Err(SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, "the query of the catalog is too large")
                .detail(format!("It went through more than {STEPS_MAX} rows.")));
        }
        Ok(())
    }

    fn matches(&self, text: &str, pattern: &str, insensitive: bool) -> Result<bool> {
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

impl Node {
    /// Its value in a row.
    pub(super) fn eval(&self, evaluation: &Evaluation<'_>, frame: &Frame<'_>) -> Result<Datum> {
        let eval = |node: &Node| node.eval(evaluation, frame);
        Ok(match self {
            Node::Constant(datum) => datum.clone(),
            Node::Parameter(number) => Datum::Value(evaluation.world.arguments.value(*number)),
            Node::Column { level, index } => {
                let mut frame = frame;
                for _ in 0..*level {
                    frame = frame.outer.expect("the binder counted the levels");
                }
                frame.row.get(*index).cloned().unwrap_or(Datum::NULL)
            }
            Node::And(a, b) => match eval(a)?.truth() {
                Some(false) => Datum::bool(false),
                a => match (a, eval(b)?.truth()) {
                    (_, Some(false)) => Datum::bool(false),
                    (Some(true), Some(true)) => Datum::bool(true),
                    _ => Datum::NULL,
                },
            },
            Node::Or(a, b) => match eval(a)?.truth() {
                Some(true) => Datum::bool(true),
                a => match (a, eval(b)?.truth()) {
                    (_, Some(true)) => Datum::bool(true),
                    (Some(false), Some(false)) => Datum::bool(false),
                    _ => Datum::NULL,
                },
            },
            Node::Not(a) => eval(a)?.truth().map_or(Datum::NULL, |truth| Datum::bool(!truth)),
            Node::IsNull(a) => Datum::bool(eval(a)?.is_null()),
            Node::Distinct(a, b) => {
                let (a, b) = (eval(a)?, eval(b)?);
                Datum::bool(a.order(&b).is_ne())
            }
            Node::Binary(op, a, b) => binary(*op, eval(a)?, eval(b)?)?,
            Node::Negate(a) => binary(Binary::Subtract, Datum::int8(0), eval(a)?)?,
            Node::Match { text, pattern, insensitive } => {
                match (eval(text)?.to_text(), eval(pattern)?.to_text()) {
                    (Some(text), Some(pattern)) => {
                        Datum::bool(evaluation.matches(&text, &pattern, *insensitive)?)
                    }
                    _ => Datum::NULL,
                }
            }
            Node::Like { text, pattern, escape, insensitive } => {
                match (eval(text)?.to_text(), eval(pattern)?.to_text()) {
                    (Some(text), Some(pattern)) => {
                        let like = Expr::Like {
                            text: Box::new(Expr::Constant(Value::text_of(text), Type::Text)),
                            pattern: Box::new(Expr::Constant(Value::text_of(pattern), Type::Text)),
                            escape: *escape,
                            case_insensitive: *insensitive,
                        };
                        Datum::Value(quorate_table::eval::eval(&like, &[])?)
                    }
                    _ => Datum::NULL,
                }
            }
            Node::In(subject, list) => {
                let subject = eval(subject)?;
                let items = list.iter().map(eval).collect::<Result<Vec<_>>>()?;
                any(&subject, Binary::Equal, &items, false)?
            }
            Node::Case { subject, branches, otherwise } => {
                let subject = match subject {
                    Some(subject) => Some(eval(subject)?),
                    None => None,
                };
                for (condition, result) in branches {
                    let condition = eval(condition)?;
                    let chosen = match &subject {
                        None => condition.truth() == Some(true),
                        Some(subject) => {
                            binary(Binary::Equal, subject.clone(), condition)?.truth() == Some(true)
                        }
                    };
                    if chosen {
                        return eval(result);
                    }
                }
                match otherwise {
                    Some(otherwise) => eval(otherwise)?,
                    None => Datum::NULL,
                }
            }
            Node::Any { left, op, right, all } => match elements(eval(right)?) {
                None => Datum::NULL,
                Some(items) => any(&eval(left)?, *op, &items, *all)?,
            },
            Node::Array(nodes) => Datum::array(nodes.iter().map(eval).collect::<Result<_>>()?),
            Node::Element(array, index) => {
                let items = elements(eval(array)?).unwrap_or_default();
                let index = eval(index)?.integer().and_then(|index| usize::try_from(index - 1).ok());
                index.and_then(|index| items.get(index).cloned()).unwrap_or(Datum::NULL)
            }
            Node::Field(record, place) => match eval(record)? {
                Datum::Record(fields) => fields.get(*place).cloned().unwrap_or(Datum::NULL),
                _ => Datum::NULL,
            },
            Node::Cast(inner, from, to) => functions::cast(eval(inner)?, *from, *to, evaluation.world)?,
            Node::Call(builtin, arguments) => {
                let arguments = arguments.iter().map(eval).collect::<Result<Vec<_>>>()?;
                functions::call(*builtin, &arguments, evaluation.world)?
            }
            Node::Scalar(plan) => {
                let mut rows = plan.run(evaluation, Some(frame))?;
                if rows.len() > 1 {
                    return Err(SqlError::new(
                        code::CARDINALITY_VIOLATION,
                        "more than one row returned by a subquery used as an expression",
                    ));
                }
                rows.pop().and_then(|mut row| row.pop()).unwrap_or(Datum::NULL)
            }
            Node::Exists(plan) => Datum::bool(!plan.run(evaluation, Some(frame))?.is_empty()),
            Node::InQuery(subject, plan) => {
                let subject = eval(subject)?;
                let items: Vec<Datum> =
                    plan.run(evaluation, Some(frame))?.into_iter().filter_map(|mut row| row.pop()).collect();
                any(&subject, Binary::Equal, &items, false)?
            }
            Node::ArrayOf(plan) => Datum::array(
                plan.run(evaluation, Some(frame))?.into_iter().filter_map(|mut row| row.pop()).collect(),
            ),
            Node::Aggregate(aggregate) => aggregate.eval(evaluation, frame)?,
            Node::Number(window) => {
                frame.numbers.get(*window).map_or(Datum::NULL, |number| Datum::int8(*number))
            }
        })
    }
}

/// The elements of an array, or of an array's text.
pub(super) fn elements(datum: Datum) -> Option<Vec<Datum>> {
    match datum {
        Datum::Array(elements) => Some(elements.to_vec()),
        Datum::Value(Value::Text(text)) => Some(
            array_elements(&text)
                .into_iter()
                .map(|element| match element {
                    None => Datum::NULL,
                    Some(text) => match text.parse::<i64>() {
                        Ok(number) => Datum::int8(number),
                        Err(_) => Datum::text(text),
                    },
                })
                .collect(),
        ),
        Datum::Value(_) | Datum::Record(_) => None,
    }
}

/// `left op ANY (items)`, or ALL.
fn any(left: &Datum, op: Binary, items: &[Datum], all: bool) -> Result<Datum> {
    let mut unknown = false;
    for item in items {
        match binary(op, left.clone(), item.clone())?.truth() {
            Some(truth) if truth != all => return Ok(Datum::bool(truth)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown { Datum::NULL } else { Datum::bool(all) })
}

/// An operator on values whose types are known only now: numbers meet at the wider type.
fn binary(op: Binary, a: Datum, b: Datum) -> Result<Datum> {
    if a.is_null() || b.is_null() {
        return Ok(Datum::NULL);
    }
    if op.is_comparison() {
        let (a, b) = alike(a, b);
        let ordering = a.order(&b);
        return Ok(Datum::bool(match op {
            Binary::Equal => ordering.is_eq(),
            Binary::NotEqual => ordering.is_ne(),
            Binary::Less => ordering.is_lt(),
            Binary::LessEqual => ordering.is_le(),
            Binary::Greater => ordering.is_gt(),
            _ => ordering.is_ge(),
        }));
    }
    match (op, a, b) {
        (Binary::Concat, Datum::Array(a), Datum::Array(b)) => {
            Ok(Datum::array(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Binary::Concat, a, b) => {
            Ok(Datum::text(a.to_text().unwrap_or_default() + &b.to_text().unwrap_or_default()))
        }
        (op, Datum::Value(a), Datum::Value(b)) => {
            let ty = match (a.ty(), b.ty()) {
                (Some(a), Some(b)) => crate::sql::coerce::wider(a, b),
                _ => None,
            };
            let Some(ty) = ty.filter(|ty| ty.is_number()) else {
                return Err(SqlError::unsupported("this arithmetic in a query of the catalog"));
            };
            let operand = |value: Value| {
                let from = value.ty().expect("no NULL comes here");
                Expr::Cast(Box::new(Expr::Constant(value, from)), ty)
            };
            Ok(Datum::Value(eval(&Expr::binary(op, operand(a), operand(b)), &[])?))
        }
        _ => Err(SqlError::unsupported("arithmetic on arrays or records")),
    }
}

/// A number or boolean meets its text as what it is.
fn alike(a: Datum, b: Datum) -> (Datum, Datum) {
    let parsed = |text: &str, like: &Value| {
        quorate_table::text::parse_text(like.ty().unwrap_or(Type::Text), text).ok().map(Datum::Value)
    };
    match (&a, &b) {
        (Datum::Value(Value::Text(text)), Datum::Value(value)) if value.ty() != Some(Type::Text) => {
            match parsed(text, value) {
                Some(parsed) => (parsed, b),
                None => (a, b),
            }
        }
        (Datum::Value(value), Datum::Value(Value::Text(text))) if value.ty() != Some(Type::Text) => {
            match parsed(text, value) {
                Some(parsed) => (a, parsed),
                None => (a, b),
            }
        }
        _ => (a, b),
    }
}

impl Aggregate {
    fn eval(&self, evaluation: &Evaluation<'_>, frame: &Frame<'_>) -> Result<Datum> {
        let group = frame.group.unwrap_or(&[]);
        let mut inputs: Vec<(Vec<Datum>, Vec<Datum>)> = Vec::with_capacity(group.len());
        for row in group {
            let frame = Frame { row, group: None, numbers: &[], outer: frame.outer };
            let arguments: Vec<Datum> =
                self.arguments.iter().map(|node| node.eval(evaluation, &frame)).collect::<Result<_>>()?;
            let keys: Vec<Datum> =
                self.order.iter().map(|(node, _)| node.eval(evaluation, &frame)).collect::<Result<_>>()?;
            inputs.push((keys, arguments));
        }
        if !self.order.is_empty() {
            let order = descending(&self.order);
            inputs.sort_by(|(a, _), (b, _)| compare(&order, a, b));
        }
        let mut inputs: Rows = inputs.into_iter().map(|(_, arguments)| arguments).collect();
        if self.distinct {
            distinct(&mut inputs, 1);
        }
        let first = |row: &Vec<Datum>| row.first().cloned().unwrap_or(Datum::bool(true));
        if self.function == AggregateFunction::Array {
            let items: Vec<Datum> = inputs.iter().map(first).collect();
            return Ok(if items.is_empty() { Datum::NULL } else { Datum::array(items) });
        }
        inputs.retain(|row| row.first().is_none_or(|datum| !datum.is_null()));
        Ok(match self.function {
            AggregateFunction::Count => Datum::int8(inputs.len() as i64),
            AggregateFunction::Min => inputs.iter().map(first).min_by(Datum::order).unwrap_or(Datum::NULL),
            AggregateFunction::Max => inputs.iter().map(first).max_by(Datum::order).unwrap_or(Datum::NULL),
            AggregateFunction::Sum => {
                let mut sum = Datum::NULL;
                for item in inputs.iter().map(first) {
                    sum = if sum.is_null() { item } else { binary(Binary::Add, sum, item)? };
                }
                sum
            }
            AggregateFunction::String => {
                let mut text: Option<String> = None;
                for row in &inputs {
                    let item = row.first().and_then(Datum::to_text).unwrap_or_default();
                    let separator = row.get(1).and_then(Datum::to_text).unwrap_or_default();
                    text = Some(match text {
                        None => item,
                        Some(so_far) => so_far + &separator + &item,
                    });
                }
                text.map_or(Datum::NULL, Datum::text)
            }
            AggregateFunction::And | AggregateFunction::Or => {
                let any = self.function == AggregateFunction::Or;
                match inputs.is_empty() {
                    true => Datum::NULL,
                    false => {
                        let found = inputs.iter().map(first).any(|datum| datum.truth() == Some(any));
                        Datum::bool(found == any)
                    }
                }
            }
            AggregateFunction::Array => unreachable!("answered above"),
        })
    }
}

//! Translates the packed operations of a key into a search with the model that fits these operations.

use crate::history::{FOREVER, Family, KeyHistory, KeyStep, NOTHING, ValueId, Verb};
use crate::model::{
    List, ListOperation, Queue, QueueOperation, Register, RegisterOperation, Set, SetOperation, Text,
    TextOperation,
};
use crate::operation::Value;
use crate::search::{Model, Search, SearchAnswer, Timed};

/// A search with any model. The trait hides the type of the model.
pub(crate) trait Decide: Send {
    fn advance(&mut self, steps: u64) -> SearchAnswer;
}

impl<M> Decide for Search<M>
where
    M: Model<State: Send, Operation: Send> + Send,
{
    fn advance(&mut self, steps: u64) -> SearchAnswer {
        Search::advance(self, steps)
    }
}

/// Returns the search for a key, with the model of the key's kind of object.
pub(crate) fn search(key: &KeyHistory) -> Box<dyn Decide> {
    match key.family() {
        Family::Register => with(Register, key, register),
        Family::Text => with(Text { longest: longest_text(key) }, key, |step| text(key, step)),
        Family::List => with(List { longest: longest_list(key) }, key, |step| list(key, step)),
        Family::Set => with(Set, key, |step| set(key, step)),
        Family::Queue => with(Queue, key, queue),
    }
}

fn with<M>(model: M, key: &KeyHistory, translate: impl Fn(&KeyStep) -> M::Operation) -> Box<dyn Decide>
where
    M: Model<State: Send, Operation: Send> + Send + 'static,
{
    let timed = |step: &KeyStep| Timed {
        start: step.start,
        finish: (step.finish != FOREVER).then_some(step.finish),
        operation: translate(step),
    };
    Box::new(Search::new(model, key.steps.iter().map(timed).collect()))
}

fn register(step: &KeyStep) -> RegisterOperation {
    match step.verb {
        Verb::Read => RegisterOperation::Read(step.value),
        Verb::Write => RegisterOperation::Write(step.value),
        Verb::Cas | Verb::CasUnknown => RegisterOperation::Cas { expected: step.other, new: step.value },
        Verb::CasRefused => RegisterOperation::Differs(step.other),
        other => unreachable!("a register has no operation {other:?}"),
    }
}

/// Returns the reads of a key that only grows. Returns no reads if some write replaced the whole value.
fn answers(key: &KeyHistory) -> impl Iterator<Item = &KeyStep> {
    let grows = key.steps.iter().all(|step| step.verb != Verb::Write);
    key.steps.iter().filter(move |step| grows && step.verb == Verb::Read)
}

fn longest_text(key: &KeyHistory) -> Box<str> {
    let texts = answers(key).filter_map(|step| key.value(step.value)).map(Value::to_string);
    texts.max_by_key(String::len).unwrap_or_default().into()
}

fn longest_list(key: &KeyHistory) -> Box<[ValueId]> {
    let lists = answers(key).map(|step| elements(key, step.value).collect::<Vec<_>>());
    lists.max_by_key(Vec::len).unwrap_or_default().into()
}

fn text(key: &KeyHistory, step: &KeyStep) -> TextOperation {
    let text = key.value(step.value).map_or_else(String::new, Value::to_string).into();
    match step.verb {
        Verb::Read => TextOperation::Read(text),
        Verb::Write => TextOperation::Write(text),
        Verb::Append => TextOperation::Append(text),
        other => unreachable!("a text has no operation {other:?}"),
    }
}

fn list(key: &KeyHistory, step: &KeyStep) -> ListOperation {
    match step.verb {
        Verb::Read => ListOperation::Read(elements(key, step.value).collect()),
        Verb::Write => ListOperation::Write(elements(key, step.value).collect()),
        Verb::Append => ListOperation::Append(step.value),
        other => unreachable!("a list has no operation {other:?}"),
    }
}

fn set(key: &KeyHistory, step: &KeyStep) -> SetOperation {
    match step.verb {
        Verb::Read => {
            let mut values: Vec<ValueId> = elements(key, step.value).collect();
            values.sort_unstable();
            SetOperation::Read(values.into())
        }
        Verb::Add => SetOperation::Add(step.value),
        Verb::Remove => SetOperation::Remove(step.value),
        other => unreachable!("a set has no operation {other:?}"),
    }
}

fn queue(step: &KeyStep) -> QueueOperation {
    match step.verb {
        Verb::Enqueue => QueueOperation::Enqueue(step.value),
        Verb::Dequeue if step.value == NOTHING => QueueOperation::DequeueNothing,
        Verb::Dequeue => QueueOperation::Dequeue(step.value),
        Verb::DequeueUnknown => QueueOperation::DequeueUnknown,
        other => unreachable!("a queue has no operation {other:?}"),
    }
}

/// Returns the numbers of a list's values. A value that no operation wrote gets `ValueId::MAX`, which no
/// written value has.
fn elements(key: &KeyHistory, list: ValueId) -> impl Iterator<Item = ValueId> {
    let values: &[Value] = match key.value(list) {
        None => &[],
        Some(Value::List(values)) => values,
        Some(single @ Value::Text(_)) => std::slice::from_ref(single),
    };
    values.iter().map(|value| key.number_if_known(value).unwrap_or(ValueId::MAX))
}

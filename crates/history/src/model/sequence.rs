//! Objects that clients append to: a list of values, or a text.
//!
//! If no operation replaces the whole value, the value only grows. Until the longest answer is reached, the
//! value must then be a prefix of that answer, which leaves the search hardly any choice.

use crate::search::Model;

/// An operation on a list, with its answer. Values are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListOperation {
    /// A read that returned this list.
    Read(Box<[u32]>),
    /// An append of this value.
    Append(u32),
    /// A write that replaces the whole list. A delete writes an empty list.
    Write(Box<[u32]>),
}

/// The model of a list that is empty at first.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// The longest list that a read returned. Empty if some write replaced the whole list.
    pub longest: Box<[u32]>,
}

impl Model for List {
    type State = Box<[u32]>;
    type Operation = ListOperation;

    fn initial(&self) -> Box<[u32]> {
        [].into()
    }

    fn apply(&self, state: &Box<[u32]>, operation: &ListOperation) -> Option<Box<[u32]>> {
        match operation {
            ListOperation::Read(values) => (values == state).then(|| state.clone()),
            ListOperation::Append(value) => {
                let longer: Box<[u32]> = state.iter().copied().chain([*value]).collect();
                let leads_there = state.len() >= self.longest.len() || self.longest.starts_with(&longer);
                leads_there.then_some(longer)
            }
            ListOperation::Write(values) => Some(values.clone()),
        }
    }

    fn is_read(&self, operation: &ListOperation) -> bool {
        matches!(operation, ListOperation::Read(_))
    }
}

/// An operation on a text, with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextOperation {
    /// A read that returned this text.
    Read(Box<str>),
    /// An append of this text.
    Append(Box<str>),
    /// A write that replaces the whole text.
    Write(Box<str>),
}

/// The model of a text that is empty at first.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// The longest text that a read returned. Empty if some write replaced the whole text.
    pub longest: Box<str>,
}

impl Model for Text {
    type State = Box<str>;
    type Operation = TextOperation;

    fn initial(&self) -> Box<str> {
        "".into()
    }

    fn apply(&self, state: &Box<str>, operation: &TextOperation) -> Option<Box<str>> {
        match operation {
            TextOperation::Read(text) => (text == state).then(|| state.clone()),
            TextOperation::Append(text) => {
                let longer: Box<str> = [&**state, text].concat().into();
                let leads_there = state.len() >= self.longest.len() || self.longest.starts_with(&*longer);
                leads_there.then_some(longer)
            }
            TextOperation::Write(text) => Some(text.clone()),
        }
    }

    fn is_read(&self, operation: &TextOperation) -> bool {
        matches!(operation, TextOperation::Read(_))
    }
}

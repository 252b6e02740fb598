//! What can be appended to: a list of values, or a text.
//!
//! Where nothing is ever replaced, what a key holds only grows. Then it is a prefix of the longest answer for as long as that is
//! to come, which leaves the search hardly a choice.

use crate::search::Model;

/// What a list is asked. Values are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListOperation {
    /// It returned this list.
    Read(Box<[u32]>),
    /// Append this.
    Append(u32),
    /// Replace the whole list; a delete leaves an empty one.
    Write(Box<[u32]>),
}

/// A list, empty at first.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// The longest list that was returned, if nothing was ever replaced.
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

/// What a text is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextOperation {
    /// It returned this.
    Read(Box<str>),
    /// Append this.
    Append(Box<str>),
    /// Replace it all.
    Write(Box<str>),
}

/// A text, empty at first.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// The longest text that was returned, if nothing was ever replaced.
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

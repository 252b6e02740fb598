//! What can be appended to: a list of values, or a text.

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
#[derive(Clone, Copy, Debug, Default)]
pub struct List;

impl Model for List {
    type State = Box<[u32]>;
    type Operation = ListOperation;

    fn initial(&self) -> Box<[u32]> {
        [].into()
    }

    fn apply(&self, state: &Box<[u32]>, operation: &ListOperation) -> Option<Box<[u32]>> {
        match operation {
            ListOperation::Read(values) => (values == state).then(|| state.clone()),
            ListOperation::Append(value) => Some(state.iter().copied().chain([*value]).collect()),
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
#[derive(Clone, Copy, Debug, Default)]
pub struct Text;

impl Model for Text {
    type State = Box<str>;
    type Operation = TextOperation;

    fn initial(&self) -> Box<str> {
        "".into()
    }

    fn apply(&self, state: &Box<str>, operation: &TextOperation) -> Option<Box<str>> {
        match operation {
            TextOperation::Read(text) => (text == state).then(|| state.clone()),
            TextOperation::Append(text) => Some([&**state, text].concat().into()),
            TextOperation::Write(text) => Some(text.clone()),
        }
    }

    fn is_read(&self, operation: &TextOperation) -> bool {
        matches!(operation, TextOperation::Read(_))
    }
}

//! A [`Figure`] is an experiment, and a [`Panel`] one of its drawings.

use anyhow::Result;

use crate::{Running, Setting, claim::Claim, record::Record};

/// An experiment.
pub trait Figure: Sync {
    /// Returns the figure's id, `SOURCE/FIGURE`.
    fn id(&self) -> &'static str;
    /// Returns the figure's title.
    fn title(&self) -> &'static str;
    /// Returns the figure's section in the source.
    fn section(&self) -> &'static str;
    /// Returns the method, and the differences from the source's.
    fn method(&self) -> &'static str;
    /// Returns the source's claims.
    fn claims(&self) -> &'static [Claim];
    /// Runs the experiment once.
    fn run(&self, setting: &Setting) -> Result<Record>;
    /// Whether the experiment can run on this store; the error gives the reason if not.
    fn takes(&self, running: &Running) -> Result<(), &'static str> {
        match running.store {
            None => Ok(()),
            Some(_) => {
                Err("this figure runs only on processes that the lab starts itself; leave out --store")
            }
        }
    }
    /// Returns the drawings.
    fn panels(&self) -> &'static [Panel];
}

/// A drawing of a figure.
pub struct Panel {
    /// The prefix, before a slash, of the series in [`Record::series`] that are drawn; all series if empty.
    pub of: &'static str,
    /// The label of the first axis.
    pub across: &'static str,
    /// The label of the axis of values.
    pub up: &'static str,
    /// The form of the drawing.
    pub form: Form,
}

/// The form in which series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for each series, with errors where the record has them.
    Curves,
    /// A box for each series, on a logarithmic scale.
    Boxes,
}

impl Panel {
    /// Returns a panel that draws all series as lines.
    pub(super) const fn curves(across: &'static str, up: &'static str) -> Panel {
        Panel { of: "", across, up, form: Form::Curves }
    }
}

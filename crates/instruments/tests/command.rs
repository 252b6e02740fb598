//! Runs the instruments.

use std::process::{Command, Output, Stdio};

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the program with these arguments until it ends.
pub(crate) fn run(arguments: &[&str]) -> CommandOutput {
    let program = env!("CARGO_BIN_EXE_quorate-instruments");
    CommandOutput::of(Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap())
}

/// A reader may close the output early: `quorate lab list | head -3`.
#[test]
fn a_closed_output_pipe_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let program = env!("CARGO_BIN_EXE_quorate-instruments");
    let output = Command::new(program).args(["lab", "list"]).stdin(Stdio::null()).stdout(writer).output();
    let output = CommandOutput::of(output.unwrap());
    assert!(output.code == Some(0) && output.err.is_empty(), "{output:?}");
}

impl CommandOutput {
    fn of(output: Output) -> CommandOutput {
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Checks that the program failed with this exit code and this message.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, because: &str) {
        assert!(self.code == Some(code) && self.err.contains(because), "not {because:?}: {self:?}");
    }
}

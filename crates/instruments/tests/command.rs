//! Runs the instruments.

use std::process::{Command, Output, Stdio};

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command with these words to its end.
pub(crate) fn run(words: &[&str]) -> Said {
    let program = env!("CARGO_BIN_EXE_quorate-instruments");
    Said::of(Command::new(program).args(words).stdin(Stdio::null()).output().unwrap())
}

/// A reader of a program's output may have seen enough: `quorate lab list | head -3`.
#[test]
fn output_that_nobody_reads_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let program = env!("CARGO_BIN_EXE_quorate-instruments");
    let said = Command::new(program).args(["lab", "list"]).stdin(Stdio::null()).stdout(writer).output();
    let said = Said::of(said.unwrap());
    assert!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
}

impl Said {
    fn of(output: Output) -> Said {
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// It failed, with this exit code and saying this.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, because: &str) {
        assert!(self.code == Some(code) && self.err.contains(because), "not {because:?}: {self:?}");
    }
}

//! Scripts. Below each step a script holds the trace of that step. `UPDATE_SCRIPTS=1` rewrites the traces.
//! Commit such changes only if you understand what caused them.

use std::{fmt::Write as _, path::PathBuf};

/// Performs the steps of a script, each of which returns its trace, and compares the traces with the script.
#[expect(clippy::disallowed_methods, reason = "the environment says whether to write the scripts anew")]
pub(crate) fn check(world: &str, script: &str, mut perform: impl FnMut(&str) -> String) {
    let path = path(world, script);
    let text = text(world, script);
    let mut rendered = String::new();
    for line in text.lines() {
        if line.starts_with('#') || line.is_empty() && rendered.ends_with('\n') {
            writeln!(rendered, "{line}").expect("strings take everything");
        }
        if let Some(step) = line.strip_prefix("> ") {
            let trace = perform(step);
            writeln!(rendered, "> {step}\n{}", trace.trim_end()).expect("strings take everything");
        }
    }
    let rendered = rendered.replace("\n\n\n", "\n\n");
    if std::env::var_os("UPDATE_SCRIPTS").is_some() {
        std::fs::write(&path, &rendered).expect("the script can be written");
    } else if rendered != text {
        let differing = rendered.lines().zip(text.lines()).position(|(a, b)| a != b);
        panic!("{script}: from line {:?} on it went otherwise:\n{rendered}", differing.map(|line| line + 1));
    }
}

/// Returns the text of a script.
pub(crate) fn text(world: &str, script: &str) -> String {
    std::fs::read_to_string(path(world, script)).expect("the script is there")
}

fn path(world: &str, script: &str) -> PathBuf {
    PathBuf::from("tests").join(world).join(format!("scripts/{script}.txt"))
}

/// Defines a test for each script of a world.
macro_rules! scripts {
    ($check:ident: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            $check(stringify!($name));
        })*
    };
}

pub(crate) use scripts;

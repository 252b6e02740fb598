//! The quorate command.

fn main() {}

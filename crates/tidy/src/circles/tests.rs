//! Tests the circles of small crates.

use std::path::PathBuf;

use super::findings;
use crate::texts::Text;

/// Returns the files of a library by name, each with its text.
fn texts(files: &[(&str, &str)]) -> Vec<Text> {
    let text = |(path, content): &(&str, &str)| Text {
        path: PathBuf::from(format!("crates/x/src/{path}")),
        content: (*content).to_owned(),
    };
    files.iter().map(text).collect()
}

/// Checks the circles of a library. `expected` lists their references as `from → to: names`.
#[track_caller]
fn check(files: &[(&str, &str)], expected: &[&str]) {
    let findings = findings(&texts(files));
    let edges = findings.iter().flat_map(|finding| finding.lines().skip(1).map(str::trim));
    assert_eq!(edges.collect::<Vec<_>>(), expected, "{findings:#?}");
}

#[test]
fn two_files_that_name_each_other_form_a_circle() {
    let root = ("lib.rs", "mod a; mod b;");
    let down = ("b.rs", "pub struct B;");
    check(&[root, ("a.rs", "use crate::b::B; pub struct A;"), down], &[]);
    let up = ("b.rs", "pub struct B { a: super::a::A }");
    let circle = ["a.rs → b.rs: B", "b.rs → a.rs: A"];
    check(&[root, ("a.rs", "use crate::b::B; pub struct A;"), up], &circle);
    check(&[root, ("a.rs", "pub struct A; fn f() { vec![crate::b::B::new()] }"), up], &circle);
    check(&[root, ("a.rs", "use crate::b; pub struct A; fn f() -> b::B {}"), up], &circle);
    check(&[root, ("a.rs", "use crate::b; pub struct A;"), up], &[]);
}

#[test]
fn a_circle_leads_through_any_number_of_files() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::a::A; pub struct C;"),
        ("d.rs", "use crate::a::A;"),
    ];
    check(&files, &["a.rs → b.rs: B", "b.rs → c.rs: C", "c.rs → a.rs: A"]);
}

#[test]
fn a_facade_stands_in_no_circle() {
    let a = ("p/a.rs", "use super::B; pub struct A;");
    let b = ("p/b.rs", "pub struct B;");
    check(&[("lib.rs", "mod p;"), ("p/mod.rs", "mod a; mod b; pub use a::A; pub use b::B;"), a, b], &[]);
    // A name that is imported from a module leads to the file that defines the name.
    let up = ("p/b.rs", "use crate::p::A; pub struct B;");
    check(
        &[("lib.rs", "mod p;"), ("p.rs", "mod a; mod b; pub(crate) use self::{a::A, b::*};"), a, up],
        &["p/a.rs → p/b.rs: B", "p/b.rs → p/a.rs: A"],
    );
}

#[test]
fn a_parent_that_uses_what_its_children_define_may_define_nothing_for_them() {
    let child = ("p/a.rs", "use super::Shared; pub struct A;");
    let circle = ["p/a.rs → p/mod.rs: Shared", "p/mod.rs → p/a.rs: A"];
    let parent = "mod a; pub struct Shared;";
    check(&[("lib.rs", "mod p;"), ("p/mod.rs", parent), child], &[]);
    let parent = "mod a; pub use a::A; pub struct Shared;";
    check(&[("lib.rs", "mod p;"), ("p/mod.rs", parent), child], &[]);
    let parent = "mod a; pub use a::A; pub struct Shared; fn f(a: A) {}";
    check(&[("lib.rs", "mod p;"), ("p/mod.rs", parent), child], &circle);
    let parent = "mod a; pub struct Shared; fn f(a: a::A) {}";
    check(&[("lib.rs", "mod p;"), ("p/mod.rs", parent), child], &circle);
}

#[test]
fn names_resolve_through_aliases_and_globs() {
    let circle = ["a.rs → b.rs: B", "b.rs → a.rs: A"];
    let b = ("b.rs", "use crate::a::A; pub struct B; pub enum E { B }");
    let root = ("lib.rs", "mod a; mod b; pub use b::B as Other;");
    check(
        &[root, ("a.rs", "use crate::Other as Third; pub struct A;"), b],
        &["a.rs → b.rs: Other", circle[1]],
    );
    check(&[root, ("a.rs", "use crate::b::*; pub struct A(B);"), b], &circle);
    check(&[root, ("a.rs", "use crate::b::*; pub struct A; struct B; fn f(b: B) {}"), b], &[]);
    check(&[root, ("a.rs", "use crate::b::{self as c}; pub struct A; fn f() { c::B::f() }"), b], &circle);
    // The search ends, although each module imports all names of the other.
    let glob = ("b.rs", "use crate::a::*; pub struct B;");
    check(&[root, ("a.rs", "use super::b::*; pub struct A; fn f() { g() }"), glob], &[]);
}

#[test]
fn what_is_no_code_of_the_crate_does_not_count() {
    let root = ("lib.rs", "mod a; mod b;");
    let b = ("b.rs", "use crate::a::A; pub struct B;");
    for a in [
        "pub struct A; // crate::b::B",
        "/// See [`crate::b::B`].\npub struct A;",
        "pub struct A; const S: &str = \"crate::b::B\";",
        "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        "pub struct A; #[cfg(test)] use crate::b::B; fn f<'a>() {}",
        "pub struct A; impl A { #[cfg(test)] fn f<X, Y>(x: crate::b::B) { crate::b::B; } }",
        "use b::B; pub struct A;",
        "pub struct A; fn f(x: X) { x.b.B.f(::b::B) }",
    ] {
        check(&[root, ("a.rs", a), b], &[]);
    }
    let tests = ("a.rs", "pub struct A; #[cfg(test)] mod tests;");
    check(&[root, tests, ("a/tests.rs", "use crate::b::B;"), b], &[]);
}

#[test]
fn a_module_within_a_file_belongs_to_the_file() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub mod inner { pub struct A; fn f() { super::super::b::f() } }"),
        ("b.rs", "pub fn f() -> crate::a::inner::A {}"),
    ];
    check(&files, &["a.rs → b.rs: f", "b.rs → a.rs: A"]);
}

#[test]
fn a_program_and_a_library_are_two_trees() {
    let files = [
        ("lib.rs", "pub mod a;"),
        ("a.rs", "pub struct A;"),
        ("main.rs", "mod b; use x::a::A; pub struct M;"),
    ];
    let b = ("b.rs", "pub struct B;");
    check(&[&files[..], &[b]].concat(), &[]);
    let files = [("main.rs", "mod b; use b::B; pub struct M;"), ("b.rs", "use crate::M; pub struct B;")];
    check(&files, &["b.rs → main.rs: M", "main.rs → b.rs: B"]);
}

#[test]
fn broken_sources_are_findings() {
    let missing = findings(&texts(&[("lib.rs", "mod a;")]));
    assert!(missing[0].contains("declares the module a, which has no file"), "{missing:?}");
    let broken = findings(&texts(&[("lib.rs", "fn f( {")]));
    assert!(broken[0].contains("is not Rust"), "{broken:?}");
}

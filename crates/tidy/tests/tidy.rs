//! The workspace keeps its rules, and each rule notices a breach.

use std::fs;

use quorate_tidy::{
    Dependency, Findings, Package, Workspace, bounds, circles, comments, floors, lints, names, origin, stage,
    texts,
};

#[test]
fn the_house_is_tidy() {
    let workspace = Workspace::read().unwrap();
    let root = &workspace.workspace_root;
    let deny = fs::read_to_string(root.join("deny.toml")).unwrap();
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let drawing = fs::read_to_string(root.join("docs/floors.svg")).unwrap();
    let files = texts::read(root).unwrap();
    assert!(workspace.members().count() >= 8 && workspace.foreigners().count() > 20 && files.len() > 40);

    let mut findings = floors::findings(&workspace);
    findings.extend(circles::findings(&files));
    findings.extend(comments::findings(&files));
    findings.extend(floors::source_findings(&files));
    findings.extend(lints::findings(&workspace).unwrap());
    findings.extend(names::findings(&files));
    findings.extend(origin::findings(&workspace, &origin::allowed(&deny).unwrap()));
    findings.extend(stage::findings(&files));
    findings.extend(texts::map_findings(&workspace, &architecture));
    findings.extend(texts::drawing_findings(&workspace, &drawing));
    findings.extend(texts::link_findings(root, &files));
    findings.extend(texts::quote_findings(&files));
    findings.extend(texts::place_findings(&files));
    findings.extend(bounds::findings(&files));
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

/// Returns a workspace of our crates with these edges, and one foreign package. The prefix `dev:` marks a
/// crate that only tests depend on.
fn workspace(edges: &[(&str, &str)], source: &str, license: &str) -> Workspace {
    let package = |name: &str| Package {
        id: name.into(),
        name: format!("quorate-{name}"),
        source: None,
        license: None,
        dependencies: edges
            .iter()
            .filter(|(from, _)| *from == name)
            .map(|(_, to)| match to.strip_prefix("dev:") {
                Some(to) => Dependency { name: format!("quorate-{to}"), kind: Some("dev".into()) },
                None => Dependency { name: format!("quorate-{to}"), kind: None },
            })
            .collect(),
        manifest_path: format!("crates/{name}/Cargo.toml").into(),
    };
    let names = ["macros", "protocol", "table", "node", "world", "runtime", "sim", "cli", "tidy", "attic"];
    let mut packages: Vec<Package> = names.map(package).into();
    packages.pop_if(|_| !edges.iter().any(|(from, to)| [*from, *to].contains(&"attic")));
    let workspace_members = packages.iter().map(|package| package.id.clone()).collect();
    packages.push(Package {
        id: "foreign".into(),
        name: "foreign".into(),
        source: Some(source.into()),
        license: Some(license.into()),
        dependencies: Vec::new(),
        manifest_path: "foreign/Cargo.toml".into(),
    });
    Workspace { packages, workspace_members, workspace_root: "".into() }
}

#[track_caller]
fn check(findings: Findings, expected: &[&str]) {
    assert_eq!(findings.len(), expected.len(), "{findings:?}");
    for (finding, part) in findings.iter().zip(expected) {
        assert!(finding.contains(part), "{finding:?} does not say {part:?}");
    }
}

#[test]
fn edges_go_down() {
    let findings = |edges: &[(&str, &str)]| floors::findings(&workspace(edges, "", ""));
    check(findings(&[("node", "protocol"), ("cli", "sim"), ("cli", "protocol")]), &[]);
    check(findings(&[("protocol", "node")]), &["protocol (floor 0) imports node (floor 1)"]);
    check(findings(&[("protocol", "macros")]), &[]);
    check(findings(&[("macros", "dev:protocol")]), &["macros (floor -1) imports protocol (floor 0)"]);
    check(findings(&[("protocol", "dev:world")]), &[]);
    check(findings(&[("protocol", "world")]), &["protocol (floor 0) imports world (floor 1)"]);
    check(findings(&[("protocol", "dev:node")]), &["protocol (floor 0) imports node (floor 1)"]);
    check(findings(&[("table", "protocol")]), &["table (floor 0) imports protocol (floor 0)"]);
    check(findings(&[("sim", "runtime")]), &["sim (floor 2) imports runtime (floor 2)"]);
    check(findings(&[("cli", "tidy")]), &["cli imports tidy, which has no floor"]);
    check(findings(&[("tidy", "table")]), &["tidy imports table, but tidy has no floor"]);
    check(findings(&[("cli", "attic")]), &["cli imports attic", "attic has no floor"]);
}

#[test]
fn dependencies_have_an_origin() {
    let allowed = origin::allowed("[licenses]\nallow = ['MIT', 'Apache-2.0 WITH LLVM-exception']").unwrap();
    let findings = |source, license| origin::findings(&workspace(&[], source, license), &allowed);
    check(findings("registry+x", "MIT"), &[]);
    check(findings("registry+x", "MIT/Apache-2.0"), &[]);
    check(findings("registry+x", "Apache-2.0 WITH LLVM-exception AND MIT"), &[]);
    check(findings("registry+x", "Apache-2.0"), &["not allowed"]);
    check(findings("registry+x", "MIT AND GPL-3.0"), &["not allowed"]);
    check(findings("registry+x", ""), &["no licence expression"]);
    check(findings("git+x", "MIT"), &["not from the registry"]);
}

#[test]
fn lints_are_the_house_s() {
    let house: toml::Table =
        "rust.unsafe_code = 'forbid'\nclippy.iter_over_hash_type = 'deny'".parse().unwrap();
    check(lints::house_findings(&house), &[]);
    check(
        lints::house_findings(&"rust.unsafe_code = 'warn'".parse().unwrap()),
        &["unsafe_code", "iter_over"],
    );

    let findings = |name, own: &str| lints::crate_findings(name, &own.parse().unwrap(), &house);
    check(findings("node", "workspace = true"), &[]);
    check(findings("node", ""), &["may hold no `unsafe`"]);
    check(findings("table", "workspace = true"), &["table: its lints"]);
    let lifted = "rust.unsafe_code = 'deny'\nclippy.undocumented_unsafe_blocks = 'deny'";
    check(findings("table", &format!("{lifted}\nclippy.iter_over_hash_type = 'deny'")), &[]);
    check(findings("table", lifted), &["table: its lints"]);
    check(findings("node", lifted), &["may hold no `unsafe`"]);

    check(lints::purity_findings("node", Some("rules"), "rules"), &[]);
    check(lints::purity_findings("node", Some("other"), "rules"), &["clippy.toml is not pure.clippy.toml"]);
    check(lints::purity_findings("node", None, "rules"), &["must link"]);
    assert!(lints::is_pure("history") && lints::is_pure("node") && !lints::is_pure("runtime"));
}

#[test]
fn texts_are_true() {
    let text = |path: &str, content: &str| texts::Text { path: path.into(), content: content.into() };
    let root = Workspace::read().unwrap().workspace_root;
    let links = text("docs/x.md", "[a](../Cargo.toml#x) [b](https://example.org) [c](#here) [d](gone.md)");
    check(texts::link_findings(&root, &[links]), &["docs/x.md: the page links to gone.md"]);
    let home = concat!("ok\nsee /", "home/me");
    check(
        texts::place_findings(&[text("a.rs", "fn main() {}"), text("b.sh", home)]),
        &["b.sh:2: the line names"],
    );
    let named = "`macros/` `protocol/` `table/` `node/` `world/` `runtime/` `sim/` `cli/`";
    check(texts::map_findings(&workspace(&[], "", ""), named), &["lacks `tidy/`"]);
    let all = workspace(&[], "", "");
    let drawn = all.members().filter(|package| package.short_name() != "tidy");
    let drawn: String = drawn.map(|package| format!(">{}</text>", package.short_name())).collect();
    check(texts::drawing_findings(&all, &drawn), &["docs/floors.svg lacks a box for tidy"]);
}

#[test]
fn quotes_are_exact() {
    let text = |path: &str, content: &str| texts::Text { path: path.into(), content: content.into() };
    let source = text("crates/a/src/b.rs", "fn f() {\n    g();\n    h();\n}\n");
    let page = |quote: &str| {
        text("docs/tour/x.md", &format!("See [b](../../crates/a/src/b.rs).\n\n```rust\n{quote}\n```\n"))
    };
    check(texts::quote_findings(&[source, page("g();\n    h();")]), &[]);
    let source = text("crates/a/src/b.rs", "fn f() {\n    g();\n}\n");
    check(
        texts::quote_findings(&[source, page("g();\nh();")]),
        &["docs/tour/x.md: no file that the page links"],
    );
    let source = || text("crates/a/src/b.rs", "fn f() {\n    g();\n    h();\n    i();\n}\n");
    let extending = |quote: &str| {
        text("docs/extending.md", &format!("See [b](../crates/a/src/b.rs).\n\n```rust\n{quote}\n```\n"))
    };
    check(texts::quote_findings(&[source(), extending("fn f() {\n    // …\n    i();")]), &[]);
    check(
        texts::quote_findings(&[source(), extending("fn f() {\n    // …\n    j();")]),
        &["docs/extending.md: no file that the page links has the quote that begins `j();`"],
    );
}

#[test]
fn comments_are_narrow_and_have_subjects() {
    let text = |content: String| texts::Text { path: "a.rs".into(), content };
    check(
        comments::findings(&[text(String::from("/// The first log entry.\nlet what = 1; // What\n"))]),
        &[],
    );
    let wide = format!("    // {}\n", "x".repeat(comments::COLUMNS_MAX));
    check(comments::findings(&[text(wide)]), &["a.rs:1: the comment is wider"]);
    let headless = String::from("/// What it held before.\n// Who asks?\n");
    check(comments::findings(&[text(headless)]), &["a.rs:1: the comment begins with a relative clause"]);
}

#[test]
fn systems_stand_on_the_stage() {
    let text = |path: &str, content: &str| texts::Text { path: path.into(), content: content.into() };
    let long = format!("impl Workload for X {{}}\n{}", "\n".repeat(200));
    let texts = [
        text("crates/sim/src/system/x.rs", &long),
        text("crates/sim/src/system/y/z.rs", "let nemesis = Nemesis::new();"),
        text("crates/sim/src/stage/play.rs", "impl Environment<P> for Play"),
    ];
    check(
        stage::findings(&texts),
        &[
            "x.rs: the entry file of a system has 201 lines",
            "z.rs: the file contains `Nemesis`, which belongs in stage.rs",
        ],
    );
}

#[test]
fn what_can_grow_has_a_bound() {
    let text = |path: &str, content: &str| texts::Text { path: path.into(), content: content.into() };
    let declared = "
/// Work.
struct Work<T: Ord> {
    /// Calls. Bounded by [`CALLS_MAX`].
    calls: VecDeque<T>,
    /// Names.
    pub(crate) names: Mutex<BTreeMap<u64, T>>,
    waiting: mpsc::Sender<T>,
    borrowed: &'static str,
    count: usize,
}

struct Set(BTreeSet<u64>);

enum Stage {
    Open { parts: HashMap<u64, u64> },
    Closed {
        kept: HashMap<u64, u64>,
    },
}

#[cfg(test)]
mod tests {
    struct Model {
        all: BTreeMap<u64, u64>,
    }
}
";
    let row = "| `node/src/x.rs` `Work::waiting` `Stage::kept` `Work::gone` | … |\n| `sim/` | a run ends |";
    let texts = [
        text("crates/node/src/x.rs", declared),
        text("crates/node/src/tests/x.rs", declared),
        text("crates/sim/src/x.rs", declared),
        text("crates/cli/src/x.rs", declared),
        text(bounds::PAGE, row),
    ];
    check(
        bounds::findings(&texts),
        &[
            "crates/node/src/x.rs:7: Work::names can grow",
            "crates/node/src/x.rs:13: Set::0 can grow",
            "crates/node/src/x.rs:16: Stage::parts can grow",
            "docs/bounds.md:1: crates/node/src/x.rs has no field Work::gone",
        ],
    );
}

#[test]
fn sources_do_not_name_what_their_tests_run_in() {
    let text = |path: &str| texts::Text { path: path.into(), content: "use quorate_world::World;".into() };
    let texts = ["crates/protocol/tests/x.rs", "crates/protocol/src/x.rs", "crates/sim/src/x.rs"].map(text);
    check(floors::source_findings(&texts), &["crates/protocol/src/x.rs: the file names quorate_world"]);
}

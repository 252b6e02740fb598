//! The workspace keeps its rules, and each rule notices when it is broken.

use std::fs;

use quorate_tidy::{Dependency, Findings, Package, Workspace, floors, lints, origin, stage, texts};

#[test]
fn the_house_is_tidy() {
    let workspace = Workspace::read().unwrap();
    let root = &workspace.workspace_root;
    let deny = fs::read_to_string(root.join("deny.toml")).unwrap();
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let files = texts::read(root).unwrap();
    assert!(workspace.members().count() >= 8 && workspace.foreigners().count() > 20 && files.len() > 40);

    let mut findings = floors::findings(&workspace);
    findings.extend(floors::source_findings(&files));
    findings.extend(lints::findings(&workspace).unwrap());
    findings.extend(origin::findings(&workspace, &origin::allowed(&deny).unwrap()));
    findings.extend(stage::findings(&files));
    findings.extend(texts::map_findings(&workspace, &architecture));
    findings.extend(texts::link_findings(root, &files));
    findings.extend(texts::place_findings(&files));
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

/// A workspace of our crates with these edges, those to a name behind `dev:` for tests, and one foreign package.
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
    let names = ["protocol", "table", "node", "world", "runtime", "sim", "cli", "tidy", "attic"];
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
    check(findings(&[("protocol", "dev:world")]), &[]);
    check(findings(&[("protocol", "world")]), &["protocol (floor 0) imports world (floor 1)"]);
    check(findings(&[("protocol", "dev:node")]), &["protocol (floor 0) imports node (floor 1)"]);
    check(findings(&[("table", "protocol")]), &["table (floor 0) imports protocol (floor 0)"]);
    check(findings(&[("sim", "runtime")]), &["sim (floor 2) imports runtime (floor 2)"]);
    check(findings(&[("cli", "tidy")]), &["cli imports tidy, which stands on no floor"]);
    check(findings(&[("tidy", "table")]), &["tidy imports table, but stands on no floor itself"]);
    check(findings(&[("cli", "attic")]), &["cli imports attic", "attic stands on no floor"]);
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
    check(lints::purity_findings("node", Some("other"), "rules"), &["is not pure.clippy.toml"]);
    check(lints::purity_findings("node", None, "rules"), &["must link"]);
    assert!(lints::is_pure("history") && lints::is_pure("node") && !lints::is_pure("runtime"));
}

#[test]
fn texts_are_true() {
    let text = |path: &str, content: &str| texts::Text { path: path.into(), content: content.into() };
    let root = Workspace::read().unwrap().workspace_root;
    let links = text("docs/x.md", "[a](../Cargo.toml#x) [b](https://example.org) [c](#here) [d](gone.md)");
    check(texts::link_findings(&root, &[links]), &["docs/x.md: links to gone.md"]);
    let home = concat!("ok\nsee /", "home/me");
    check(texts::place_findings(&[text("a.rs", "fn main() {}"), text("b.sh", home)]), &["b.sh:2: names"]);
    let named = "`protocol/` `table/` `node/` `world/` `runtime/` `sim/` `cli/`";
    check(texts::map_findings(&workspace(&[], "", ""), named), &["lacks `tidy/`"]);
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
    check(stage::findings(&texts), &["x.rs: has 201 lines", "z.rs: has Nemesis of its own"]);
}

#[test]
fn sources_do_not_name_what_their_tests_run_in() {
    let text = |path: &str| texts::Text { path: path.into(), content: "use quorate_world::World;".into() };
    let texts = ["crates/protocol/tests/x.rs", "crates/protocol/src/x.rs", "crates/sim/src/x.rs"].map(text);
    check(floors::source_findings(&texts), &["crates/protocol/src/x.rs: names quorate_world"]);
}

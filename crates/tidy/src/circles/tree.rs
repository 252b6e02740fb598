//! Finds the modules of a crate, and the file that defines a name.
//!
//! Names resolve as in the compiler, with three differences. None of them hides a reference between files. A
//! path leads to everything with its name, because a module and a function may share a name. Privacy is not
//! checked. An import inside a function holds for the whole module.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::scan::{self, Content, Import};

/// References between files: the referring file, the file that it refers to, and the names that it uses.
pub(super) type Edges = BTreeMap<(String, String), BTreeSet<String>>;

/// The modules of a library or a program.
pub(super) struct Tree {
    /// All modules. The first is the root.
    modules: Vec<Module>,
}

struct Module {
    /// The path of the module's file.
    file: String,
    /// The parent module; `None` for the root.
    parent: Option<usize>,
    /// The module's children by name.
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    paths: Vec<Vec<String>>,
}

/// The target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(usize),
    /// An item of a module.
    Item(usize),
}

/// The open questions of a search: a module, and a name that the search looks up in it. The search does not
/// ask an open question again, so it ends even if globs import each other.
type Open = BTreeSet<(usize, String)>;

impl Tree {
    /// Reads the file `root` and all modules below it.
    pub(super) fn read(files: &BTreeMap<&str, &str>, root: &str) -> Result<Tree> {
        let mut tree = Tree { modules: Vec::new() };
        let content = scan::read(files[root]).with_context(|| root.to_owned())?;
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        tree.add(files, None, root, folder, content)?;
        Ok(tree)
    }

    /// Adds a module. `folder` contains its child modules.
    fn add(
        &mut self,
        files: &BTreeMap<&str, &str>,
        parent: Option<usize>,
        file: &str,
        folder: &str,
        content: Content,
    ) -> Result<usize> {
        let index = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            items: content.items.into_iter().collect(),
            imports: content.imports,
            paths: content.paths,
        });
        for (name, inner) in content.inline {
            let child = self.add(files, Some(index), file, &format!("{folder}/{name}"), inner)?;
            self.modules[index].children.insert(name, child);
        }
        for name in content.declared {
            let below = format!("{folder}/{name}");
            let places = [format!("{below}.rs"), format!("{below}/mod.rs")];
            let path = places.iter().find(|path| files.contains_key(path.as_str()));
            let path = path
                .with_context(|| format!("{file}: the file declares the module {name}, which has no file"))?;
            let content = scan::read(files[path.as_str()]).with_context(|| path.clone())?;
            let child = self.add(files, Some(index), path, &below, content)?;
            self.modules[index].children.insert(name, child);
        }
        Ok(index)
    }

    /// Returns the references between the crate's files.
    pub(super) fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (index, module) in self.modules.iter().enumerate() {
            let imported =
                module.imports.iter().filter(|import| !import.is_public).map(|import| &import.path);
            for path in imported.chain(&module.paths) {
                for target in self.resolve(index, path, &mut Open::new()) {
                    // The name of a module by itself does not count. A path through the module counts.
                    let Target::Item(place) = target else { continue };
                    let to = &self.modules[place].file;
                    if *to != module.file {
                        let names = edges.entry((module.file.clone(), to.clone())).or_default();
                        names.insert(self.defined(place, path));
                    }
                }
            }
        }
        edges
    }

    /// Returns the segment of a path that names an item of a module: `Type` in `crate::a::Type::method`.
    fn defined(&self, module: usize, path: &[String]) -> String {
        let items = &self.modules[module].items;
        let named = path.iter().rev().find(|segment| items.contains(*segment)).or(path.last());
        named.cloned().unwrap_or_default()
    }

    /// Returns all possible targets of a path in a module.
    fn resolve(&self, module: usize, path: &[String], open: &mut Open) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else { return BTreeSet::new() };
        let mut places = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(0)]),
            "self" => BTreeSet::from([Target::Module(module)]),
            "super" => self.modules[module].parent.map(Target::Module).into_iter().collect(),
            _ => self.look_up(module, first, open),
        };
        for segment in rest {
            let mut next = BTreeSet::new();
            for place in places {
                match (place, segment.as_str()) {
                    (Target::Module(_), "*") => {}
                    (Target::Module(place), "super") => {
                        next.extend(self.modules[place].parent.map(Target::Module));
                    }
                    (Target::Module(place), _) => next.extend(self.look_up(place, segment, open)),
                    // The segment names a variant, a method or an associated type.
                    (Target::Item(_), _) => {
                        next.insert(place);
                    }
                }
            }
            places = next;
        }
        places
    }

    /// Returns all possible targets of a name in a module.
    fn look_up(&self, module: usize, name: &str, open: &mut Open) -> BTreeSet<Target> {
        let mut targets = BTreeSet::new();
        if !open.insert((module, name.to_owned())) {
            return targets;
        }
        let scope = &self.modules[module];
        targets.extend(scope.children.get(name).copied().map(Target::Module));
        targets.extend(scope.items.contains(name).then_some(Target::Item(module)));
        let is_glob = |import: &&Import| import.path.last().is_some_and(|last| last == "*");
        for import in scope.imports.iter().filter(|import| !is_glob(import) && import.name == name) {
            targets.extend(self.resolve(module, &import.path, open));
        }
        if targets.is_empty() {
            for import in scope.imports.iter().filter(is_glob) {
                for place in self.resolve(module, &import.path[..import.path.len() - 1], open) {
                    if let Target::Module(place) = place {
                        targets.extend(self.look_up(place, name, open));
                    }
                }
            }
        }
        open.remove(&(module, name.to_owned()));
        targets
    }
}

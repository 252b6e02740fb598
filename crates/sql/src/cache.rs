//! Bound statements by their text, shared by all connections of a gateway.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use sqlparser::ast;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    backend::Catalog,
    error::{Result, SqlError, code},
    statement::{self, Bound, Field, parse},
    types::PgType,
};

/// A statement, bound against one version of the catalog.
#[derive(Debug)]
pub struct Prepared {
    /// The statement's text.
    pub text: Arc<str>,
    /// Its syntax, to be bound anew when the catalog changed; `None` is the empty statement.
    pub syntax: Option<Arc<ast::Statement>>,
    /// Parameter types that the client declared.
    pub declared: Vec<Option<PgType>>,
    /// What it means; `None` for the empty statement.
    pub bound: Option<Bound>,
    /// The columns of its result.
    pub fields: Option<Arc<Vec<Field>>>,
    /// The catalog it was bound against.
    pub version: u64,
    /// A hash of the statement, once it was asked for.
    print: OnceLock<u64>,
}

impl Prepared {
    /// Binds a statement of a text.
    pub fn bind(
        text: Arc<str>,
        syntax: Option<Arc<ast::Statement>>,
        declared: Vec<Option<PgType>>,
        catalog: &Arc<Catalog>,
    ) -> Result<Arc<Prepared>> {
        let bound = match &syntax {
            None => None,
            Some(syntax) => Some(statement::bind(syntax, declared.clone(), catalog)?),
        };
        let fields = bound.as_ref().and_then(|bound| bound.statement.fields()).map(Arc::new);
        Ok(Arc::new(Prepared {
            text,
            syntax,
            declared,
            bound,
            fields,
            version: catalog.version,
            print: OnceLock::new(),
        }))
    }

    /// The types of its parameters.
    pub fn parameters(&self) -> &[PgType] {
        self.bound.as_ref().map_or(&[], |bound| &bound.parameters)
    }

    /// A hash of the statement, however it is spaced.
    pub fn print(&self) -> u64 {
        let text = || self.syntax.as_ref().map_or_else(String::new, |syntax| syntax.to_string());
        *self.print.get_or_init(|| xxh3_64(text().as_bytes()))
    }

    /// The same, bound against the catalog as it is now. A result that would have other columns is refused, because
    /// the client was told of the old ones.
    pub fn current(self: &Arc<Self>, catalog: &Arc<Catalog>) -> Result<Arc<Prepared>> {
        if self.version == catalog.version {
            return Ok(self.clone());
        }
        let anew = Prepared::bind(self.text.clone(), self.syntax.clone(), self.declared.clone(), catalog)?;
        // A table that was made anew is another one, but the client reads its columns the same way.
        let same = match (&anew.fields, &self.fields) {
            (Some(anew), Some(told)) => {
                anew.len() == told.len() && anew.iter().zip(told.iter()).all(|(a, b)| a.reads_as(b))
            }
            (anew, told) => anew.is_none() && told.is_none(),
        };
        if !same {
            let mut error =
                SqlError::new(code::FEATURE_NOT_SUPPORTED, "cached plan must not change result type");
            error.routine = Some("RevalidateCachedQuery");
            return Err(error);
        }
        Ok(anew)
    }
}

type Key = (Arc<str>, Vec<Option<PgType>>);

/// Statements lately prepared. Two generations: what the young one finds in the old one it takes over; when it is
/// full, the old one goes and the young one becomes old.
#[derive(Default)]
pub struct Cache {
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: FxHashMap<Key, Arc<Prepared>>,
    old: FxHashMap<Key, Arc<Prepared>>,
}

/// Statements of one generation.
const GENERATION: usize = 1024;

/// Longer texts are not kept: they carry data rather than shape.
const TEXT_BYTES_MAX: usize = 4096;

impl Cache {
    /// Prepares the one statement of a text, or finds it prepared.
    pub fn prepare(
        &self,
        text: &str,
        declared: Vec<Option<PgType>>,
        catalog: &Arc<Catalog>,
    ) -> Result<Arc<Prepared>> {
        let key = (Arc::from(text), declared);
        if let Some(known) = self.find(&key)
            && known.version == catalog.version
        {
            return Ok(known);
        }
        let mut statements = parse::parse(text)?;
        if statements.len() > 1 {
            return Err(SqlError::new(
                code::SYNTAX_ERROR,
                "cannot insert multiple commands into a prepared statement",
            ));
        }
        let syntax = statements.pop().map(Arc::new);
        let prepared = Prepared::bind(key.0.clone(), syntax, key.1.clone(), catalog)?;
        if text.len() <= TEXT_BYTES_MAX {
            self.keep(key, prepared.clone());
        }
        Ok(prepared)
    }

    fn find(&self, key: &Key) -> Option<Arc<Prepared>> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = generations.young.get(key) {
            return Some(known.clone());
        }
        let known = generations.old.remove(key)?;
        generations.insert(key.clone(), known.clone());
        Some(known)
    }

    fn keep(&self, key: Key, prepared: Arc<Prepared>) {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).insert(key, prepared);
    }
}

impl Generations {
    fn insert(&mut self, key: Key, prepared: Arc<Prepared>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, prepared);
    }
}

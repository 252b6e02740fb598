//! Bound statements by their text, shared by all connections of a gateway.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use sqlparser::ast;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    backend::Catalog,
    budget::{Budget, MemoryLimits},
    error::{Result, SqlError, code},
    locks::Locks,
    sequence::Numbers,
    statement::{self, BoundStatement, Field, parse},
    types::PgType,
};

/// A statement, bound against one version of the catalog.
#[derive(Debug)]
pub struct Prepared {
    /// The statement's text.
    pub text: Arc<str>,
    /// The statement's syntax, from which the statement is bound again when the catalog changes. `None` is
    /// the empty statement.
    pub syntax: Option<Arc<ast::Statement>>,
    /// Parameter types that the client declared.
    pub declared: Vec<Option<PgType>>,
    /// The bound statement; `None` for the empty statement.
    pub bound: Option<BoundStatement>,
    /// The columns of the statement's result.
    pub fields: Option<Arc<Vec<Field>>>,
    /// The version of the catalog against which the statement was bound.
    pub version: u64,
    /// A hash of the statement, computed on first use.
    print: OnceLock<u64>,
}

impl Prepared {
    /// Binds the syntax of a statement's text.
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

    /// Returns the memory of the statement in bytes, estimated from its text: the text, the syntax and the
    /// bound statement.
    pub fn weight(&self) -> usize {
        const EACH: usize = 4 << 10;
        const TIMES: usize = 32;
        EACH + TIMES * self.text.len()
    }

    /// Returns the types of the statement's parameters.
    pub fn parameters(&self) -> &[PgType] {
        self.bound.as_ref().map_or(&[], |bound| &bound.parameters)
    }

    /// Returns a hash of the statement that does not depend on its spacing.
    pub fn print(&self) -> u64 {
        let text = || self.syntax.as_ref().map_or_else(String::new, |syntax| syntax.to_string());
        *self.print.get_or_init(|| xxh3_64(text().as_bytes()))
    }

    /// Returns the statement bound against the present catalog. Fails if the result would now have other
    /// columns than before, because the client already has a description of the earlier columns.
    pub fn current(self: &Arc<Self>, catalog: &Arc<Catalog>) -> Result<Arc<Prepared>> {
        if self.version == catalog.version {
            return Ok(self.clone());
        }
        let anew = Prepared::bind(self.text.clone(), self.syntax.clone(), self.declared.clone(), catalog)?;
        // A table that was dropped and created again under the same name may still have columns that the
        // client reads in the same way.
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

type CacheKey = (Arc<str>, Vec<Option<PgType>>);

/// The statements that were prepared most recently, the memory budget of all sessions, and the numbers that
/// were drawn from sequences. The cache of statements has two generations, a young one and an old one. A
/// statement that is found in the old generation moves to the young one. When the young generation is full,
/// it becomes the old one, and the previous old generation is dropped.
#[derive(Default)]
pub struct Cache {
    generations: Mutex<Generations>,
    budget: Arc<Budget>,
    locks: Arc<Locks>,
    numbers: Numbers,
}

#[derive(Default)]
struct Generations {
    young: FxHashMap<CacheKey, Arc<Prepared>>,
    old: FxHashMap<CacheKey, Arc<Prepared>>,
}

/// Maximum number of statements in one generation of the cache.
const GENERATION: usize = 1024;

/// Longest text that is cached, in bytes. Longer texts mostly carry data and are rarely sent a second time.
const TEXT_BYTES_MAX: usize = 4096;

impl Cache {
    /// Creates a cache for sessions with these memory limits.
    pub fn new(limits: MemoryLimits) -> Self {
        Cache { budget: Budget::new(limits), ..Cache::default() }
    }

    /// Returns the memory budget of the sessions.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Returns the courtesy locks of the sessions' blocks.
    pub fn locks(&self) -> &Arc<Locks> {
        &self.locks
    }

    /// Returns the numbers that were drawn from sequences.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Returns the prepared statement of a text, from the cache or newly bound.
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

    fn find(&self, key: &CacheKey) -> Option<Arc<Prepared>> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = generations.young.get(key) {
            return Some(known.clone());
        }
        let known = generations.old.remove(key)?;
        generations.insert(key.clone(), known.clone());
        Some(known)
    }

    fn keep(&self, key: CacheKey, prepared: Arc<Prepared>) {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).insert(key, prepared);
    }
}

impl Generations {
    fn insert(&mut self, key: CacheKey, prepared: Arc<Prepared>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, prepared);
    }
}

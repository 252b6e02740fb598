//! The extended protocol: prepares statements, binds them to portals, describes both, and executes a portal
//! for some of its rows.

use std::{io, sync::Arc};

use pgwire::messages::{
    PgWireBackendMessage as Backend, PgWireFrontendMessage as Frontend,
    data::{NoData, ParameterDescription},
    extendedquery::{
        BindComplete, Close, CloseComplete, Describe, Parse, ParseComplete, PortalSuspended,
        TARGET_TYPE_BYTE_STATEMENT,
    },
    response::EmptyQueryResponse,
};
use quorate_sql::{
    budget,
    cache::Prepared,
    encode::{self, Format, Formats},
    error::{Result, SqlError, code},
    finish::RowBatch,
    session::{StatementOutcome, Status},
    statement::Statement,
    types::PgType,
};
use smallvec::smallvec;

use super::{
    connection::Connection,
    frame::{Bind, Execute},
    limit::Limit,
    portals::{NamedStatement, Portal, PortalState},
};

/// Longest arguments of the unnamed portal whose memory is not counted, in bytes. A connection has only one
/// unnamed portal, and most executions use it.
const UNCOUNTED_BYTES: usize = 16 << 10;

impl Connection<'_> {
    /// Handles a message that is neither Bind nor Execute. The second result is the text of the message's
    /// statement, for the position in an error.
    pub(super) fn extended(&mut self, message: Frontend) -> (Result<()>, Option<Arc<str>>) {
        match message {
            Frontend::Parse(parse) => {
                let text = Arc::from(parse.query.as_str());
                (self.parse(parse), Some(text))
            }
            Frontend::Describe(describe) => (self.describe(&describe), None),
            Frontend::Close(close) => (self.close(close), None),
            other => {
                let what = format!("the client sent a message that the gateway did not expect: {other:?}");
                (Err(SqlError::new(code::PROTOCOL_VIOLATION, what)), None)
            }
        }
    }

    fn parse(&mut self, parse: Parse) -> Result<()> {
        let name = parse.name.unwrap_or_default();
        if !name.is_empty() && self.statements.contains_key(&name) {
            return Err(SqlError::new(
                code::DUPLICATE_PREPARED_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let declared = parse
            .type_oids
            .iter()
            .map(|oid| match (*oid, PgType::from_oid(*oid)) {
                (0, _) | (_, Some(PgType::Unknown)) => Ok(None),
                (_, Some(ty)) => Ok(Some(ty)),
                (oid, None) => Err(SqlError::unsupported(format!("a parameter of the type with oid {oid}"))),
            })
            .collect::<Result<Vec<_>>>()?;
        self.statements.remove(&name);
        let prepared = self.session.prepare(&parse.query, declared)?;
        self.keep(name, prepared)?;
        self.output.put(Backend::ParseComplete(ParseComplete::new()));
        Ok(())
    }

    /// Keeps a statement under a name. The memory of the unnamed statement is not counted, because the next
    /// unnamed statement replaces it.
    pub(super) fn keep(&mut self, name: String, prepared: Arc<Prepared>) -> Result<()> {
        let mut hold = self.session.hold();
        if !name.is_empty() {
            hold.grow(name.len() + prepared.weight())?;
        }
        self.statements.insert(name, NamedStatement { prepared, _hold: hold });
        Ok(())
    }

    fn statement(&self, name: &str) -> Result<&Arc<Prepared>> {
        self.statements.get(name).map(|statement| &statement.prepared).ok_or_else(|| {
            let message = match name {
                "" => "unnamed prepared statement does not exist".to_owned(),
                name => format!("prepared statement \"{name}\" does not exist"),
            };
            SqlError::new(code::INVALID_SQL_STATEMENT_NAME, message)
        })
    }

    pub(super) fn bind(&mut self, bind: Bind<'_>) -> Result<()> {
        let Bind { portal: name, statement, count, .. } = bind;
        if !name.is_empty() && self.portals.get(name).is_some() {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        let prepared = self.statement(statement)?.clone();
        let types = prepared.parameters();
        if types.len() != count {
            return Err(SqlError::new(
                code::PROTOCOL_VIOLATION,
                format!(
                    "bind message supplies {count} parameters, but prepared statement \"{statement}\" requires {}",
                    types.len()
                ),
            ));
        }
        let formats = encode::formats(bind.formats.codes(), count)?;
        let mut values = Vec::with_capacity(count);
        for (number, ((bytes, ty), format)) in bind.arguments().zip(types).zip(formats).enumerate() {
            let told = match (bytes, format) {
                (Some(text), Format::Text) => self.session.check_argument(text, *ty),
                _ => Ok(()),
            };
            let value = told
                .and_then(|()| encode::parameter(bytes, *ty, format, number))
                .map_err(|error| error.context(format!("unnamed portal parameter ${}", number + 1)))?;
            values.push(value);
        }
        let mut hold = self.session.hold();
        let bytes = budget::weight(&values);
        if !name.is_empty() || bytes > UNCOUNTED_BYTES {
            hold.grow(bytes)?;
        }
        let fields = self.fields(&prepared);
        let formats = match fields.as_ref().map_or(0, |fields| fields.len()) {
            0 => Formats::new(),
            columns => encode::formats(bind.result_formats.codes(), columns)?,
        };
        self.portals.insert(
            name.to_owned(),
            Portal { prepared, values, _hold: hold, formats, fields, state: PortalState::Bound },
        );
        self.output.put(Backend::BindComplete(BindComplete::new()));
        Ok(())
    }

    fn describe(&mut self, describe: &Describe) -> Result<()> {
        let name = describe.name.as_deref().unwrap_or_default();
        let (fields, formats) = if describe.target_type == TARGET_TYPE_BYTE_STATEMENT {
            let prepared = self.statement(name)?.clone();
            let types = prepared.parameters().iter().map(|ty| ty.oid()).collect();
            self.output.put(Backend::ParameterDescription(ParameterDescription::new(types)));
            let fields = self.fields(&prepared);
            let formats: Formats = smallvec![Format::Text; fields.as_ref().map_or(0, |fields| fields.len())];
            (fields, formats)
        } else {
            // A cursor that was declared in SQL can be described like a portal.
            match (self.portals.get(name), self.session.cursor_fields(name)) {
                (Some(portal), _) => (portal.fields.clone(), portal.formats.clone()),
                (None, Some(fields)) => {
                    let formats = smallvec![Format::Text; fields.len()];
                    (Some(fields), formats)
                }
                (None, None) => return Err(no_portal(name)),
            }
        };
        match fields {
            Some(fields) => self.output.describe(&fields, &formats),
            None => self.output.put(Backend::NoData(NoData::new())),
        }
        Ok(())
    }

    /// Returns the text of a portal's statement.
    pub(super) fn text_of(&self, portal: &str) -> Option<Arc<str>> {
        self.portals.get(portal).map(|portal| portal.prepared.text.clone())
    }

    pub(super) async fn execute_portal(&mut self, execute: Execute) -> io::Result<Result<()>> {
        let name = execute.portal;
        let Some(mut portal) = self.portals.remove(&name) else { return Ok(Err(no_portal(&name))) };
        let most = usize::try_from(execute.rows_max).ok().filter(|rows| *rows > 0).unwrap_or(usize::MAX);
        let begins = matches!(portal.state, PortalState::Bound);
        if begins {
            let needs_result = most != usize::MAX && portal.fields.is_some();
            self.join(&portal.prepared, needs_result).await?;
            let ends_block = ends_block(&portal.prepared);
            let outcome = match self.execute(&portal.prepared, &portal.values).await? {
                Ok(outcome) => outcome,
                Err(error) => return Ok(Err(error)),
            };
            portal.state = PortalState::Done;
            match outcome {
                StatementOutcome::Rows(rows, word) => {
                    portal.state = PortalState::Open(Box::new(rows), RowBatch::default(), word);
                }
                StatementOutcome::Buffered(rows, tag, hold) => {
                    portal.state = PortalState::Buffered { rows: rows.into_iter(), tag, _hold: hold };
                }
                StatementOutcome::Done(tag) => {
                    self.output.complete(&tag);
                    self.record_portal(&mut portal, true);
                    if ends_block && self.session.status() == Status::Idle {
                        // The end of a block closes the block's portals.
                        self.portals.clear();
                    } else {
                        self.portals.insert(name, portal);
                    }
                    return Ok(Ok(()));
                }
                StatementOutcome::Deferred => {
                    self.leave_gap(portal.shape());
                    self.record_portal(&mut portal, true);
                    self.portals.insert(name, portal);
                    return Ok(Ok(()));
                }
                StatementOutcome::Empty => {
                    self.output.put(Backend::EmptyQueryResponse(EmptyQueryResponse::new()));
                    self.portals.insert(name, Portal { state: PortalState::Bound, ..portal });
                    return Ok(Ok(()));
                }
                StatementOutcome::CopyIn(copy) => {
                    self.portals.insert(name, portal);
                    return self.copy_in(copy).await;
                }
                StatementOutcome::CopyOut(rows, form, fields) => {
                    self.portals.insert(name, portal);
                    return self.copy_out(rows, &form, &fields).await;
                }
            }
        } else {
            self.limit = Limit::new(&self.cancel, self.session.time_limit(false));
        }
        let is_whole = begins && most == usize::MAX;
        let fields = portal.fields.clone().unwrap_or_default();
        let mut sent = 0;
        match &mut portal.state {
            PortalState::Bound => unreachable!("a portal is executed before its rows are sent"),
            PortalState::Done => {
                let message = format!("portal \"{name}\" cannot be run");
                self.portals.insert(name, portal);
                return Ok(Err(SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, message)));
            }
            PortalState::Buffered { rows, tag, .. } => {
                for row in rows.by_ref().take(most) {
                    self.output.row(&row, &fields, &portal.formats)?;
                    if let Err(error) = self.flush_if_full().await? {
                        return Ok(Err(error));
                    }
                    sent += 1;
                }
                if sent == most {
                    self.output.put(Backend::PortalSuspended(PortalSuspended::new()));
                } else {
                    self.output.complete(tag);
                }
            }
            PortalState::Open(rows, ready, word) => {
                let shape = (&fields[..], &portal.formats[..]);
                match self.send_rows(rows, ready, most, shape).await? {
                    Ok(rows) => sent = rows,
                    Err(error) => return Ok(Err(error)),
                }
                if sent == most {
                    self.output.put(Backend::PortalSuspended(PortalSuspended::new()));
                } else {
                    self.output.complete_rows(word, sent);
                }
            }
        }
        self.record_portal(&mut portal, is_whole);
        self.portals.insert(name, portal);
        Ok(Ok(()))
    }

    /// Adds a portal's statement to the script of its block. `is_whole` says whether the client has the whole
    /// result.
    fn record_portal(&mut self, portal: &mut Portal, is_whole: bool) {
        if self.script.is_none() {
            return;
        }
        if is_whole {
            let (values, shape) = (std::mem::take(&mut portal.values), portal.shape());
            self.record(&portal.prepared.clone(), values, shape);
        } else {
            self.script = None;
        }
    }

    fn close(&mut self, close: Close) -> Result<()> {
        let name = close.name.unwrap_or_default();
        if close.target_type == TARGET_TYPE_BYTE_STATEMENT {
            self.statements.remove(&name);
        } else {
            self.portals.remove(&name);
        }
        self.output.put(Backend::CloseComplete(CloseComplete::new()));
        Ok(())
    }
}

fn ends_block(prepared: &Prepared) -> bool {
    let statement = prepared.bound.as_ref().map(|bound| &bound.statement);
    matches!(statement, Some(Statement::Commit | Statement::Rollback))
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}

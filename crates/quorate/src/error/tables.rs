//! Errors of tables.

use quorate_protocol::Fate;
use quorate_sql::error::{Fields, SqlError};

use super::{Error, Name, Rejection, more};

impl Error {
    pub(crate) fn unsupported(what: &str) -> Error {
        SqlError::unsupported(what).into()
    }
}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Error {
        let Fields { code, message, detail, hint, fate, request, .. } = &*error;
        let why = || format!("{message}{}", more(detail, ". ", ""));
        match fate {
            Some(Fate::NotSent) => Error::NotSent { why: why() },
            Some(Fate::MaybeApplied { .. }) => {
                Error::MaybeApplied { id: request.map(Name::Statement), why: why() }
            }
            Some(Fate::Wedged) => Error::Wedged { why: why() },
            Some(Fate::Expired) => Error::Expired { why: why() },
            Some(Fate::Rejected) | None => Error::Rejected(Box::new(Rejection {
                sqlstate: Some(code.clone().into_owned()),
                message: message.clone(),
                detail: detail.clone(),
                hint: hint.clone(),
            })),
        }
    }
}

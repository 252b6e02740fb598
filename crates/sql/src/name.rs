//! The name of a write, under which a client may send the write again.

use std::{fmt, str::FromStr};

use crate::backend::RequestId;

/// The name of a write, under which the write takes effect once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestName {
    pub(crate) id: RequestId,
    /// The print of the write that the name belongs to; `None` in a name that a client made up.
    pub(crate) print: Option<StatementFingerprint>,
}

/// The part of a name that distinguishes writes under the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatementFingerprint {
    /// A random number for this write.
    pub(crate) nonce: u32,
    /// The lower half of the print of the statement and its parameters.
    pub(crate) statement: u32,
}

impl RequestName {
    /// Returns a new random name, for an application that names a write before sending it. No other write has
    /// this name.
    pub fn made_up() -> RequestName {
        RequestName { id: RequestId { session: rand::random(), number: 1 }, print: None }
    }

    /// Returns the id in the name.
    pub fn id(self) -> RequestId {
        self.id
    }
}

impl From<u128> for StatementFingerprint {
    fn from(digits: u128) -> StatementFingerprint {
        StatementFingerprint { nonce: (digits >> 32) as u32, statement: digits as u32 }
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.id.session, self.id.number)?;
        self.print.map_or(Ok(()), |print| write!(f, "-{:08x}{:08x}", print.nonce, print.statement))
    }
}

impl FromStr for RequestName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let malformed = || {
            format!(
                "\"{text}\" is not a request id: a request id has 32 hexadecimal digits, a dash and a number"
            )
        };
        let hex = |digits: &str, most: usize| {
            let fits = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            if fits { u128::from_str_radix(digits, 16).map_err(|_| malformed()) } else { Err(malformed()) }
        };
        let mut parts = text.split('-');
        let (Some(session), Some(number), print, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        let id = RequestId { session: hex(session, 32)?, number: number.parse().map_err(|_| malformed())? };
        Ok(RequestName {
            id,
            print: print.map(|print| hex(print, 16)).transpose()?.map(StatementFingerprint::from),
        })
    }
}

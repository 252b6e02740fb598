//! Whether a router that is told to found the domain does so, or joins.
//!
//! `found = true` stays in its configuration, and whoever supervises it starts it again with that. Founding anew would make
//! a second domain of the same id, which every process that restarts might join instead of the first. Two things tell:
//!
//! - The other `routers`. If one of them belongs to the domain, there is one. If every one certainly does not (nothing
//!   listens there, or a process that joins itself), there is none, and it is founded at once. As long as one can not be
//!   reached nothing is known, and it is asked again for [`PATIENCE`].
//! - A mark in the directory, made before founding. With it the domain is never founded again from there, though nobody
//!   answers: the others may be cut off.

use std::{
    fs::OpenOptions,
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use quorate_protocol::{DomainId, Generation, ecast::Fence};
use quorate_runtime::discover::{Met, Presence, Undiscovered};
use tracing::{info, warn};

use super::directory::{FILE_MODE, make};
use crate::{error::Error, seek::survey};

/// How a router begins.
pub(crate) enum Beginning {
    /// With a domain of its own.
    Found,
    /// As one that joins a domain in this generation, or has been of it if it goes on from a journal.
    Join(Generation),
}

/// How long routers that can not be reached are asked again before the domain is founded without their word.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

/// What the other routers say together.
enum Word {
    /// There is a domain, in this generation.
    Exists(Generation),
    /// There is none.
    None,
    /// Some can not be reached.
    Unknown,
}

/// How a router begins, of which `found` says whether it founds the domain if there is none; waits for others' word if need be.
pub(crate) fn begin(
    domain: DomainId,
    routers: &[String],
    found: bool,
    directory: Option<&Path>,
) -> Result<Beginning, Error> {
    let word = || word(&survey(routers, domain));
    if !found {
        return Ok(Beginning::Join(match word() {
            Word::Exists(generation) => generation,
            Word::None | Word::Unknown => Generation::FIRST,
        }));
    }
    let began = Instant::now();
    loop {
        match word() {
            Word::Exists(generation) => {
                info!("the domain is there already: this router joins, and founds nothing");
                return Ok(Beginning::Join(generation));
            }
            Word::None => break,
            Word::Unknown if began.elapsed() > PATIENCE => {
                warn!(
                    "not every router that is named can be reached; none of those that can knows the domain"
                );
                break;
            }
            Word::Unknown => thread::sleep(PAUSE),
        }
    }
    if is_first(domain, directory)? {
        return Ok(Beginning::Found);
    }
    if routers.is_empty() {
        return Err(Error::start(format!(
            "this router has founded domain {domain} before, and does not found it again: name routers to join through"
        )));
    }
    warn!(
        "this router has founded the domain before, and does not found it again: it waits for routers to join. If all of \
         them are gone for good, `quorate router reform` has the domain go on from its other processes"
    );
    Ok(Beginning::Join(Generation::FIRST))
}

fn word(survey: &[Result<Met, Undiscovered>]) -> Word {
    let members = survey.iter().flatten().filter(|met| met.answer.presence != Presence::Joining);
    let fence = |met: &Met| Fence::of_pass(&met.answer.pass);
    if let Some(generation) = members.filter_map(fence).map(|fence| fence.generation).max() {
        return Word::Exists(generation);
    }
    let unsure = survey.iter().any(|answer| answer.as_ref().is_err_and(|error| !error.is_certain()));
    if unsure { Word::Unknown } else { Word::None }
}

/// Whether the domain was never founded from this directory, and marks that it is now. Without one nobody knows.
fn is_first(domain: DomainId, directory: Option<&Path>) -> Result<bool, Error> {
    let Some(directory) = directory else { return Ok(true) };
    let failed = |path: &Path, error| {
        Error::start(format!("{}: {error}: a domain is not founded without a mark of it", path.display()))
    };
    make(directory).map_err(|error| failed(directory, error))?;
    let mark = directory.join(format!("founded-{domain}"));
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&mark) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed(&mark, error)),
    }
}

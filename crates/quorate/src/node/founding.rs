//! Founding: the decision whether a router with `found = true` founds the domain or joins it.
//!
//! The router's configuration keeps `found = true`, and its supervisor restarts the router with this
//! configuration. A second founding would make a second domain of the same id, which every restarting process
//! might join instead of the first. Two facts decide:
//!
//! - The other `routers`. If one of them belongs to the domain, the domain exists. A router certainly does
//!   not belong to it if nothing listens at its address, or if the process there is itself joining. If this
//!   holds for all of them, there is no domain, and this router founds it at once. While some of them cannot
//!   be reached, this router asks them again, at most for [`PATIENCE`]. After that it founds the domain
//!   without their answer.
//! - A mark in the directory, made before founding. With the mark, the domain is never founded again from
//!   this directory, even if no other router answers, because the other routers may be cut off.

use std::{
    fs::{File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use quorate_protocol::{DomainId, Generation, ecast::Fence};
use quorate_runtime::discover::{DiscoverError, DiscoveredProcess, DomainState};
use tracing::{info, warn};

use super::directory::{FILE_MODE, make};
use crate::{error::Error, seek::survey};

/// The way in which a router begins.
pub(crate) enum Beginning {
    /// The process founds a domain.
    Found,
    /// The process joins a domain in this generation, or has been a member if it continues from a journal.
    Join(Generation),
}

/// Time for which unreachable routers are asked before the domain is founded without their answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two questions to unreachable routers.
const PAUSE: Duration = Duration::from_millis(200);

/// The combined answer of the other routers.
enum DomainAnswer {
    /// The domain exists, in this generation.
    Exists(Generation),
    /// There is no domain.
    None,
    /// Some routers cannot be reached.
    Unknown,
}

/// Returns the way in which a router begins. `found` says whether it founds the domain if there is none.
/// Waits for the answers of the other routers if need be.
pub(crate) fn begin(
    domain: DomainId,
    routers: &[String],
    found: bool,
    directory: Option<&Path>,
) -> Result<Beginning, Error> {
    let domain_answer = || domain_answer(&survey(routers, domain));
    if !found {
        return Ok(Beginning::Join(match domain_answer() {
            DomainAnswer::Exists(generation) => generation,
            DomainAnswer::None | DomainAnswer::Unknown => Generation::FIRST,
        }));
    }
    let began = Instant::now();
    loop {
        match domain_answer() {
            DomainAnswer::Exists(generation) => {
                info!("the domain exists already: this router joins the domain and does not found another");
                return Ok(Beginning::Join(generation));
            }
            DomainAnswer::None => break,
            DomainAnswer::Unknown if began.elapsed() > PATIENCE => {
                warn!(
                    "not every named router can be reached, and no router that can be reached knows the \
                     domain"
                );
                break;
            }
            DomainAnswer::Unknown => thread::sleep(PAUSE),
        }
    }
    if is_first(domain, directory)? {
        return Ok(Beginning::Found);
    }
    if routers.is_empty() {
        return Err(Error::start(format!(
            "this router has founded domain {domain} before, and does not found the domain again: name \
             routers to join through"
        )));
    }
    warn!(
        "this router has founded the domain before, and does not found the domain again: this router waits \
         for the named routers, to join through them. If all other routers are gone for good, `quorate \
         router reform` has the domain go on from its other processes"
    );
    Ok(Beginning::Join(Generation::FIRST))
}

fn domain_answer(survey: &[Result<DiscoveredProcess, DiscoverError>]) -> DomainAnswer {
    let members = survey.iter().flatten().filter(|met| met.answer.presence != DomainState::Joining);
    let fence = |met: &DiscoveredProcess| Fence::of_pass(&met.answer.pass);
    if let Some(generation) = members.filter_map(fence).map(|fence| fence.generation).max() {
        return DomainAnswer::Exists(generation);
    }
    let unsure = survey.iter().any(|answer| answer.as_ref().is_err_and(|error| !error.is_certain()));
    if unsure { DomainAnswer::Unknown } else { DomainAnswer::None }
}

/// Whether the domain was never founded from this directory. Marks that it is founded now. Without a
/// directory, returns true.
fn is_first(domain: DomainId, directory: Option<&Path>) -> Result<bool, Error> {
    let Some(directory) = directory else { return Ok(true) };
    let failed = |path: &Path, error| {
        Error::start(format!(
            "{}: {error}: a router must write a mark in its directory before it founds a domain, so it founded none",
            path.display()
        ))
    };
    make(directory).map_err(|error| failed(directory, error))?;
    let mark = directory.join(format!("founded-{domain}"));
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&mark) {
        Ok(file) => {
            // A power cut after the founding must not lose the mark.
            let durable = file.sync_all().and_then(|()| File::open(directory)?.sync_all());
            durable.map_err(|error| failed(&mark, error))?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed(&mark, error)),
    }
}

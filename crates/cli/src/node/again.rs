//! A process that is restarted in its place: it executes its program anew.
//!
//! The operating system's process stays, and so does whoever supervises it. A gateway or a cell leaves its door to the program that follows,
//! with the connections of its clients; everything else begins anew, from the disk if there is one.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{BufReader, BufWriter, Seek, SeekFrom, Write},
    net,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Error, Result};
use quorate_runtime::inherit;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::lifeline::Bound;

/// The flag that tells the number of the descriptor from which a door is read.
pub(super) const FLAG: &str = "--door";

/// A door as it is left: its sockets by their numbers, and of each connection what it goes on from.
#[derive(Serialize, Deserialize)]
struct Left<C> {
    listener: RawFd,
    connections: Vec<(RawFd, C)>,
}

/// A door that stays open while another program is executed.
pub(super) struct Leaving {
    /// Tells all of it, and only its descriptor names it.
    state: File,
    #[expect(dead_code, reason = "they are there to stay open")]
    sockets: Vec<OwnedFd>,
}

/// The program that a process is to execute when it is restarted.
pub(super) struct Program {
    path: PathBuf,
}

impl Program {
    /// The program that runs: as it is under its path by then, so that a new version comes with a restart. Under a supervisor it
    /// is the very same one, because what dies is started as that, too.
    pub(super) fn of(supervised: bool) -> Result<Program> {
        let itself = PathBuf::from("/proc/self/exe");
        let path = if supervised && itself.exists() { itself } else { env::current_exe()? };
        Ok(Program { path })
    }

    /// Executes it in place of this one, to listen where this one does. Returns only what went wrong.
    pub(super) fn execute(&self, bound: &Bound, door: Option<Leaving>) -> Error {
        let mut command = Command::new(&self.path);
        command.arg0("quorate").args(arguments(env::args_os().skip(1)));
        // The system may have chosen the ports, and the others know it by them.
        for (key, address) in [(LISTEN, &bound.listen), (HTTP_LISTEN, &bound.http)] {
            command.arg(SET).arg(format!("{key}{address}"));
        }
        if let Some(Leaving { state, .. }) = &door {
            command.arg(FLAG).arg(state.as_raw_fd().to_string());
        }
        let failed = command.exec();
        Error::new(failed).context(format!("cannot execute {}", self.path.display()))
    }
}

/// The keys of a configuration that say where the process listens, as they are overridden.
const SET: &str = "--set";
const LISTEN: &str = "listen=";
const HTTP_LISTEN: &str = "http_listen=";

/// What this program was told, without the door that it was left and where it was to listen.
fn arguments(told: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut told = told.peekable();
    let says_where = |value: &OsString| {
        value.to_str().is_some_and(|value| value.starts_with(LISTEN) || value.starts_with(HTTP_LISTEN))
    };
    while let Some(argument) = told.next() {
        if argument == FLAG || argument == SET && told.peek().is_some_and(says_where) {
            told.next();
        } else {
            kept.push(argument);
        }
    }
    kept
}

/// Leaves a door open for the program that is executed next.
pub(super) fn leave<C: Serialize>(
    listener: net::TcpListener,
    connections: Vec<(net::TcpStream, C)>,
) -> Result<Leaving> {
    let failed = "the connections of clients cannot be left to the next program";
    let mut sockets: Vec<OwnedFd> = vec![listener.into()];
    let mut numbered = Vec::new();
    for (stream, carried) in connections {
        numbered.push((stream.as_raw_fd(), carried));
        sockets.push(stream.into());
    }
    let left = Left { listener: sockets[0].as_raw_fd(), connections: numbered };
    let mut state = tempfile::tempfile().context(failed)?;
    let mut writer = BufWriter::new(&state);
    serde_json::to_writer(&mut writer, &left).context(failed)?;
    writer.flush().context(failed)?;
    drop(writer);
    state.seek(SeekFrom::Start(0)).context(failed)?;
    inherit::leave(&state).context(failed)?;
    for descriptor in &sockets {
        inherit::leave(descriptor).context(failed)?;
    }
    Ok(Leaving { state, sockets })
}

/// The door that the program before left under this number: where clients come in, and those that are in.
pub(super) fn take<C: DeserializeOwned>(
    state: RawFd,
) -> Result<(net::TcpListener, Vec<(net::TcpStream, C)>)> {
    let failed = || format!("{FLAG} {state}: no door was left there");
    let state = File::from(inherit::take(state).with_context(failed)?);
    let left: Left<C> = serde_json::from_reader(BufReader::new(state)).with_context(failed)?;
    let listener = net::TcpListener::from(inherit::take(left.listener)?);
    let mut connections = Vec::new();
    for (stream, carried) in left.connections {
        connections.push((inherit::take(stream)?.into(), carried));
    }
    Ok((listener, connections))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_left_once() {
        let told =
            ["node", "--config", "a.toml", FLAG, "7", SET, "listen=h:1", SET, "x=1"].map(OsString::from);
        let kept = ["node", "--config", "a.toml", SET, "x=1"].map(OsString::from);
        assert_eq!(arguments(told.into_iter()), kept);
    }
}

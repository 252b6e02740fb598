//! Restart of a process in place: it executes its program again.
//!
//! The operating-system process stays, and its supervisor notices nothing. A gateway or a cell passes its
//! door to the next program, with the connections of its clients. Everything else starts from the disk if
//! there is one, and otherwise empty.

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

use crate::lifeline::BoundAddresses;

/// The flag with the number of the descriptor from which the next program reads a door.
pub(super) const FLAG: &str = "--door";

/// A door as the previous program left it: the numbers of its sockets, and the state of each connection.
#[derive(Serialize, Deserialize)]
struct InheritedDoor<C> {
    listener: RawFd,
    connections: Vec<(RawFd, C)>,
}

/// A door that stays open while the next program starts.
pub(super) struct OpenDoor {
    /// File with the state of the door. It has no name, only a descriptor.
    state: File,
    #[expect(dead_code, reason = "they are there to stay open")]
    sockets: Vec<OwnedFd>,
}

/// The program that a restart executes.
pub(super) struct Program {
    path: PathBuf,
}

impl Program {
    /// Returns the program to execute. Without a supervisor it is the file at this program's path, so that a
    /// restart can install a new version. Under a supervisor it is this very program, because the supervisor
    /// starts dead processes with the same program.
    pub(super) fn current(supervised: bool) -> Result<Program> {
        let itself = PathBuf::from("/proc/self/exe");
        let path = if supervised && itself.exists() { itself } else { env::current_exe()? };
        Ok(Program { path })
    }

    /// Executes the program in place of this one, with the same addresses. Returns only if the execution
    /// fails, with the error.
    pub(super) fn execute(&self, bound: &BoundAddresses, door: Option<OpenDoor>) -> Error {
        let mut command = Command::new(&self.path);
        command.arg0("quorate").args(arguments(env::args_os().skip(1)));
        // The system may have chosen the ports, and the other processes know this process by its ports.
        for (key, address) in [(LISTEN, &bound.listen), (HTTP_LISTEN, &bound.http)] {
            command.arg(SET).arg(format!("{key}{address}"));
        }
        if let Some(OpenDoor { state, .. }) = &door {
            command.arg(FLAG).arg(state.as_raw_fd().to_string());
        }
        let failed = command.exec();
        Error::new(failed).context(format!("cannot execute {}", self.path.display()))
    }
}

/// The flags by which a restart overrides the addresses in the configuration.
const SET: &str = "--set";
const LISTEN: &str = "listen=";
const HTTP_LISTEN: &str = "http_listen=";

/// Returns this program's arguments, without a door and without overridden addresses.
fn arguments(original: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut original = original.peekable();
    let says_where = |value: &OsString| {
        value.to_str().is_some_and(|value| value.starts_with(LISTEN) || value.starts_with(HTTP_LISTEN))
    };
    while let Some(argument) = original.next() {
        if argument == FLAG || argument == SET && original.peek().is_some_and(says_where) {
            original.next();
        } else {
            kept.push(argument);
        }
    }
    kept
}

/// Prepares a door to stay open for the next program.
pub(super) fn leave<C: Serialize>(
    listener: net::TcpListener,
    connections: Vec<(net::TcpStream, C)>,
) -> Result<OpenDoor> {
    let failed = "cannot hand over the connections of clients to the restarted program";
    let mut sockets: Vec<OwnedFd> = vec![listener.into()];
    let mut numbered = Vec::new();
    for (stream, client_state) in connections {
        numbered.push((stream.as_raw_fd(), client_state));
        sockets.push(stream.into());
    }
    let left = InheritedDoor { listener: sockets[0].as_raw_fd(), connections: numbered };
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
    Ok(OpenDoor { state, sockets })
}

/// Takes over the door with this number from the previous program: the listener, and the connections of
/// clients.
pub(super) fn take<C: DeserializeOwned>(
    state: RawFd,
) -> Result<(net::TcpListener, Vec<(net::TcpStream, C)>)> {
    let failed = || format!("{FLAG} {state}: the previous program left no connections in this descriptor");
    let state = File::from(inherit::take(state).with_context(failed)?);
    let left: InheritedDoor<C> = serde_json::from_reader(BufReader::new(state)).with_context(failed)?;
    let listener = net::TcpListener::from(inherit::take(left.listener)?);
    let mut connections = Vec::new();
    for (stream, client_state) in left.connections {
        connections.push((inherit::take(stream)?.into(), client_state));
    }
    Ok((listener, connections))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_left_once() {
        let original =
            ["node", "--config", "a.toml", FLAG, "7", SET, "listen=h:1", SET, "x=1"].map(OsString::from);
        let kept = ["node", "--config", "a.toml", SET, "x=1"].map(OsString::from);
        assert_eq!(arguments(original.into_iter()), kept);
    }
}

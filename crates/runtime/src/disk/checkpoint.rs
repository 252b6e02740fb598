//! When the last checkpoint became whole, in a small file: for people, who want to know how old it is. Nothing rests on it.

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use super::Files;

pub(super) const NAME: &str = "checkpoint";

/// Notes the present time, and returns it, in seconds of Unix time.
pub(super) fn write(files: &mut dyn Files) -> io::Result<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    files.replace(NAME, format!("{now}\n").as_bytes())?;
    Ok(i64::try_from(now).unwrap_or(i64::MAX))
}

/// The time that is noted; 0 if none is, or none that can be read.
pub(super) fn read(files: &mut dyn Files) -> io::Result<i64> {
    if !files.list()?.iter().any(|name| name == NAME) {
        return Ok(0);
    }
    let text = files.read(NAME)?;
    Ok(String::from_utf8_lossy(&text).trim().parse().unwrap_or(0))
}

/// Removes the note.
pub(super) fn remove(files: &mut dyn Files) -> io::Result<()> {
    if files.list()?.iter().any(|name| name == NAME) { files.remove(NAME) } else { Ok(()) }
}

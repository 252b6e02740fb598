//! The time of the last complete checkpoint, in a small file for people to read. The program does not depend
//! on the file.

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::warn;

use super::Files;

const NAME: &str = "checkpoint";

/// Writes the present time to the file and returns it, in seconds of Unix time.
pub(super) fn write(files: &mut dyn Files) -> io::Result<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    files.replace(NAME, format!("{now}\n").as_bytes())?;
    Ok(i64::try_from(now).unwrap_or(i64::MAX))
}

/// Reads the time, in seconds of Unix time; 0 if there is no readable file.
pub(super) fn read(files: &mut dyn Files) -> i64 {
    let text = files.read(NAME).unwrap_or_default();
    String::from_utf8_lossy(&text).trim().parse().unwrap_or(0)
}

/// Removes the file, if it exists. If that fails, `quorate status` shows the time of an earlier process.
pub(super) fn remove(files: &mut dyn Files) {
    let there = files.list().is_ok_and(|names| names.iter().any(|name| name == NAME));
    if there && let Err(error) = files.remove(NAME) {
        warn!(
            %error,
            "cannot remove the file `checkpoint` of an earlier process, so `quorate status` may show that \
             process's last checkpoint"
        );
    }
}

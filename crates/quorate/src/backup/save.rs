//! Writing a backup.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use quorate_protocol::ecast::Position;
use quorate_roles::tables::gateway;
use quorate_runtime::chance;
use quorate_sql::{
    backend::{Backend as _, OperationError, Piece, Table, next_of},
    error::SqlError,
    fault,
};
use quorate_table::failure::Failure;

use super::{
    Progress, Summary, Transfer,
    file::{Contents, Writer},
    transfer::{BUFFER_BYTES, TELL_EVERY},
};
use crate::{db::Db, error::Error, wait::block_on};

/// Writes a backup of the requested tables.
pub(super) fn save(db: &Db, it: &Transfer) -> Result<Summary, Error> {
    let (domain, tables) = db.tables()?;
    let catalog = tables.catalog();
    let none = |message: String| Error::from(SqlError::from(Failure::new("42P01", message)));
    let chosen = it.choose(catalog.tables.iter().map(|table| &table.schema));
    let chosen = chosen.map_err(|name| none(format!("relation \"{name}\" does not exist")))?;
    let chosen: Vec<Arc<Table>> = chosen.into_iter().map(|place| catalog.tables[place].clone()).collect();
    if chosen.is_empty() {
        return Err(none(String::from("there is no table to back up")));
    }
    let whole = Transfer::check_references(chosen.iter().map(|table| &table.schema));
    whole.map_err(|why| Error::from(SqlError::from(Failure::new("0A000", why))))?;
    let of_file = |error: io::Error| it.wrong(error);
    let (file, unfinished) = Unfinished::create(&it.file)?;
    let made_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let contents = Contents {
        domain: domain.0,
        made_at,
        tables: chosen.iter().map(|table| table.schema.clone()).collect(),
    };
    let mut writer =
        Writer::begin(BufWriter::with_capacity(BUFFER_BYTES, file), &contents).map_err(of_file)?;

    let stream = block_on(tables.backup(&chosen)).map_err(fault::read_error)?;
    let begun = Instant::now();
    let (mut parts, mut position, mut reported_at) = (stream.parts, None, begun);
    while let Some(piece) = block_on(next_of(&mut parts)) {
        let (at, rows) = rows_of(piece.map_err(fault::read_error)?).map_err(fault::read_error)?;
        assert_eq!(*position.get_or_insert(at), at, "all replicas answer for the position of the read");
        writer.rows(&rows).map_err(of_file)?;
        // The replicas take turns, so that no replica waits until another replica has sent all its rows.
        if !parts.is_empty() {
            parts.rotate_left(1);
        }
        if reported_at.elapsed() >= TELL_EVERY {
            reported_at = Instant::now();
            let (rows, bytes) = writer.so_far();
            (it.watch)(Progress { rows, bytes, of: None });
        }
        if let Some(most) = it.pace {
            // The replicas are slowed down, too: each sends no more until its last pages have been taken.
            let due = Duration::from_secs_f64(writer.so_far().1 as f64 / most.get() as f64);
            thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    let position =
        position.ok_or_else(|| it.wrong("no range of the tables answered the read of the backup"))?;
    let (rows, whole) = writer.so_far();
    let (file, end, bytes) = writer.end(position.0).map_err(of_file)?;
    let file = file.into_inner().map_err(|error| of_file(error.into_error()))?;
    unfinished.finish(&file, &it.file)?;
    (it.watch)(Progress { rows, bytes: whole, of: Some(whole) });
    Ok(Summary::of(&contents, &end, bytes))
}

/// Returns the position and the encoded rows of a piece.
fn rows_of(piece: Piece) -> Result<(Position, bytes::Bytes), OperationError> {
    let bytes = match piece {
        Piece::Encoded(bytes) => bytes,
        Piece::Answer(_) => unreachable!("a cluster's answers come in their byte form"),
    };
    match gateway::backed_up(&bytes) {
        Some(rows) => Ok(rows),
        // A piece without rows contains the error that prevented them, or is invalid.
        None => match Piece::Encoded(bytes).answer() {
            Err(fault) => Err(fault),
            Ok(_) => Err(OperationError::Failed(Failure::malformed(
                "a storage process answered the read of a backup with another kind of answer",
            ))),
        },
    }
}

/// A file that is being written next to its final place. The file is removed if it is not finished.
struct Unfinished {
    path: PathBuf,
    finished: bool,
}

impl Unfinished {
    /// Makes the file with a unique name, readable by its owner alone.
    fn create(place: &Path) -> Result<(File, Unfinished), Error> {
        if fs::symlink_metadata(place).is_ok() {
            return Err(Error::file(place, "this file exists already: name a new file"));
        }
        let mut path = place.as_os_str().to_owned();
        path.push(format!(".{:016x}.unfinished", chance::incarnation().0 as u64));
        let path = PathBuf::from(path);
        let mut options = OpenOptions::new();
        options.create_new(true).write(true).mode(0o600);
        let file = options.open(&path).map_err(|error| Error::file(&path, error))?;
        Ok((file, Unfinished { path, finished: false }))
    }

    /// Moves the complete file to its place. The file is on disk under its final name when this returns.
    fn finish(mut self, file: &File, place: &Path) -> Result<(), Error> {
        let of_place = |error: io::Error| Error::file(place, error);
        file.sync_all().map_err(of_place)?;
        // A link, unlike a rename, replaces no other file. Some file systems have no links.
        match fs::hard_link(&self.path, place) {
            Ok(()) => fs::remove_file(&self.path).map_err(of_place)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(of_place(error)),
            Err(_) => fs::rename(&self.path, place).map_err(of_place)?,
        }
        self.finished = true;
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        synced.map_err(|error| {
            // The file might not survive a crash, so it is removed.
            let _ = fs::remove_file(place);
            of_place(error)
        })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(
                path = %self.path.display(), %error,
                "an unfinished backup file could not be removed: remove the file by hand"
            );
        }
    }
}

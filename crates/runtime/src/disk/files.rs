//! The files of one directory.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, IoSlice, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
#[cfg(target_os = "linux")]
use rustix::fs::{SeekFrom, seek};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::{Errno, pwritev},
};

/// Files of one directory, by name. Once one operation has failed, no other may be relied on.
pub trait Files: Debug + Send {
    /// The names of all files.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// All of a file, without zeros at its end that are only reserved.
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;
    /// Makes a file of that many zero bytes, durably. An earlier one of the name is gone.
    fn create(&mut self, name: &str, length: u64) -> io::Result<()>;
    /// Gives a file that is needed no more another name, and at least this length, durably. What it holds stays.
    fn reuse(&mut self, from: &str, to: &str, length: u64) -> io::Result<()>;
    /// Writes pieces one behind the other, from `offset` on. They are durable once [`Files::sync`] has returned.
    fn write(&mut self, name: &str, offset: u64, pieces: &[Bytes]) -> io::Result<()>;
    /// Makes durable what was written.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Cuts a file off at this length, durably. A shorter one stays as it is.
    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()>;
    /// Gives a file these contents, durably: after a crash it has either the old or the new ones.
    fn replace(&mut self, name: &str, contents: &[u8]) -> io::Result<()>;
    /// Gives a file another name, durably.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, durably.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// A real directory. Only its owner reads it: what a log holds is nobody else's business.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    directory: File,
    open: BTreeMap<String, File>,
}

impl Directory {
    /// Opens a directory, which is created if it is not there.
    pub fn create(path: &Path) -> io::Result<Directory> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        if let Some(parent) = path.canonicalize()?.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(Directory { path: path.to_owned(), directory: File::open(path)?, open: BTreeMap::new() })
    }

    fn file(&mut self, name: &str) -> io::Result<&File> {
        if !self.open.contains_key(name) {
            let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
            self.open.insert(name.to_owned(), file);
        }
        Ok(&self.open[name])
    }
}

impl Files for Directory {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path.join(name))?;
        let end = data_end(&file)?;
        file.rewind()?;
        // A vector that grows as it is filled is copied each time.
        let mut bytes = Vec::with_capacity(usize::try_from(end).map_err(|_| io::ErrorKind::FileTooLarge)?);
        file.take(end).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&mut self, name: &str, length: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.path.join(name))?;
        reserve(&file, length)?;
        self.directory.sync_all()?;
        self.open.insert(name.to_owned(), file);
        Ok(())
    }

    fn reuse(&mut self, from: &str, to: &str, length: u64) -> io::Result<()> {
        reserve(self.file(from)?, length)?;
        fs::rename(self.path.join(from), self.path.join(to))?;
        let file = self.open.remove(from).expect("it was just opened");
        self.open.insert(to.to_owned(), file);
        self.directory.sync_all()
    }

    fn write(&mut self, name: &str, offset: u64, pieces: &[Bytes]) -> io::Result<()> {
        let file = self.file(name)?;
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let (mut rest, mut offset) = (&mut slices[..], offset);
        while !rest.is_empty() {
            let most = rest.len().min(PIECES_MAX);
            match pwritev(file, &rest[..most], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    offset += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        let file = self.file(name)?;
        if file.metadata()?.len() > length {
            file.set_len(length)?;
            file.sync_all()?;
        }
        Ok(())
    }

    fn replace(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        let beside = self.path.join(format!("{name}.new"));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(beside, self.path.join(name))?;
        self.directory.sync_all()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.open.remove(from);
        fs::rename(self.path.join(from), self.path.join(to))?;
        self.directory.sync_all()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.open.remove(name);
        fs::remove_file(self.path.join(name))?;
        self.directory.sync_all()
    }
}

/// The end of what was ever written to a file. Where the system does not say, the end of the file.
fn data_end(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    #[cfg(target_os = "linux")]
    {
        let mut end = 0;
        while end < length {
            match seek(file, SeekFrom::Data(end)) {
                Ok(data) => end = seek(file, SeekFrom::Hole(data))?,
                // No data behind it.
                Err(Errno::NXIO) => return Ok(end),
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(length),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(length)
}

/// Gives a file its room on the disk.
fn reserve(file: &File, length: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        // Not every file system reserves. The file grows as it is written, then.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    file.sync_all()
}

/// The system takes no more at once.
const PIECES_MAX: usize = 1024;

/// The file of a segment.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:020}{SEGMENT}")
}

/// The segment that a file is, if it is one.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    name.strip_suffix(SEGMENT).filter(|digits| digits.len() == 20)?.parse().ok()
}

const SEGMENT: &str = ".segment";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_is_only_reserved_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        let mut files = Directory::create(place.path()).unwrap();
        files.create("segment", 8 << 20).unwrap();
        // The file system tells data by blocks, of which no common one is longer.
        let within = |bytes: &[u8], least: usize| (least..least + (64 << 10)).contains(&bytes.len());
        assert!(within(&files.read("segment").unwrap(), 0));
        files.write("segment", 3, &[Bytes::from_static(b"some"), Bytes::from_static(b"thing")]).unwrap();
        for synced in [false, true] {
            let bytes = files.read("segment").unwrap();
            assert!(bytes[..12] == *b"\0\0\0something" && within(&bytes, 12), "{synced}: {}", bytes.len());
            files.sync("segment").unwrap();
        }
        files.truncate("segment", 7).unwrap();
        assert_eq!(files.read("segment").unwrap(), b"\0\0\0some");
    }
}

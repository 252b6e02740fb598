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

/// The files of one directory, by name. After one operation has failed, callers must not rely on any of the
/// files.
pub trait Files: Debug + Send {
    /// Returns the names of all files.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// Returns the contents of a file, without reserved zeros at its end.
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;
    /// Creates a file of `length` zero bytes, durably. Replaces an existing file of that name.
    fn create(&mut self, name: &str, length: u64) -> io::Result<()>;
    /// Renames a file that is no longer needed, and extends it to at least `length` bytes, durably. Its old
    /// contents stay.
    fn reuse(&mut self, from: &str, to: &str, length: u64) -> io::Result<()>;
    /// Writes pieces one after the other, from `offset` on. They are durable only once [`Files::sync`] has
    /// returned.
    fn write(&mut self, name: &str, offset: u64, pieces: &[Bytes]) -> io::Result<()>;
    /// Makes all writes to a file durable.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Shortens a file to `length` bytes, durably. A file that is already shorter stays as it is.
    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()>;
    /// Replaces the contents of a file, durably. After a crash it holds either the old or the new contents.
    fn replace(&mut self, name: &str, contents: &[u8]) -> io::Result<()>;
    /// Renames a file, durably.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, durably.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// A real directory. Only its owner may read it, because its files hold user data.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    directory: File,
    open: BTreeMap<String, File>,
}

impl Directory {
    /// Opens a directory, and creates it if it does not exist.
    pub fn create(path: &Path) -> io::Result<Directory> {
        make_directories(path)?;
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

/// Creates a directory and its missing parents, durably: each new entry is synced in its parent directory.
pub fn make_directories(path: &Path) -> io::Result<()> {
    // The lowest existing directory is synced, too, because a crash may have come between its creation and
    // its sync.
    let missing = path.ancestors().take_while(|path| !path.is_dir()).count().max(1);
    let made: Vec<&Path> = path.ancestors().take(missing).collect();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for path in made.into_iter().rev() {
        if let Some(above) = path.canonicalize()?.parent() {
            File::open(above)?.sync_all()?;
        }
    }
    Ok(())
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
        // With the memory reserved, the vector need not be copied while it grows.
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
        let file = self.open.remove(from).expect("the file was just opened");
        self.open.insert(to.to_owned(), file);
        self.directory.sync_all()
    }

    fn write(&mut self, name: &str, offset: u64, pieces: &[Bytes]) -> io::Result<()> {
        let file = self.file(name)?;
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let (mut rest, mut offset) = (&mut slices[..], offset);
        while !rest.is_empty() {
            let most = rest.len().min(IOVECS_MAX);
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

/// Returns the end of the data written to a file, or the file's length if the system cannot tell.
fn data_end(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    #[cfg(target_os = "linux")]
    {
        let mut end = 0;
        while end < length {
            match seek(file, SeekFrom::Data(end)) {
                Ok(data) => end = seek(file, SeekFrom::Hole(data))?,
                // No data follows, so this is the end.
                Err(Errno::NXIO) => return Ok(end),
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(length),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(length)
}

/// Reserves `length` bytes on the disk for a file.
fn reserve(file: &File, length: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        // Some file systems cannot reserve. The file then grows as it is written.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    file.sync_all()
}

/// The maximum number of pieces that the system accepts in one call.
const IOVECS_MAX: usize = 1024;

/// Returns the name of a segment's file.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:020}{SEGMENT}")
}

/// Returns the number of the segment that a file holds, or `None` if the file is no segment.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    name.strip_suffix(SEGMENT).filter(|digits| digits.len() == 20)?.parse().ok()
}

const SEGMENT: &str = ".segment";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_created_with_their_parents() {
        let place = tempfile::tempdir().unwrap();
        for path in ["a/b/c", "a/b/c", "a/d", ""].map(|path| place.path().join(path)) {
            Directory::create(&path).unwrap();
            assert!(path.is_dir(), "{path:?}");
        }
        std::fs::write(place.path().join("file"), "").unwrap();
        Directory::create(&place.path().join("file/a")).unwrap_err();
    }

    #[test]
    fn room_that_is_only_reserved_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        let mut files = Directory::create(place.path()).unwrap();
        files.create("segment", 8 << 20).unwrap();
        // The file system reports the end of data in blocks, and no common file system has blocks larger than
        // 64 KiB.
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

//! Faulty files, for tests of this crate and of crates that depend on it.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};

use super::{Directory, Files};

/// Files whose writes stay in this process until they are synced. A sync then passes them to the system in
/// small pieces: first every second piece, then the rest. So a killed process loses its unsynced writes, and
/// leaves those that it was syncing incomplete, as a power cut does. With real files a kill loses nothing,
/// because the system keeps all writes.
#[derive(Debug)]
pub struct UnsyncedFiles {
    files: Directory,
    written: BTreeMap<String, Vec<(u64, Bytes)>>,
}

impl UnsyncedFiles {
    /// Wraps real files.
    pub fn new(files: Directory) -> UnsyncedFiles {
        UnsyncedFiles { files, written: BTreeMap::new() }
    }
}

impl Files for UnsyncedFiles {
    fn list(&mut self) -> io::Result<Vec<String>> {
        self.files.list()
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.files.read(name)
    }

    fn create(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.files.create(name, length)
    }

    fn reuse(&mut self, from: &str, to: &str, length: u64) -> io::Result<()> {
        self.written.remove(from);
        self.files.reuse(from, to, length)
    }

    fn write(&mut self, name: &str, offset: u64, pieces: &[Bytes]) -> io::Result<()> {
        let mut all = BytesMut::new();
        pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        self.written.entry(name.to_owned()).or_default().push((offset, all.freeze()));
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let written = self.written.remove(name).unwrap_or_default();
        for odd in [1, 0] {
            for (offset, bytes) in &written {
                for (number, piece) in
                    bytes.chunks(PIECE_BYTES).enumerate().filter(|(number, _)| number % 2 == odd)
                {
                    let at = offset + (number * PIECE_BYTES) as u64;
                    self.files.write(name, at, &[bytes.slice_ref(piece)])?;
                }
            }
            // A sync takes most of the time, so a kill most likely comes here, when half of the pieces are
            // written.
            self.files.sync(name)?;
        }
        Ok(())
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.files.truncate(name, length)
    }

    fn replace(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.files.replace(name, contents)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.written.remove(name);
        self.files.remove(name)
    }
}

const PIECE_BYTES: usize = 512;

/// Files that fail or are slow on request.
#[derive(Debug)]
pub struct FaultyFiles {
    files: Directory,
    faults: Faults,
}

/// The faults of [`FaultyFiles`], as a handle for tests. Clones share the faults.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<FaultState>>);

#[derive(Debug, Default)]
struct FaultState {
    failing: Option<(&'static str, io::ErrorKind)>,
    sync_takes: Duration,
}

impl Faults {
    /// Makes one operation fail from now on: `create`, `write`, `sync` or `replace`.
    pub fn fail(&self, operation: &'static str, kind: io::ErrorKind) {
        self.lock().failing = Some((operation, kind));
    }

    /// Makes each sync take `sync_takes` longer from now on.
    pub fn slow(&self, sync_takes: Duration) {
        self.lock().sync_takes = sync_takes;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, operation: &str) -> io::Result<()> {
        match self.lock().failing {
            Some((failing, kind)) if failing == operation => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

impl FaultyFiles {
    /// Wraps real files.
    pub fn new(files: Directory, faults: Faults) -> FaultyFiles {
        FaultyFiles { files, faults }
    }
}

impl Files for FaultyFiles {
    fn list(&mut self) -> io::Result<Vec<String>> {
        self.files.list()
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.files.read(name)
    }

    fn create(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.faults.check("create")?;
        self.files.create(name, length)
    }

    fn reuse(&mut self, from: &str, to: &str, length: u64) -> io::Result<()> {
        self.faults.check("create")?;
        self.files.reuse(from, to, length)
    }

    fn write(&mut self, name: &str, offset: u64, pieces: &[Bytes]) -> io::Result<()> {
        self.faults.check("write")?;
        self.files.write(name, offset, pieces)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let dawdle = self.faults.lock().sync_takes;
        thread::sleep(dawdle);
        self.faults.check("sync")?;
        self.files.sync(name)
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.files.truncate(name, length)
    }

    fn replace(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.faults.check("replace")?;
        self.files.replace(name, contents)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }
}

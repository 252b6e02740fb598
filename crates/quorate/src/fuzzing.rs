//! Entry points of the fuzz targets: files on a disk.

/// Reads a checkpoint file of a group.
#[cfg(feature = "groups")]
pub fn checkpoint(input: &[u8]) {
    crate::group::fuzz_checkpoint(input);
}

/// Reads a backup of tables.
#[cfg(feature = "tables")]
pub fn backup(input: &[u8]) {
    crate::backup::fuzz(input);
}

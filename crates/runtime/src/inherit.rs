//! Descriptors that a process leaves to the program that takes its place.
//!
//! All that this process opens is closed when another program is executed, unless it is *left*. So one that would stay open was
//! left by the program before, and belongs to nobody here until it is taken.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Leaves a descriptor open when this process executes another program.
pub fn leave(descriptor: &impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfd(descriptor)?;
    Ok(fcntl_setfd(descriptor, flags - FdFlags::CLOEXEC)?)
}

/// Takes a descriptor that the program before has left, once.
pub fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    let refused =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {descriptor} was left to nobody"));
    // Those of the standard streams are the library's.
    if descriptor <= 2 {
        return Err(refused());
    }
    // SAFETY: the number is not -1. It is borrowed for these calls alone, which fail if nothing is open under it.
    #[allow(unsafe_code, reason = "an executed program has only the numbers of what was left to it")]
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = fcntl_getfd(borrowed).map_err(|_| refused())?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(refused());
    }
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and would have stayed open for another program. So it was not opened by this one, whose descriptors
    // close then, and it was not taken before, since from then on it closes, too. Nobody else owns it.
    #[allow(unsafe_code, reason = "an executed program has only the numbers of what was left to it")]
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::IntoRawFd};

    use super::*;

    #[test]
    fn only_what_was_left_is_taken_and_once() {
        let file = tempfile::tempfile().unwrap();
        let number = file.into_raw_fd();
        assert!(take(number).is_err(), "it is this process's own");
        #[allow(unsafe_code, reason = "stands for the program before")]
        // SAFETY: it was given up just now.
        let file = unsafe { File::from_raw_fd(number) };
        leave(&file).unwrap();
        let number = file.into_raw_fd();
        let owned = take(number).unwrap();
        assert!(take(number).is_err(), "it was taken");
        drop(owned);
        assert!(take(number).is_err(), "nothing is open there");
        assert!(take(0).is_err());
    }
}

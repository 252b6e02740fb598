//! Descriptors that a process passes on to the program that replaces it.
//!
//! When a process executes another program, the system closes all descriptors that this process opened,
//! except those it has *left*. So an inherited descriptor that would stay open at the next execution was left
//! by the previous program, and belongs to no code here until it is taken.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Keeps a descriptor open when this process executes another program.
pub fn leave(descriptor: &impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfd(descriptor)?;
    Ok(fcntl_setfd(descriptor, flags - FdFlags::CLOEXEC)?)
}

/// Takes a descriptor that the previous program has left. Each descriptor can be taken only once.
pub fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    let refused = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the previous program did not leave descriptor {descriptor} open for this program"),
        )
    };
    // The standard streams belong to the standard library, so nobody may take them here.
    if descriptor <= 2 {
        return Err(refused());
    }
    // SAFETY: the number is not -1. It is borrowed only for these calls, which fail if no file is open under
    // this number.
    #[allow(unsafe_code, reason = "an executed program has only the numbers of what was left to it")]
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = fcntl_getfd(borrowed).map_err(|_| refused())?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(refused());
    }
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open and would stay open when another program is executed. Descriptors that
    // this program opened would be closed then, so this program did not open it. A descriptor that was
    // already taken would be closed then, too. So no other code owns this descriptor.
    #[allow(unsafe_code, reason = "an executed program has only the numbers of what was left to it")]
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::IntoRawFd};

    use super::*;

    #[test]
    fn only_an_inherited_socket_is_taken_and_once() {
        let file = tempfile::tempfile().unwrap();
        let number = file.into_raw_fd();
        assert!(take(number).is_err(), "it is this process's own");
        #[allow(unsafe_code, reason = "stands for the program before")]
        // SAFETY: the number was released just now.
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

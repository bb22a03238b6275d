//! [`Peer`]: the process on the other side of a Unix socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The process that connected a socket, or that listened when this process connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id in the process namespace of the caller; `None` if it is not visible there.
    pub process: Option<u32>,
    /// Its effective user id at that time.
    pub user: u32,
}

/// Returns the peer of a connected socket.
///
/// # Errors
/// The socket is not connected.
pub fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let size = u32::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    let mut bytes: libc::socklen_t = size;
    // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes to `found`, which
    // has that length, and a length to `bytes`; both live through the call.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            found.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes != size {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: it was zeroed, the call succeeded, and every value of its integers is valid.
    let found = unsafe { found.assume_init() };
    Ok(Peer { process: u32::try_from(found.pid).ok().filter(|pid| *pid > 0), user: found.uid })
}

/// Returns a pidfd of the process that listened when this process connected. Unlike the id of
/// [`peer`], it cannot be that of a later process.
///
/// # Errors
/// `ENOPROTOOPT`: the kernel is older than 6.5. Others: the process has ended.
pub fn process(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut found: libc::c_int = -1;
    let size = u32::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    let mut bytes: libc::socklen_t = size;
    // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes to `found`, which
    // has that length, and a length to `bytes`; both live through the call.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes != size || found < 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel has opened this descriptor for the call, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("a pair of sockets");
        let user = rustix::process::geteuid().as_raw();
        let own = Peer { process: Some(std::process::id()), user };
        assert_eq!(peer(&one).expect("it is connected"), own);
    }

    #[test]
    fn the_pidfd_of_a_peer_is_that_of_its_process() {
        let (one, _other) = UnixStream::pair().expect("a pair of sockets");
        let pidfd = match process(&one) {
            // A kernel before 6.5.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return,
            process => process.expect("this process"),
        };
        let info = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
        let info = std::fs::read_to_string(info).expect("a pidfd");
        let line = format!("Pid:\t{}\n", std::process::id());
        assert!(info.contains(&line), "{info}");
    }
}

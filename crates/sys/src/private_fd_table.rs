//! A system call on a filesystem that this process itself serves, made in such a way that the
//! process can still be killed.
//!
//! A thread that waits for a FUSE reply cannot be killed once the request was read: it waits until
//! the reply comes or the connection ends. The connection ends when no descriptor table has
//! `/dev/fuse` open any more. The threads of a process share one table, which lives as long as any
//! of them, so a thread that waits for its own process would keep the connection alive forever.
//!
//! So the call is made in a thread whose own descriptor table has only the descriptors that the
//! call needs. When the process is killed, the shared table is closed, and with it the connection,
//! which wakes the thread. The thread also keeps no other file of the process open.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Runs a closure that takes a descriptor and returns another, in a thread that has no further
/// descriptors, not even the three standard ones. The closure must use only the descriptor that is
/// passed to it.
///
/// # Errors
/// The closure fails or panics, the thread cannot be started, or the descriptor cannot be sent.
pub fn call(
    with: BorrowedFd<'_>,
    closure: impl FnOnce(BorrowedFd<'_>) -> io::Result<OwnedFd> + Send,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let (with, socket) = (with.as_raw_fd(), theirs.as_raw_fd());
    let (ready, is_ready) = channel();
    thread::scope(|scope| {
        let run = move || {
            keep_only(with, socket)?;
            // The numbers now refer to this table; the shared table may close or reuse them.
            ready.send(()).map_err(io::Error::other)?;
            // SAFETY: the descriptor is open in the table of the thread, which does not close it.
            let with = unsafe { BorrowedFd::borrow_raw(with) };
            // SAFETY: as above.
            let socket = unsafe { BorrowedFd::borrow_raw(socket) };
            send(socket, closure(with)?.as_fd())
        };
        let thread = thread::Builder::new().name("butternut-own".into());
        let thread = thread.spawn_scoped(scope, run)?;
        // The descriptors must stay open until the thread has its own table. If the thread fails,
        // `join` returns its error.
        is_ready.recv().unwrap_or_default();
        // The thread then has the only descriptor of this end, so `receive` sees the end of the
        // stream if the thread fails.
        drop(theirs);
        let received = receive(&ours);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        received?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    })
}

/// Gives this thread its own descriptor table, and closes all descriptors in it except two.
fn keep_only(one: RawFd, other: RawFd) -> io::Result<()> {
    // SAFETY: copies the descriptor table for this thread. The thread owns no descriptor, and those
    // of the other threads do not change.
    let answer = unsafe { libc::unshare(libc::CLONE_FILES) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let (low, high) = (one.min(other).unsigned_abs(), one.max(other).unsigned_abs());
    for (first, last) in
        [(0, low.checked_sub(1)), (low + 1, Some(high - 1)), (high + 1, Some(libc::c_uint::MAX))]
    {
        if let Some(last) = last.filter(|last| first <= *last) {
            // SAFETY: closes descriptors in the table of this thread, which owns none of them.
            let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            if answer != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

fn send(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(socket, &[IoSlice::new(b" ")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives a descriptor; `None` if the other end closes without sending one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, openat};

    #[test]
    fn the_thread_has_no_other_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "text").unwrap();
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        let at = std::fs::File::open(dir.path()).unwrap();
        let opened = call(at.as_fd(), |at| {
            // SAFETY: only reads the flags of the descriptor, if there is one.
            let answer = unsafe { libc::fcntl(number, libc::F_GETFD) };
            assert_eq!(answer, -1, "the thread has a descriptor of the process");
            Ok(openat(at, "file", OFlags::RDONLY, Mode::empty())?)
        });
        assert_eq!(io::read_to_string(std::fs::File::from(opened.unwrap())).unwrap(), "text");
        assert!(file.metadata().is_ok() && at.metadata().is_ok());
    }

    #[test]
    fn errors_and_panics_of_the_closure_are_returned() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = call(null.as_fd(), |_| Err(rustix::io::Errno::NOENT.into())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let error = call(null.as_fd(), |_| panic!("intended")).unwrap_err();
        assert_eq!(error.to_string(), "a thread panicked");
    }
}

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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

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
    let with = with.as_raw_fd();
    send_from_thread(Some(with), move || {
        // SAFETY: the descriptor is open in the table of the thread, which does not close it.
        closure(unsafe { BorrowedFd::borrow_raw(with) })
    })
}

/// Runs a closure that returns a descriptor, in a thread that has no descriptor of the process.
///
/// # Errors
/// As of [`call`].
pub fn open(closure: impl FnOnce() -> io::Result<OwnedFd> + Send) -> io::Result<OwnedFd> {
    send_from_thread(None, closure)
}

/// Runs a closure in a thread that has only the descriptor `with`, and returns its descriptor.
fn send_from_thread(
    with: Option<RawFd>,
    closure: impl FnOnce() -> io::Result<OwnedFd> + Send,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let socket = theirs.as_raw_fd();
    let (ready, is_ready) = channel();
    thread::scope(|scope| {
        let run = move || {
            let kept: Vec<RawFd> = with.into_iter().chain([socket]).collect();
            keep_only(&kept)?;
            // The numbers now refer to this table; the shared table may close or reuse them.
            ready.send(()).map_err(io::Error::other)?;
            // SAFETY: the descriptor is open in the table of the thread, which does not close it.
            let socket = unsafe { BorrowedFd::borrow_raw(socket) };
            send(socket, closure()?.as_fd())
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

/// Runs a closure in a thread that has no descriptor of the process. The closure may open its own,
/// and returns none. The calling thread waits for the result in such a way that it can be killed.
///
/// # Errors
/// The closure fails or panics, or the thread cannot be started.
pub fn run(closure: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let run = move || {
        keep_only(&[])?;
        closure()
    };
    let thread = thread::Builder::new().name("butternut-own".into()).spawn(run)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Starts a thread that runs a closure with `with`, and has no further descriptor of the process:
/// while the closure waits in the kernel, and cannot be killed, it keeps no other file open, also
/// after the end of the process. Returns when the thread has its own table.
///
/// # Errors
/// The thread cannot be started, or gets no table of its own. The closure is dropped.
pub fn spawn(
    name: &str,
    with: BorrowedFd<'_>,
    closure: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
) -> io::Result<()> {
    let with = with.as_raw_fd();
    let (ready, is_ready) = channel();
    let run = move || {
        let kept = keep_only(&[with]);
        let has_table = kept.is_ok();
        // The calling thread waits for it, and keeps the descriptor open until then.
        ready.send(kept).unwrap_or_default();
        if has_table {
            // SAFETY: the descriptor is open in the table of the thread, which does not close it.
            closure(unsafe { BorrowedFd::borrow_raw(with) });
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Closes a descriptor. If it is the last one, the close is made by a thread that has no other
/// descriptor, and the calling thread waits for it for at most `limit`.
pub fn close(fd: OwnedFd, limit: Duration) {
    let number = fd.as_raw_fd();
    let (ready, is_ready) = channel();
    let (closed, is_closed) = channel::<()>();
    let (done, is_done) = channel::<()>();
    let run = move || {
        let _done = done;
        keep_only(&[number]).map(|()| {
            // SAFETY: the number is open in the table of this thread alone, and nothing else closes
            // it there.
            let own = unsafe { OwnedFd::from_raw_fd(number) };
            ready.send(()).unwrap_or_default();
            // Returns when the process has closed its descriptor.
            is_closed.recv().unwrap_or_default();
            drop(own);
        })
    };
    if thread::Builder::new().name("butternut-own".into()).spawn(run).is_ok() {
        is_ready.recv().unwrap_or_default();
    }
    drop(fd);
    drop(closed);
    is_done.recv_timeout(limit).unwrap_or_default();
}

/// Gives this thread its own descriptor table, and closes all descriptors in it except these.
fn keep_only(kept: &[RawFd]) -> io::Result<()> {
    // SAFETY: copies the descriptor table for this thread. The thread owns no descriptor, and those
    // of the other threads do not change.
    let answer = unsafe { libc::unshare(libc::CLONE_FILES) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut kept: Vec<libc::c_uint> = kept.iter().map(|fd| fd.unsigned_abs()).collect();
    kept.sort_unstable();
    let mut first = 0;
    for end in kept.into_iter().map(Some).chain([None]) {
        let last = end.map_or(Some(libc::c_uint::MAX), |end| end.checked_sub(1));
        if let Some(last) = last.filter(|last| first <= *last) {
            // SAFETY: closes descriptors in the table of this thread, which owns none of them.
            let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            if answer != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = end.map_or(first, |end| end + 1);
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
    fn a_thread_without_descriptors_opens_its_own() {
        let first = || {
            let opened = std::fs::File::open("/dev/null")?;
            assert_eq!(opened.as_raw_fd(), 0, "the lowest number is free");
            Ok(())
        };
        run(first).unwrap();
        let error = run(|| Err(rustix::io::Errno::NOENT.into())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert!(run(|| panic!("intended")).is_err());
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"text").unwrap();
        drop(writer);
        let number = reader.as_raw_fd();
        let path = format!("/proc/self/fd/{number}");
        let opened = open(|| Ok(std::fs::File::open(path)?.into())).unwrap();
        assert_eq!(io::read_to_string(std::fs::File::from(opened)).unwrap(), "text");
    }

    #[test]
    fn a_thread_that_goes_on_keeps_one_descriptor_open() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (other, kept_by_none) = UnixStream::pair().unwrap();
        let (goes_on, until) = channel::<()>();
        let wait = move |with: BorrowedFd<'_>| {
            assert!(rustix::io::fcntl_getfd(with).is_ok());
            until.recv().unwrap_or_default();
        };
        spawn("test", theirs.as_fd(), wait).unwrap();
        drop((theirs, kept_by_none));
        assert_eq!(io::read_to_string(&other).unwrap(), "", "the thread has it open");
        ours.set_nonblocking(true).unwrap();
        let error = io::read_to_string(&ours).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(goes_on);
        ours.set_nonblocking(false).unwrap();
        assert_eq!(io::read_to_string(&ours).unwrap(), "");
    }

    #[test]
    fn a_close_is_waited_for_and_is_that_of_the_last_descriptor() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        close(theirs.into(), Duration::from_mins(1));
        // The end of the stream is there as soon as the call returns.
        ours.set_nonblocking(true).unwrap();
        assert_eq!(io::read_to_string(&ours).unwrap(), "");
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

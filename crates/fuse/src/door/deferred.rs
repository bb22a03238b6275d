//! Deferred replies: requests that a thread of their own answers.
//!
//! Some requests depend on data that the kernel has cached and not sent, and the kernel does not
//! write it back by itself before such a request. The door makes it do so. That waits for WRITE
//! requests, which other workers must serve; if workers waited for it themselves, all of them could
//! be waiting. So each such request gets its own thread, as do requests that commit or trim.
//!
//! 1. The kernel writes back pages only as a part of dropping them. On a mount that writes through,
//!    no page may be dropped while a write(2) that has changed it is not applied (`unsent`). The
//!    inode lock of the kernel excludes write(2) during LSEEK, a change of inode flags or of a
//!    range, and a synchronous WRITE that bypasses its cache. An asynchronous one may hold no lock,
//!    and may come from a handle that does not bypass the cache (law 1 of `handles`). So it drops
//!    the pages of its own range only: programs that write the same bytes both ways at the same
//!    time order that.
//! 2. A user may send any number of requests at the same time, and a thread for each could take all
//!    that the system allows to this process, which other threads need to write. So every request
//!    that users can send has a limit: `user_calls`, [`user_limit`](crate::door::user_limit), or
//!    [`ThreadSlot`].
//! 3. No request waits in a queue of calls of users while the kernel holds the lock of an inode for
//!    it: every program that uses the file would wait for all calls before it, and a user that may
//!    only read the file could so stop the writes of others. The kernel holds the lock of the file
//!    during LSEEK, SETATTR, SETXATTR, FSYNC, FALLOCATE, a change of inode flags, an OPEN that
//!    truncates, most WRITE requests and, for its target, `COPY_FILE_RANGE`; that of the directory
//!    during requests that look up, list or change names, and FSYNCDIR. It holds none during
//!    STATFS, GETXATTR, and the ioctls that it does not know, which are those of `user_calls`. Of
//!    the former, those that are deferred have a limit above which they are answered at once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use butternut_sys::affinity;

use crate::connection;
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::user_calls::UserCalls;
use crate::door::user_limit::Counted;
use crate::door::{Door, Outcome, guarded};
use crate::errno::{Errno, ErrnoResult};

/// One of a limited number of threads that wait, until this is dropped.
pub(super) struct ThreadSlot(Arc<AtomicU64>);

impl ThreadSlot {
    /// Takes a slot, or returns `None` where `slots` are taken.
    pub(super) fn begin(count: &Arc<AtomicU64>, slots: u64) -> Option<Self> {
        let more = |waiting| (waiting < slots).then_some(waiting + 1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Door {
    /// Defers the reply, of at most `bytes` bytes, until the kernel has written back its pages of
    /// the request's file (law 1). `answer` must not keep a reference to the door, because closing
    /// the door waits for the thread. The kernel holds the lock of the file, so the call is not
    /// queued (law 3); `counted` is its place below a limit.
    pub(super) fn reply_after_writeback(
        &self,
        request: &Request<'_>,
        counted: Counted,
        bytes: usize,
        answer: impl FnOnce(&mut Reply) -> ErrnoResult<()> + Send + 'static,
    ) -> ErrnoResult<Outcome> {
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        self.reply_deferred(request, bytes, move |reply| {
            let _counted = counted;
            connection::invalidate_pages(&device, node);
            answer(reply)
        })
    }

    /// Defers the reply, of at most `bytes` bytes, to a thread that serves no other request.
    /// `answer` must not keep a reference to the door, because closing the door waits for the
    /// thread. The caller limits how many of these a user may have.
    pub(super) fn reply_deferred(
        &self,
        request: &Request<'_>,
        bytes: usize,
        answer: impl FnOnce(&mut Reply) -> ErrnoResult<()> + Send + 'static,
    ) -> ErrnoResult<Outcome> {
        let answer = move |reply: &mut Reply| answer(reply).map(|()| Outcome::Reply);
        let call = self.deferred_call(request, bytes, answer);
        self.spawn_deferred(move || call(Ok(())))?;
        Ok(Outcome::NoReply)
    }

    /// As [`Self::reply_deferred`], for a call that a user may send from any number of processes,
    /// and during which the kernel holds no lock. Above a limit it waits for earlier calls of users
    /// (`user_calls`).
    pub(super) fn reply_deferred_to_user(
        &self,
        request: &Request<'_>,
        bytes: usize,
        answer: impl FnOnce(&mut Reply) -> ErrnoResult<()> + Send + 'static,
    ) -> ErrnoResult<Outcome> {
        self.reply_deferred_within(&self.user_calls, request, bytes, answer)
    }

    /// As [`Self::reply_deferred_to_user`], counted among some calls.
    pub(super) fn reply_deferred_within(
        &self,
        calls: &UserCalls,
        request: &Request<'_>,
        bytes: usize,
        answer: impl FnOnce(&mut Reply) -> ErrnoResult<()> + Send + 'static,
    ) -> ErrnoResult<Outcome> {
        self.defer_within(calls, request, bytes, move |reply| {
            answer(reply).map(|()| Outcome::Reply)
        })
    }

    /// As [`Self::reply_deferred_within`]. `answer` says whether the reply is to be sent, or
    /// another thread sends it later.
    pub(super) fn defer_within(
        &self,
        calls: &UserCalls,
        request: &Request<'_>,
        bytes: usize,
        answer: impl FnOnce(&mut Reply) -> ErrnoResult<Outcome> + Send + 'static,
    ) -> ErrnoResult<Outcome> {
        let call = self.deferred_call(request, bytes, answer);
        let Some(user) = self.counted_user(request) else {
            self.spawn_deferred(move || call(Ok(())))?;
            return Ok(Outcome::NoReply);
        };
        let (calls, unique) = (calls.clone(), request.header.unique);
        let of_others = calls.clone();
        let Some(call) = calls.begin(user, unique, Box::new(call)) else {
            // The INTERRUPT may have been served before the call was queued.
            if self.interrupts.is_interrupted(unique) {
                self.interrupt_queued(unique);
            }
            return Ok(Outcome::NoReply);
        };
        if let Err(errno) = self.spawn_deferred(move || calls.run(user, call, Ok(()))) {
            // No other thread may be there to run what was queued meanwhile.
            of_others.run(user, Box::new(|_| ()), Err(errno));
            return Err(errno);
        }
        Ok(Outcome::NoReply)
    }

    /// Returns the user that a call is counted for; `None` for an administrator.
    pub(super) fn counted_user(&self, request: &Request<'_>) -> Option<u32> {
        (!self.is_administrator(request)).then_some(request.header.uid)
    }

    /// Interrupts a request: a defragmentation or seal that is queued is answered, and a request
    /// that waits may find out.
    pub(super) fn interrupt(&self, unique: u64) {
        self.interrupts.interrupt(unique);
        self.interrupt_queued(unique);
    }

    fn interrupt_queued(&self, unique: u64) {
        for calls in [&self.defragmentations, &self.long_seals] {
            if let Some(call) = calls.interrupt(unique) {
                call(Err(Errno::EINTR));
            }
        }
    }

    /// Returns the work of a thread that answers a request. With an error it only sends that.
    fn deferred_call<F>(
        &self,
        request: &Request<'_>,
        bytes: usize,
        answer: F,
    ) -> impl FnOnce(ErrnoResult<()>) + Send + use<F>
    where
        F: FnOnce(&mut Reply) -> ErrnoResult<Outcome> + Send + 'static,
    {
        let (unique, device) = (request.header.unique, Arc::clone(request.device));
        let filesystem = self.filesystem.clone();
        move |begun| {
            let mut reply = Reply::new(bytes);
            let result = begun.and_then(|()| guarded(&filesystem, || answer(&mut reply)));
            drop(filesystem);
            if result != Ok(Outcome::NoReply) {
                connection::send_reply(&device, unique, result.map(drop), &mut reply);
            }
        }
    }

    /// Makes the kernel drop pages of the request's file at some later time: it cannot drop a page
    /// before the request about that page is answered. Without a free thread the kernel keeps them.
    pub(super) fn invalidate_range_deferred(&self, request: &Request<'_>, pages: Range<u64>) {
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        let work = move || connection::invalidate_page_range(&device, node, &pages);
        self.spawn_deferred(work).unwrap_or_default();
    }

    pub(super) fn spawn_deferred(&self, work: impl FnOnce() + Send + 'static) -> ErrnoResult<()> {
        let run = move || {
            // The new thread inherits the CPU affinity of a leader.
            affinity::reset_affinity();
            work();
        };
        let thread = thread::Builder::new().name("butternut-defer".into()).spawn(run);
        let thread = thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(11)))?;
        let mut threads = self.deferred.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Waits until every deferred reply was sent.
    pub(super) fn join_deferred(threads: Vec<JoinHandle<()>>) {
        for thread in threads {
            thread.join().unwrap_or_default();
        }
    }
}

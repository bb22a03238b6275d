//! Receives the signals that request the end of a process as values, instead of dying from them.
//!
//! 1. The signals are blocked before the process has a second thread, so that every thread inherits
//!    the mask.
//! 2. A hang-up or an interrupt that the process ignores from its start stays ignored: nohup(1)
//!    ignores the first, a shell the second for a background job of a script. SIGTERM stays ignored
//!    where the process is to die of what it receives: that signal would not end it.
//! 3. Each signal is delivered to one waiting thread, and to no handler.

use crate::errno::Errno;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The signals that request the end of the process.
const ENDING: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// The blocked signals: hang-up, interrupt and terminate.
pub struct EndSignals {
    set: libc::sigset_t,
}

/// Ignores the signal of a write past the limit of file sizes (`RLIMIT_FSIZE`), which would end the
/// process: the write fails with `EFBIG` then.
pub fn ignore_file_size_limit() {
    // SAFETY: the number is that of a signal that may be ignored, and no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

impl EndSignals {
    /// Blocks the signals for this thread and every thread that it starts afterwards; SIGTERM also
    /// if it is ignored.
    ///
    /// # Errors
    /// The error of `pthread_sigmask(3)`.
    pub fn block() -> Result<EndSignals, Errno> {
        Self::block_those(|signal| signal == libc::SIGTERM || !is_ignored(signal))
    }

    /// Blocks the signals as [`EndSignals::block`] does, without those that are ignored: each of
    /// them ends the process ([`EndSignals::end_process`]).
    ///
    /// # Errors
    /// As [`EndSignals::block`].
    pub fn block_unless_ignored() -> Result<EndSignals, Errno> {
        Self::block_those(|signal| !is_ignored(signal))
    }

    fn block_those(is_wanted: fn(libc::c_int) -> bool) -> Result<EndSignals, Errno> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the pointer is to memory of the right size, which the call fills.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // A blocked signal is delivered to a waiting thread even if it is ignored.
        for signal in ENDING.into_iter().filter(|signal| is_wanted(*signal)) {
            // SAFETY: `sigemptyset` has initialised the set, and the number is that of a signal.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: `sigemptyset` has initialised it.
        let set = unsafe { set.assume_init() };
        // SAFETY: the set lives through the call; a null old set is allowed.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if failed == 0 { Ok(EndSignals { set }) } else { Err(Errno(failed)) }
    }

    /// Waits for one of the signals and returns its number.
    ///
    /// # Errors
    /// The error of `sigwait(3)`.
    pub fn wait(&self) -> Result<i32, Errno> {
        let mut signal = 0;
        // SAFETY: both pointers are to live values of the right types.
        let failed = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
        if failed == 0 { Ok(signal) } else { Err(Errno(failed)) }
    }

    /// Waits for one of the signals for at most `timeout`. Returns `None` where none has come.
    ///
    /// # Errors
    /// The error of `sigtimedwait(2)`.
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<i32>, Errno> {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let no_info = std::ptr::null_mut();
        // SAFETY: both pointers are to live values of the right types; a null info is allowed.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.set, no_info, &raw const timeout) };
        if signal > 0 {
            return Ok(Some(signal));
        }
        match Errno::last() {
            Errno::AGAIN | Errno::INTERRUPTED => Ok(None),
            errno => Err(errno),
        }
    }

    /// Ends the process by a signal that was received, so that its parent sees which one: a shell
    /// then ends its script. Returns only if the signal does not end the process.
    pub fn end_process(&self, signal: i32) {
        // SAFETY: has no preconditions. The signal stays pending until it is unblocked.
        unsafe { libc::raise(signal) };
        // SAFETY: the set lives through the call; a null old set is allowed.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.set, std::ptr::null_mut())
        };
    }
}

/// Returns whether the process ignores a signal.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action is allowed; the pointer is to memory of the right size.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call has filled it if it did not fail.
    failed == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_to_this_thread(signal: libc::c_int) {
        // SAFETY: has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        // SAFETY: sends a signal to this thread, which has blocked it.
        let failed = unsafe { libc::pthread_kill(thread, signal) };
        assert_eq!(failed, 0);
    }

    #[test]
    fn a_blocked_signal_is_received_by_wait() {
        let signals = EndSignals::block().unwrap();
        send_to_this_thread(libc::SIGTERM);
        assert_eq!(signals.wait(), Ok(libc::SIGTERM));
        assert_eq!(signals.wait_for(Duration::from_millis(1)), Ok(None));
        send_to_this_thread(libc::SIGTERM);
        assert_eq!(signals.wait_for(Duration::MAX), Ok(Some(libc::SIGTERM)));
    }
}

//! The signals that ask a process to end, taken as a value instead of as a death.
//!
//! 1. They are blocked before the process has a second thread, so that every thread inherits it.
//! 2. Whoever waits gets each of them once; nobody else sees them.

use crate::errno::Errno;
use std::mem::MaybeUninit;

/// The signals: hang-up, interrupt, terminate.
const ENDING: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// The signals that end a process, blocked.
pub struct EndSignals {
    set: libc::sigset_t,
}

impl EndSignals {
    /// Blocks them for this thread and every thread that it starts from now on.
    pub fn block() -> Result<EndSignals, Errno> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the pointer is to memory of the right size, which the call fills.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in ENDING {
            // SAFETY: the set was made by sigemptyset; the number is a signal's.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: sigemptyset has initialised it.
        let set = unsafe { set.assume_init() };
        // SAFETY: the set lives through the call; a null old set is allowed.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if failed == 0 { Ok(EndSignals { set }) } else { Err(Errno(failed)) }
    }

    /// Waits for one of them; its number.
    pub fn wait(&self) -> Result<i32, Errno> {
        let mut signal = 0;
        // SAFETY: both pointers are to live values of the right types.
        let failed = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
        if failed == 0 { Ok(signal) } else { Err(Errno(failed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_waited_for_instead_of_killing() {
        let signals = EndSignals::block().unwrap();
        // SAFETY: has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        // SAFETY: a signal to this very thread, which has it blocked.
        let failed = unsafe { libc::pthread_kill(thread, libc::SIGTERM) };
        assert_eq!(failed, 0);
        assert_eq!(signals.wait(), Ok(libc::SIGTERM));
    }
}

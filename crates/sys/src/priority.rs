//! The priority of threads: one that only computes gives way to all others.

use std::io;

/// Lets the calling thread run only while no other thread wants its CPU (`SCHED_IDLE`): a thread
/// of the usual policy that wakes up preempts it at once. It still gets a small share of a CPU that
/// is always busy. A process without privileges cannot undo this, so it is for threads that do
/// nothing else, and that hold no lock while they compute. Other threads of the process, and those
/// that this one has started before, keep their policy.
///
/// # Errors
/// The system forbids it. The thread is as it was.
pub fn yield_to_all() -> io::Result<()> {
    // SAFETY: all fields of the structure are integers, which may be 0. `SCHED_IDLE` has the
    // priority 0.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads one structure; 0 is the calling thread.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: the call reads no memory; 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn only_the_calling_thread_gives_way() {
        let before = policy();
        let other = || {
            yield_to_all().unwrap();
            yield_to_all().unwrap();
            policy()
        };
        assert_eq!(std::thread::spawn(other).join().unwrap(), libc::SCHED_IDLE);
        assert_eq!(policy(), before);
    }
}

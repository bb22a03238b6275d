//! The priority of threads: one that only computes gives way to all others.

use std::io;

use rustix::process::setpriority_process;

/// The lowest priority of the usual policy.
const NICE_MAX: i32 = 19;

/// Gives the calling thread the lowest priority (`nice` 19): a thread of the usual priority gets 68
/// times its share of a CPU, and preempts it. A process without privileges cannot undo this, so it
/// is for threads that do nothing else. Other threads of the process, and those that this one has
/// started before, keep their priority.
///
/// The policy `SCHED_IDLE` would give way even more, but a thread that is preempted inside a lock
/// would keep the lock as long as its CPU is busy.
///
/// # Errors
/// The system forbids it. The thread is as it was.
pub fn yield_to_others() -> io::Result<()> {
    // For Linux, no process is the calling thread.
    Ok(setpriority_process(None, NICE_MAX)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpriority_process;

    #[test]
    fn only_the_calling_thread_gives_way() {
        let before = getpriority_process(None).unwrap();
        let other = || {
            yield_to_others().unwrap();
            yield_to_others().unwrap();
            getpriority_process(None).unwrap()
        };
        assert_eq!(std::thread::spawn(other).join().unwrap(), NICE_MAX);
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}

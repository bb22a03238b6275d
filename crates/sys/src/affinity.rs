//! CPU affinity: binds threads to a CPU, resets their affinity, and observes the CPU of other
//! threads.
//!
//! A thread passes its affinity on to the threads that it starts. The threads of
//! [`Workers`](crate::workers::Workers) reset theirs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Upper bound for the line of `/proc/PID/stat`, in bytes: it has 52 numbers of at most 20 digits.
const STAT_BYTES_MAX: usize = 2048;

/// The CPU is field 39 of the line. Field 3 is the first behind the name of the thread.
const CPU_FIELD: usize = 39 - 3;

/// The affinity of the process before the first call of [`bind_to_cpu`].
static INITIAL: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Binds the calling thread to one CPU. Returns `false` if the process may not run there.
pub fn bind_to_cpu(cpu: usize) -> bool {
    let initial = INITIAL.get_or_init(|| sched_getaffinity(None).ok());
    let is_allowed = |all: &CpuSet| cpu < CpuSet::MAX_CPU && all.is_set(cpu);
    if !initial.as_ref().is_some_and(is_allowed) {
        return false;
    }
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).is_ok()
}

/// Lets the calling thread run on every CPU that the process could use initially.
pub fn reset_affinity() {
    if let Some(Some(initial)) = INITIAL.get() {
        // Fails if all of these CPUs were taken from the process; the kernel has then reset the
        // affinity.
        sched_setaffinity(None, initial).unwrap_or_default();
    }
}

/// A thread of any process whose CPU can be read repeatedly. Holds its `/proc/PID/stat` open.
pub struct WatchedThread {
    thread: u32,
    line: File,
}

impl WatchedThread {
    /// Opens the `stat` file of a thread. Returns `None` if there is no such thread, or it is
    /// hidden.
    pub fn new(thread: u32) -> Option<Self> {
        Some(Self { thread, line: File::open(format!("/proc/{thread}/stat")).ok()? })
    }

    /// Returns the id of the thread.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Returns the CPU that the thread runs on, or ran on last. Returns `None` when it has ended.
    pub fn cpu(&self) -> Option<usize> {
        let mut line = [0; STAT_BYTES_MAX];
        let bytes = self.line.read_at(&mut line, 0).ok()?;
        parse_cpu(line.get(..bytes)?)
    }
}

fn parse_cpu(line: &[u8]) -> Option<usize> {
    // The name is in parentheses and may contain parentheses itself.
    let behind_name = line.iter().rposition(|byte| *byte == b')')? + 2;
    let fields = std::str::from_utf8(line.get(behind_name..)?).ok()?;
    fields.split(' ').nth(CPU_FIELD)?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_bound_thread_runs_on_its_cpu_until_its_affinity_is_reset() {
        let here = thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let allowed = (0..CpuSet::MAX_CPU).filter(|number| before.is_set(*number));
            for cpu in allowed {
                assert!(bind_to_cpu(cpu));
                let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
                let watched = WatchedThread::new(own).unwrap();
                assert_eq!(watched.cpu(), Some(cpu));
                assert_eq!(watched.thread(), own);
                assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            }
            assert!(!bind_to_cpu(CpuSet::MAX_CPU - 1) && !bind_to_cpu(usize::MAX));
            reset_affinity();
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        });
        here.join().unwrap();
    }

    #[test]
    fn parentheses_in_a_thread_name_do_not_shift_the_fields() {
        let mut line = b"7 (a) b) S".to_vec();
        (4..=52).for_each(|field| line.extend(format!(" {field}").bytes()));
        assert_eq!(parse_cpu(&line), Some(39));
        assert_eq!(parse_cpu(&line[..40]), None);
        assert_eq!(parse_cpu(b""), None);
    }
}

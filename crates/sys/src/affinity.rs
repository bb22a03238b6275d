//! Where threads run: at one processor, or wherever the process may.
//!
//! A thread that stays hands its place on to threads that it starts; those of
//! [`Workers`](crate::workers::Workers) roam all the same.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Longer than any line of `/proc/PID/stat`, whose 52 numbers have 20 digits at most.
const LINE_BYTES_MAX: usize = 2048;

/// The processor is the 39th field; the 3rd is the first behind the name.
const PROCESSOR_AT: usize = 39 - 3;

/// Where the process could run before any of its threads stayed somewhere.
static EVERYWHERE: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Keeps the calling thread at one processor. `false` where it may not be there.
pub fn stay_at(processor: usize) -> bool {
    let everywhere = EVERYWHERE.get_or_init(|| sched_getaffinity(None).ok());
    let is_allowed = |all: &CpuSet| processor < CpuSet::MAX_CPU && all.is_set(processor);
    if !everywhere.as_ref().is_some_and(is_allowed) {
        return false;
    }
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).is_ok()
}

/// Lets the calling thread run wherever the process may.
pub fn roam() {
    if let Some(Some(everywhere)) = EVERYWHERE.get() {
        // Refused to a thread whose processors were all taken from it, which roams already.
        sched_setaffinity(None, everywhere).unwrap_or_default();
    }
}

/// A thread of any process, whose place may be asked again and again.
pub struct Watched {
    thread: u32,
    line: File,
}

impl Watched {
    /// `None` where there is no such thread, or none that may be looked at.
    pub fn new(thread: u32) -> Option<Self> {
        Some(Self { thread, line: File::open(format!("/proc/{thread}/stat")).ok()? })
    }

    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// The processor where it runs, or ran last; `None` once it has ended.
    pub fn processor(&self) -> Option<usize> {
        let mut line = [0; LINE_BYTES_MAX];
        let bytes = self.line.read_at(&mut line, 0).ok()?;
        processor_in(line.get(..bytes)?)
    }
}

fn processor_in(line: &[u8]) -> Option<usize> {
    // The name is in parentheses, and may hold some.
    let behind_name = line.iter().rposition(|byte| *byte == b')')? + 2;
    let fields = std::str::from_utf8(line.get(behind_name..)?).ok()?;
    fields.split(' ').nth(PROCESSOR_AT)?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_stays_where_it_is_told_and_roams_again() {
        let here = thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let allowed = (0..CpuSet::MAX_CPU).filter(|number| before.is_set(*number));
            for processor in allowed {
                assert!(stay_at(processor));
                let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
                let watched = Watched::new(own).unwrap();
                assert_eq!(watched.processor(), Some(processor));
                assert_eq!(watched.thread(), own);
                assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            }
            assert!(!stay_at(CpuSet::MAX_CPU - 1) && !stay_at(usize::MAX));
            roam();
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        });
        here.join().unwrap();
    }

    #[test]
    fn names_do_not_move_the_fields() {
        let mut line = b"7 (a) b) S".to_vec();
        (4..=52).for_each(|field| line.extend(format!(" {field}").bytes()));
        assert_eq!(processor_in(&line), Some(39));
        assert_eq!(processor_in(&line[..40]), None);
        assert_eq!(processor_in(b""), None);
    }
}

//! Every crash of a recording, held to what was promised.
//!
//! A [`Story`] is a workload that has run over a recording device: the device's log, and a mark
//! before and after each step. The states of the filesystem are numbered by steps: state `n` is
//! what the model shows after `n` steps. A crash at a position of the log allows a range of
//! states:
//!
//! 1. it is not older than the last step that promised everything and had returned: what it
//!    covered is there;
//! 2. it is not newer than the last step that had begun: nothing comes from nowhere;
//! 3. it *is* one of them, whole: a commit is atomic, so there is no state that never was.
//!
//! [`judge`] lets every crash be looked at by the caller's verifier, on several threads. The
//! verifier knows how to open the image and what state `n` looks like.

pub mod workload;

use butternut_device::{Crash, CrashImage, CrashOptions, Crashes, Recording, RecordingDevice};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many failures are kept with their text.
const FAILURES_KEPT: usize = 8;

/// Gathers marks while a workload runs.
#[derive(Debug, Default)]
pub struct Telling {
    begun: Vec<usize>,
    promised: Vec<(usize, usize)>,
    promised_whole: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
pub struct Story {
    pub recording: Recording,
    /// The log's position when step `n` began.
    begun: Vec<usize>,
    /// From this position on, so many steps are promised.
    promised: Vec<(usize, usize)>,
    /// The same, of the bytes of all files too.
    promised_whole: Vec<(usize, usize)>,
}

/// One crash that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    pub crash: Crash,
    pub allowed: RangeInclusive<usize>,
    pub text: String,
}

#[derive(Debug, Default)]
pub struct Verdict {
    /// How many crashes were looked at.
    pub states: u64,
    pub failed: u64,
    /// The first of them, in the order of the log.
    pub failures: Vec<Failure>,
}

#[derive(Clone, Copy, Debug)]
pub struct JudgeOptions {
    pub crashes: CrashOptions,
    pub threads: usize,
    /// Look at one crash in so many, all of them evenly.
    pub one_in: u64,
}

impl Telling {
    /// To be called before each step.
    pub fn begin_step(&mut self, device: &RecordingDevice) {
        self.begun.push(device.position());
    }

    /// To be called when a step has returned that promises itself and all steps before it.
    pub fn promise(&mut self, device: &RecordingDevice) {
        self.promise_steps(device, self.begun.len());
    }

    /// The same, of so many steps, promising the bytes of no files but those that the caller knows.
    pub fn promise_names(&mut self, device: &RecordingDevice, steps: usize) {
        self.promised.push((device.position(), steps));
    }

    /// How many steps have begun.
    pub fn steps(&self) -> usize {
        self.begun.len()
    }

    /// The same, of somebody who syncs beside the steps: so many of them had ended when he began.
    pub fn promise_steps(&mut self, device: &RecordingDevice, steps: usize) {
        self.promised.push((device.position(), steps));
        self.promised_whole.push((device.position(), steps));
    }

    pub fn end(self, device: &RecordingDevice) -> Story {
        let recording = device.recording();
        let Telling { begun, promised, promised_whole } = self;
        Story { recording, begun, promised, promised_whole }
    }
}

impl Story {
    /// How many steps are promised with all bytes of all files, to a crash at this position.
    pub fn whole_promise(&self, position: usize) -> usize {
        newest_promise(&self.promised_whole, position)
    }

    /// The states that a crash at this position of the log may leave.
    pub fn allowed(&self, position: usize) -> RangeInclusive<usize> {
        let oldest = newest_promise(&self.promised, position);
        // A step that began at this very position has not reached the device.
        let newest = self.begun.iter().take_while(|at| **at < position).count();
        oldest..=newest.max(oldest)
    }
}

fn newest_promise(promised: &[(usize, usize)], position: usize) -> usize {
    let promised = promised.iter().filter(|(at, _)| *at <= position);
    promised.map(|(_, steps)| *steps).max().unwrap_or(0)
}

/// Says what is wrong with what a crash left, given which states it may have left.
pub type Verifier<'a> =
    dyn Fn(&Crash, CrashImage, RangeInclusive<usize>) -> Result<(), String> + Sync + 'a;

/// Looks at every crash of a story.
pub fn judge(story: &Story, options: &JudgeOptions, verify: &Verifier<'_>) -> Verdict {
    let crashes = Mutex::new(Crashes::new(story.recording.clone(), options.crashes));
    let (states, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let failures = Mutex::new(Vec::<Failure>::new());
    let look = || {
        loop {
            let next = crashes.lock().expect("nobody panics while asking").next();
            let Some(crash) = next else { return };
            let crash = crash.expect("the base of a recording can be read");
            if !crash.number.is_multiple_of(options.one_in.max(1)) {
                continue;
            }
            states.fetch_add(1, Ordering::Relaxed);
            let image = crash.image(&story.recording).expect("the base can be read");
            let allowed = story.allowed(crash.position);
            if let Err(text) = verify(&crash, image, allowed.clone()) {
                failed.fetch_add(1, Ordering::Relaxed);
                let mut kept = failures.lock().expect("nobody panics while noting");
                kept.push(Failure { crash, allowed, text });
                kept.sort_by_key(|failure| failure.crash.number);
                kept.truncate(FAILURES_KEPT);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(look);
        }
    });
    Verdict {
        states: states.into_inner(),
        failed: failed.into_inner(),
        failures: failures.into_inner().expect("nobody panics while noting"),
    }
}

impl Verdict {
    /// Adds the verdict over another story.
    pub fn merge(&mut self, other: Verdict) {
        self.states += other.states;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(FAILURES_KEPT);
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} crashes broke a promise", self.failed, self.states)?;
        for Failure { crash, allowed, text } in &self.failures {
            writeln!(
                f,
                "crash {} at {} ({:?}), states {allowed:?} allowed: {text}",
                crash.number, crash.position, crash.fate
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

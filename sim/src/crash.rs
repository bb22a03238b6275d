//! Checks every crash of a recording against what was durable.
//!
//! A [`Story`] is a workload that has run over a recording device: the device's log, and a mark
//! before and after each step. The states of the filesystem are numbered by steps: state `n` is
//! what the model shows after `n` steps. A crash at a position of the log may leave a range of
//! states:
//!
//! 1. It leaves no state older than the last step that had made everything durable and had
//!    returned.
//! 2. It leaves no state newer than the last step that had begun.
//! 3. It leaves exactly one of these states, because a commit is atomic.
//!
//! [`judge`] passes every crash to the caller's verifier, on several threads. The verifier opens
//! the image and knows what state `n` looks like.

pub mod workload;

use butternut_device::{Crash, CrashImage, CrashOptions, Crashes, Recording, RecordingDevice};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Failures that are kept with their text.
const FAILURES_KEPT: usize = 8;

/// Collects the marks while a workload runs.
#[derive(Debug, Default)]
pub struct StoryBuilder {
    begun: Vec<usize>,
    durable: Vec<(usize, usize)>,
    durable_with_data: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
pub struct Story {
    pub recording: Recording,
    /// The log's position at which step `n` began.
    begun: Vec<usize>,
    /// Pairs of a position of the log and the number of steps that are durable from there on.
    durable: Vec<(usize, usize)>,
    /// As `durable`, for steps after which the data of all files is durable too.
    durable_with_data: Vec<(usize, usize)>,
}

/// A crash that left what it must not leave.
#[derive(Clone, Debug)]
pub struct Failure {
    pub crash: Crash,
    pub allowed: RangeInclusive<usize>,
    pub text: String,
}

#[derive(Debug, Default)]
pub struct Verdict {
    /// The number of crashes that were checked.
    pub states: u64,
    pub failed: u64,
    /// The first failures, in the order of the log.
    pub failures: Vec<Failure>,
}

#[derive(Clone, Copy, Debug)]
pub struct JudgeOptions {
    pub crashes: CrashOptions,
    pub threads: usize,
    /// One crash in so many is checked, evenly over the recording.
    pub one_in: u64,
}

impl StoryBuilder {
    /// Marks the start of a step. The caller calls it before each step.
    pub fn begin_step(&mut self, device: &RecordingDevice) {
        self.begun.push(device.position());
    }

    /// Marks the steps begun so far, and the data of all files, as durable. The caller calls it
    /// after a step that syncs everything.
    pub fn mark_all_durable(&mut self, device: &RecordingDevice) {
        self.mark_steps_durable(device, self.begun.len());
    }

    /// Marks `steps` steps as durable, but not the data of files that were not synced.
    pub fn mark_names_durable(&mut self, device: &RecordingDevice, steps: usize) {
        self.durable.push((device.position(), steps));
    }

    /// Returns the number of steps that have begun.
    pub fn steps(&self) -> usize {
        self.begun.len()
    }

    /// Marks the first `steps` steps as durable, for a sync that runs beside the steps: `steps` of
    /// them had ended when it began.
    pub fn mark_steps_durable(&mut self, device: &RecordingDevice, steps: usize) {
        self.durable.push((device.position(), steps));
        self.durable_with_data.push((device.position(), steps));
    }

    pub fn end(self, device: &RecordingDevice) -> Story {
        let recording = device.recording();
        let StoryBuilder { begun, durable, durable_with_data } = self;
        Story { recording, begun, durable, durable_with_data }
    }
}

impl Story {
    /// Returns how many steps are durable with the data of all files after a crash at this
    /// position.
    pub fn steps_durable_with_data(&self, position: usize) -> usize {
        newest_durable(&self.durable_with_data, position)
    }

    /// Returns the states that a crash at this position of the log may leave.
    pub fn allowed(&self, position: usize) -> RangeInclusive<usize> {
        let oldest = newest_durable(&self.durable, position);
        // A step that began at this position has not written to the device.
        let newest = self.begun.iter().take_while(|at| **at < position).count();
        oldest..=newest.max(oldest)
    }
}

fn newest_durable(durable: &[(usize, usize)], position: usize) -> usize {
    let durable = durable.iter().filter(|(at, _)| *at <= position);
    durable.map(|(_, steps)| *steps).max().unwrap_or(0)
}

/// Checks what a crash left, given the states that it may leave.
pub type Verifier<'a> =
    dyn Fn(&Crash, CrashImage, RangeInclusive<usize>) -> Result<(), String> + Sync + 'a;

/// Checks every crash of a story.
pub fn judge(story: &Story, options: &JudgeOptions, verify: &Verifier<'_>) -> Verdict {
    let crashes = Mutex::new(Crashes::new(story.recording.clone(), options.crashes));
    let (states, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let failures = Mutex::new(Vec::<Failure>::new());
    let check_crashes = || {
        loop {
            let next = crashes.lock().expect("no verifier thread panics").next();
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
                let mut kept = failures.lock().expect("no verifier thread panics");
                kept.push(Failure { crash, allowed, text });
                kept.sort_by_key(|failure| failure.crash.number);
                kept.truncate(FAILURES_KEPT);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(check_crashes);
        }
    });
    Verdict {
        states: states.into_inner(),
        failed: failed.into_inner(),
        failures: failures.into_inner().expect("no verifier thread panics"),
    }
}

impl Verdict {
    /// Adds the verdict on another story.
    pub fn merge(&mut self, other: Verdict) {
        self.states += other.states;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(FAILURES_KEPT);
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} crashes left a state that is not allowed", self.failed, self.states)?;
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

//! Interrupts: SIGINT, SIGTERM and SIGHUP end a run after its clean-up.
//!
//! 1. The signals are blocked before a second thread exists, and one thread waits for them.
//!    Children run in process groups of their own, so a Ctrl-C reaches this process only.
//! 2. A signal is remembered; whatever waits looks at [`pending`] and stops. Nothing is done in a
//!    signal handler.

use anyhow::{Context, Result};
use butternut_sys::signal::EndSignals;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(0);
static SIGNALS: OnceLock<Arc<EndSignals>> = OnceLock::new();

/// A run was interrupted by a signal.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Starts to receive the signals. Must be called before any thread is started.
///
/// # Errors
/// The signals cannot be blocked, or no thread can be started.
pub(crate) fn install() -> Result<()> {
    let signals = Arc::new(EndSignals::block().context("cannot block signals")?);
    drop(SIGNALS.set(Arc::clone(&signals)));
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while let Ok(signal) = signals.wait() {
                SIGNAL.store(signal, Ordering::Release);
            }
        })
        .context("cannot start a thread")?;
    Ok(())
}

/// Returns an error if a signal has come.
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn check() -> Result<(), Interrupted> {
    if pending() { Err(Interrupted) } else { Ok(()) }
}

/// Returns whether a signal has come.
pub(crate) fn pending() -> bool {
    SIGNAL.load(Ordering::Acquire) != 0
}

/// Ends the process by the signal that has come, so that a shell ends its script.
pub(crate) fn end_process() {
    if let Some(signals) = SIGNALS.get() {
        signals.end_process(SIGNAL.load(Ordering::Acquire));
    }
}

//! The thread of a command that a hang-up, an interrupt or SIGTERM ends, after it has put in order
//! what the command would leave.
//!
//! Signals that the process ignores from its start stay ignored.

use std::io;
use std::sync::Arc;
use std::thread;

use butternut_sys::signal::EndSignals;

use crate::failure::Failure;

/// Receives the signals from now on: starts a thread that runs `wait`. What `make` returns has the
/// signals, and is shared with the thread. The process has no other thread yet.
///
/// # Errors
/// The signals cannot be blocked, or there is no thread for them.
pub(super) fn start<T: Send + Sync + 'static>(
    make: impl FnOnce(EndSignals) -> T,
    wait: impl FnOnce(&T) + Send + 'static,
) -> Result<Arc<T>, Failure> {
    let failed = |error: io::Error| Failure::io("the signal thread", &error);
    let signals = EndSignals::block_unless_ignored().map_err(|errno| failed(errno.into()))?;
    let shared = Arc::new(make(signals));
    let waiting = Arc::clone(&shared);
    let named = thread::Builder::new().name("signals".to_owned());
    named.spawn(move || wait(&waiting)).map_err(failed)?;
    Ok(shared)
}

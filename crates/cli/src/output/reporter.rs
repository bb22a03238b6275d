//! The reporter: the two threads that write the messages of a process that serves a mount.
//!
//! ```text
//! any thread --line--> queue --> reporter thread --> stderr
//!            --line--> queue --> reporter thread --> /dev/log
//! ```
//!
//! 1. After [`start`], no other thread writes to stderr or to syslog. A pipe that nothing reads
//!    blocks only the reporter, never a thread that serves, commits or ends the mount. The messages
//!    of panics are queued too; one of the main thread, which ends the process, is written first.
//! 2. A queue holds at most [`QUEUED_MAX`] lines. A line that finds it full is dropped, and a later
//!    line reports the number of dropped ones.
//! 3. [`flush`] waits until the queued lines are written, for at most [`FLUSH_TIMEOUT`]. The
//!    process then ends without the lines that are still queued.
//! 4. Before [`start`], and in all other commands, the calling thread writes its messages itself.

use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{panic, thread};

/// Maximum time for which [`flush`] waits, and for one message to syslog.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of lines in a queue.
const QUEUED_MAX: usize = 1000;

/// The syslog socket.
const LOG: &str = "/dev/log";

static REPORTER: OnceLock<Reporter> = OnceLock::new();

struct Reporter {
    stderr: Arc<Queue>,
    syslog: Arc<Queue>,
}

/// The lines that one thread writes.
#[derive(Default)]
struct Queue {
    state: Mutex<State, rank::Reporter>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<String>,
    /// The thread writes a line that it has taken from the queue.
    is_writing: bool,
    /// Number of lines that found the queue full and are not reported yet.
    dropped: u64,
}

/// Starts the threads. They inherit the signal mask of the caller.
///
/// # Errors
/// Fails if a thread cannot be started.
pub(crate) fn start() -> io::Result<()> {
    let stderr = Queue::start(|line| write!(io::stderr(), "{line}").unwrap_or_default())?;
    let syslog = Queue::start(|line| send_to_syslog(line).unwrap_or_default())?;
    // Only one mount is served in a process. If the reporter runs already, it is kept.
    REPORTER.set(Reporter { stderr, syslog }).unwrap_or_default();
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let text = format!("thread {}: {panic}", thread.name().unwrap_or("without a name"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            super::stderr_lines(&format!("{text}\n{backtrace}"));
        } else {
            super::stderr_lines(&text);
        }
        if thread.name() == Some("main") {
            flush();
        }
    }));
    Ok(())
}

/// Queues a text for stderr. Returns `false` if the reporter does not run: then the caller writes
/// the text.
pub(super) fn queue_for_stderr(text: &str) -> bool {
    let reporter = REPORTER.get();
    if let Some(reporter) = reporter {
        reporter.stderr.put(text.to_owned());
    }
    reporter.is_some()
}

/// Queues a message for syslog, unless the reporter does not run.
pub(crate) fn queue_for_syslog(message: String) {
    if let Some(reporter) = REPORTER.get() {
        reporter.syslog.put(message);
    }
}

/// Waits until the queued messages are written (law 3).
pub(crate) fn flush() {
    let Some(reporter) = REPORTER.get() else { return };
    let deadline = Instant::now() + FLUSH_TIMEOUT;
    reporter.stderr.flush(deadline);
    reporter.syslog.flush(deadline);
}

/// Sends a message to syslog. A syslog daemon that does not receive delays only the reporter.
fn send_to_syslog(message: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(FLUSH_TIMEOUT))?;
    socket.send_to(message.as_bytes(), LOG).map(drop)
}

impl Queue {
    /// Starts a thread that calls `write` for each line.
    fn start(write: impl FnMut(&str) + Send + 'static) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let of_thread = Arc::clone(&queue);
        let name = "butternut-log".to_owned();
        thread::Builder::new().name(name).spawn(move || of_thread.run(write))?;
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a line, unless the queue is full. Never waits for the writer.
    fn put(&self, line: String) {
        let mut state = self.lock();
        if state.lines.len() < QUEUED_MAX {
            state.lines.push_back(line);
            self.changed.notify_all();
        } else {
            state.dropped = state.dropped.saturating_add(1);
        }
    }

    /// Waits until all lines are written, or until the deadline.
    fn flush(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_behind = |state: &mut State| state.is_writing || !state.lines.is_empty();
        let waited = self.changed.wait_timeout_while(self.lock(), left, is_behind);
        drop(waited);
    }

    fn run(&self, mut write: impl FnMut(&str)) {
        loop {
            let (line, dropped) = self.take();
            write(&line);
            if dropped > 0 {
                write(&format!("butternut: {dropped} messages were dropped\n"));
            }
            self.lock().is_writing = false;
            self.changed.notify_all();
        }
    }

    /// Waits for a line and removes it from the queue. The number is that of the lines dropped
    /// since the last call.
    fn take(&self) -> (String, u64) {
        let mut state = self.lock();
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.is_writing = true;
                return (line, std::mem::take(&mut state.dropped));
            }
            state = self.changed.wait(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_flush_waits_for_the_queued_lines() {
        let (written, lines) = mpsc::channel();
        let queue = Queue::start(move |line| written.send(line.to_owned()).unwrap()).unwrap();
        for number in 0..QUEUED_MAX {
            queue.put(number.to_string());
        }
        queue.flush(Instant::now() + Duration::from_secs(30));
        let lines: Vec<String> = lines.try_iter().collect();
        assert_eq!(lines.len(), QUEUED_MAX);
        assert_eq!(lines.last().map(String::as_str), Some("999"));
    }

    #[test]
    fn a_writer_that_blocks_delays_neither_a_line_nor_the_end() {
        let (pipe, full_pipe) = mpsc::channel::<()>();
        let (written, lines) = mpsc::channel();
        let write = move |line: &str| {
            full_pipe.recv().unwrap_or_default();
            written.send(line.to_owned()).unwrap_or_default();
        };
        let queue = Queue::start(write).unwrap();
        // One line may be with the writer.
        for _ in 0..QUEUED_MAX + 3 {
            queue.put("line".to_owned());
        }
        queue.flush(Instant::now() + Duration::from_millis(10));
        assert!(lines.try_recv().is_err());
        drop(pipe);
        queue.flush(Instant::now() + Duration::from_secs(30));
        let dropped: Vec<String> =
            lines.try_iter().filter(|line| line.contains("were dropped")).collect();
        assert_eq!(dropped.len(), 1, "{dropped:?}");
    }
}

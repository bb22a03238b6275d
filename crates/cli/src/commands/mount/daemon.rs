//! The daemon of a mount without --foreground: how the command starts it, and how it reports.
//!
//! ```text
//! command --- exec, `mount --ready` ---> daemon
//!         --- SIGTERM, at a signal ----> daemon    (opens the volume, mounts)
//!         <-- READY, then the end ------ daemon    (serves the mount)
//! ```
//!
//! 1. The daemon is a new program (exec), not a fork of a process with threads. It inherits only
//!    the three standard descriptors, and closes those when the volume is mounted: a lock or pipe
//!    of the caller must not stay open as long as the mount.
//! 2. The command passes signals on, and waits for the daemon. It ends with status 0 and the volume
//!    mounted, or otherwise and the volume not mounted, as mount(8) does. Only if the output of
//!    --json cannot be written, it fails with the volume mounted, and the message says so.
//! 3. Once the daemon has reported, it has no stderr. If it does not end soon after a signal, the
//!    command prints what it waits for.
//! 4. A daemon that cannot report, because the command was killed, ends the mount as a signal
//!    would: other programs may have written to it already.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use butternut_sys::descriptors;
use butternut_sys::signal::EndSignals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::signals;
use crate::args::{GlobalArgs, MountArgs};
use crate::failure::{Completion, Failure, Outcome, io_text};
use crate::output::{Output, json, reporter, stderr_line};

/// The daemon writes this to its stdout when the volume is mounted.
const READY: &[u8] = b"ready\n";

/// Interval at which the command looks for signals while it waits for the daemon.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Starts the daemon, and waits until the volume is mounted or the daemon has ended.
pub(super) fn start(
    global: &GlobalArgs,
    args: &MountArgs,
    mountpoint: &Path,
    out: &mut Output,
) -> Outcome {
    let failed = |error: &io::Error| Failure::io("the daemon", error);
    descriptors::close_on_exec().map_err(|errno| failed(&errno.into()))?;
    let signals = EndSignals::block().map_err(|errno| failed(&errno.into()))?;
    let mut daemon = command_line(global, args)
        .and_then(|mut command| command.spawn())
        .map_err(|error| failed(&error))?;
    let id = daemon.id();
    let shown = mountpoint.display().to_string();
    let note = || {
        if global.quiet {
            return;
        }
        let text = "still unmounts: it is in use, or waits for a device (a further signal is";
        stderr_line(&format!("{shown}: note: {text} passed on)"));
    };
    let next_signal = |timeout| Ok(signals.wait_for(timeout)?);
    match wait(&mut daemon, next_signal, note).map_err(|error| failed(&error))? {
        Report::Mounted => {
            if global.json {
                let mountpoint = mountpoint.as_os_str().as_encoded_bytes();
                let object = json::Object::new().name("mountpoint", mountpoint);
                json::result(out, object.put("process", id), super::MOUNTED)?;
            }
            Ok(Completion::Success)
        }
        Report::Ended(_, Some(signal)) => {
            signals.end_process(signal);
            Ok(Completion::Status(u8::try_from(128 + signal).unwrap_or(1)))
        }
        // The daemon has reported the failure on the inherited stderr.
        Report::Ended(status, None) => match status.code() {
            Some(_) => Ok(Completion::PartialFailure),
            None => Err(Failure::new("the daemon", format!("was terminated by {status}"))),
        },
    }
}

fn command_line(global: &GlobalArgs, args: &MountArgs) -> io::Result<Command> {
    // The path of the program rather than /proc/self/exe, so that ps(1) shows its name.
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("butternut").arg("mount").arg("--ready");
    for (given, flag) in
        [(global.verbose, "--verbose"), (global.quiet, "--quiet"), (global.degraded, "--degraded")]
    {
        if given {
            command.arg(flag);
        }
    }
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    if let Some(threads) = args.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    command.arg("--").args(&args.paths);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// What has become of the daemon.
enum Report {
    Mounted,
    /// It has ended, perhaps by a signal that was passed on to it.
    Ended(ExitStatus, Option<i32>),
}

/// Waits for the report or the end of the daemon, and passes signals on (law 2). After a signal
/// only the end counts, because the report may be older than the signal. Calls `note` once if the
/// end takes long (law 3).
fn wait(
    daemon: &mut Child,
    next_signal: impl Fn(Duration) -> io::Result<Option<i32>>,
    note: impl FnOnce(),
) -> io::Result<Report> {
    let mut pipe = daemon.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (mut report, mut is_at_end) = (Vec::new(), false);
    let (mut passed_on, mut note, mut note_due) = (None, Some(note), None);
    loop {
        let timeout = if is_at_end { SIGNAL_INTERVAL } else { Duration::ZERO };
        if let Some(signal) = next_signal(timeout)? {
            note_due.get_or_insert_with(|| Instant::now() + signals::SLOW_DEVICE_TIMEOUT);
            passed_on = Some(signal);
            terminate(daemon);
        }
        let is_due = report == READY && note_due.is_some_and(|due| Instant::now() >= due);
        if let Some(note) = note.take_if(|_| is_due) {
            note();
        }
        if !is_at_end && has_input(&pipe)? {
            let mut bytes = [0; READY.len() + 1];
            let count = pipe.read(&mut bytes)?;
            report.extend_from_slice(&bytes[..count]);
            is_at_end = count == 0;
        }
        if is_at_end && report == READY && passed_on.is_none() {
            return Ok(Report::Mounted);
        }
        if is_at_end && let Some(status) = daemon.try_wait()? {
            return Ok(Report::Ended(status, passed_on));
        }
    }
}

/// Waits for input or the end of the pipe, for at most [`SIGNAL_INTERVAL`].
fn has_input(pipe: &impl std::os::fd::AsFd) -> io::Result<bool> {
    let timeout = Timespec::try_from(SIGNAL_INTERVAL).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// Sends SIGTERM. The daemon was not waited for yet, so its process id is not reused.
fn terminate(daemon: &Child) {
    if let Some(id) = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw) {
        // Fails if the daemon has ended.
        kill_process(id, Signal::TERM).unwrap_or_default();
    }
}

/// Returns whether the command that started this daemon was killed: the pipe has no reader.
pub(super) fn is_abandoned() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    // An interrupted poll counts as a command that lives.
    poll(&mut polled, Some(&Timespec::default()))
        .is_ok_and(|_| polled[0].revents().contains(PollFlags::ERR))
}

/// Describes a report that cannot be written.
pub(super) fn parent_failed(error: &io::Error) -> Failure {
    Failure::io("the daemon's parent", error).hint("nothing is mounted")
}

/// Reports that the volume is mounted, and releases the terminal and the working directory. If that
/// fails, ends the mount (law 4) and returns `false`.
pub(super) fn report_mounted() -> bool {
    // The caller of the command sees the messages so far.
    reporter::flush();
    let reported = release_terminal();
    if let Err(error) = &reported {
        let why = io_text(error);
        stderr_line(&format!("the daemon's parent: {why} (the volume is unmounted again)"));
        signals::send_to_itself();
    }
    reported.is_ok()
}

fn release_terminal() -> io::Result<()> {
    rustix::process::chdir("/")?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    // The mount is reported, so it stays: a descriptor that cannot be replaced stays open.
    rustix::stdio::dup2_stdin(&null).unwrap_or_default();
    rustix::stdio::dup2_stdout(&null).unwrap_or_default();
    rustix::stdio::dup2_stderr(&null).unwrap_or_default();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// As a daemon that was signalled just after its report, on a device that does not respond.
    #[test]
    fn the_command_reports_that_a_daemon_does_not_end_after_a_signal() {
        let script = "trap '' TERM; echo trapped >&2; echo ready; exec >&-; read end";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut daemon = command.stderr(Stdio::piped()).spawn().unwrap();
        let (stdin, mut stderr) = (daemon.stdin.take(), daemon.stderr.take().unwrap());
        // A signal before the trap would end it.
        let mut trapped = [0; "trapped\n".len()];
        stderr.read_exact(&mut trapped).unwrap();
        let (mut is_noted, is_sent) = (false, Cell::new(false));
        let interrupt = |timeout| {
            std::thread::sleep(timeout);
            Ok((!is_sent.replace(true)).then_some(2))
        };
        let report = wait(&mut daemon, interrupt, || {
            is_noted = true;
            drop(stdin);
        });
        assert!(matches!(report, Ok(Report::Ended(_, Some(2)))));
        assert!(is_noted);
    }
}

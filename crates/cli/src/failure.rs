//! Error messages of the form `OBJECT: REASON (HINT)`.

pub(crate) mod hints;
pub(crate) mod subvolumes;

use std::fmt;
use std::io;

use butternut::Error;

/// Exit status of a usage error.
pub(crate) const USAGE_STATUS: u8 = 2;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A message for stderr: the object, what went wrong, and what the user can do.
    Message { what: String, why: String, hint: Option<String>, status: FailureStatus },
    /// The reader of stdout has closed the pipe. Nothing is reported.
    StdoutClosed,
}

/// Which exit status a failure has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureStatus {
    /// An operation has failed.
    Failed,
    /// The arguments are not those of the command.
    Usage,
}

/// The result of a command.
pub(crate) type Outcome = Result<Completion, Failure>;

/// The exit status that a shell shows for a program that SIGPIPE has ended.
pub(crate) const SIGPIPE_STATUS: u8 = 128 + 13;

/// How a command that ran to its end has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completion {
    Success,
    /// Some operations failed; each failure has been reported on stderr.
    PartialFailure,
    /// An exit status that the command defines itself.
    Status(u8),
}

impl Completion {
    /// Returns this completion of a command that has printed its output, also where nothing read
    /// all of it: a failure that was reported before shows in the status.
    pub(crate) fn after(self, printed: Result<(), Failure>) -> Outcome {
        match printed {
            Ok(()) | Err(Failure::StdoutClosed) => Ok(self),
            Err(failure) => Err(failure),
        }
    }
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        let status = FailureStatus::Failed;
        Self::Message { what: what.into(), why: why.into(), hint: None, status }
    }

    /// As [`Self::new`], for arguments that have no meaning, whatever the volume contains.
    pub(crate) fn usage(what: impl Into<String>, why: impl Into<String>) -> Self {
        let status = FailureStatus::Usage;
        Self::Message { what: what.into(), why: why.into(), hint: None, status }
    }

    /// Returns whether the exit status is that of a usage error.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Message { status: FailureStatus::Usage, .. })
    }

    /// Sets the hint, replacing an earlier one.
    pub(crate) fn hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Message { what, why, status, .. } => {
                Self::Message { what, why, hint: Some(text.into()), status }
            }
            Self::StdoutClosed => Self::StdoutClosed,
        }
    }

    /// Sets the hint, if there is one.
    pub(crate) fn hint_if(self, text: Option<impl Into<String>>) -> Self {
        match text {
            Some(text) => self.hint(text),
            None => self,
        }
    }

    /// Replaces a part of the reason.
    pub(crate) fn replace(self, part: &str, by: &str) -> Self {
        match self {
            Self::Message { what, why, hint, status } => {
                Self::Message { what, why: why.replace(part, by), hint, status }
            }
            Self::StdoutClosed => Self::StdoutClosed,
        }
    }

    pub(crate) fn has_hint(&self) -> bool {
        matches!(self, Self::Message { hint: Some(_), .. })
    }

    /// Describes an error of the library that occurred on `what`, with a hint if one is known.
    pub(crate) fn of(what: impl Into<String>, error: &Error) -> Self {
        let hint = hints::of_library(error).map(str::to_owned);
        let mounted =
            if let Error::Device(error) = error { hints::of_mounted(error) } else { None };
        let hint = mounted.or(hint);
        let what = what.into();
        let why = chain(error);
        let why = if let Error::Device(_) = error { without_object(&why, &what) } else { why };
        Self::Message { what, why, hint, status: FailureStatus::Failed }
    }

    /// Describes a failed system call on `what`.
    pub(crate) fn io(what: impl Into<String>, error: &io::Error) -> Self {
        Self::new(what, io_text(error))
    }
}

impl From<io::Error> for Failure {
    /// Converts an error without an object: only writes to stdout return one.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::StdoutClosed;
        }
        Self::io("stdout", &error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { what, why, hint: None, .. } => write!(f, "{what}: {why}"),
            Self::Message { what, why, hint: Some(hint), .. } => {
                write!(f, "{what}: {why} ({hint})")
            }
            Self::StdoutClosed => f.write_str("stdout is closed"),
        }
    }
}

/// Removes the name of a device from an error about it: the message begins with that name.
pub(crate) fn without_object(why: &str, device: &str) -> String {
    let why = why.strip_prefix(device).and_then(|why| why.strip_prefix(' ')).unwrap_or(why);
    why.replace(&format!("cannot open {device}: "), "cannot be opened: ")
}

/// Joins an error and its causes into one line, without repeating a cause.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = unnumbered(&error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = unnumbered(&error.to_string());
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}

/// Joins an error, its causes and the hint: a message that another process prints.
pub(crate) fn chain_with_hint(error: &Error) -> String {
    let text = chain(error);
    hints::of_library(error).map_or_else(|| text.clone(), |hint| format!("{text} ({hint})"))
}

/// Returns the text of a system error, without the error number.
pub(crate) fn io_text(error: &io::Error) -> String {
    unnumbered(&error.to_string())
}

/// Removes the error number from the text of a system error, and its initial capital.
fn unnumbered(text: &str) -> String {
    let Some(at) = text.find(" (os error") else { return text.to_owned() };
    let mut letters = text[..at].chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_an_object_a_reason_and_a_hint() {
        let failure = Failure::of("/x", &Error::NotFound);
        assert_eq!(
            failure.to_string(),
            "/x: no such file or directory (`butternut ls` shows what is there)"
        );
    }

    #[test]
    fn system_errors_are_shown_without_their_number() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(Failure::io("a", &error).to_string(), "a: no such file or directory");
    }

    #[test]
    fn a_closed_pipe_is_not_reported() {
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(closed), Failure::StdoutClosed));
    }
}

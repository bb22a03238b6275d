//! Failures as people see them: `WHAT: WHY (WHAT TO DO)`.

use std::error::Error as _;
use std::fmt;
use std::io;

use butternut::Error;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to say on stderr.
    Said { what: String, why: String, cure: Option<String> },
    /// The reader of stdout has gone; nobody is left to tell.
    Closed,
}

/// What a command returns: whether all of it went well.
pub(crate) type Outcome = Result<Done, Failure>;

/// How a command that reached its end went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Well,
    /// Parts failed, and each was said.
    WithFailures,
    /// The command has exit statuses of its own.
    Status(u8),
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Said { what: what.into(), why: why.into(), cure: None }
    }

    /// Adds what to do about it.
    pub(crate) fn cure(self, text: impl Into<String>) -> Self {
        match self {
            Self::Said { what, why, cure: _ } => Self::Said { what, why, cure: Some(text.into()) },
            Self::Closed => Self::Closed,
        }
    }

    pub(crate) fn has_cure(&self) -> bool {
        matches!(self, Self::Said { cure: Some(_), .. })
    }

    /// A call of the library that failed on `what`.
    pub(crate) fn of(what: impl Into<String>, error: &Error) -> Self {
        Self::Said { what: what.into(), why: chain(error), cure: cure_of(error) }
    }

    /// A call of the system that failed on `what`.
    pub(crate) fn io(what: impl Into<String>, error: &io::Error) -> Self {
        Self::new(what, plain(error))
    }
}

impl From<io::Error> for Failure {
    /// Only writing to stdout fails without a name.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Closed;
        }
        Self::io("stdout", &error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said { what, why, cure: None } => write!(f, "{what}: {why}"),
            Self::Said { what, why, cure: Some(cure) } => write!(f, "{what}: {why} ({cure})"),
            Self::Closed => f.write_str("stdout is closed"),
        }
    }
}

/// An error and its causes, each once.
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

/// An error with its causes, and what to do about it: a message for another process's user.
pub(crate) fn chain_and_cure(error: &Error) -> String {
    let text = chain(error);
    cure_of(error).map_or_else(|| text.clone(), |cure| format!("{text} ({cure})"))
}

/// A system error in its own words, without the number.
pub(crate) fn plain(error: &io::Error) -> String {
    unnumbered(&error.to_string())
}

/// A system error's text starts small and has no number: the words say it.
fn unnumbered(text: &str) -> String {
    let Some(at) = text.find(" (os error") else { return text.to_owned() };
    let mut letters = text[..at].chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// The error number of a full volume.
const NO_SPACE: i32 = 28;

/// What to do about an error of the library.
fn cure_of(error: &Error) -> Option<String> {
    let io_kind = error.source().and_then(innermost_io).map(io::Error::kind);
    let text = if chain(error).contains("its device item says") {
        "if it was cut short, give it its length back, or name the other devices with --degraded"
    } else if io_kind == Some(io::ErrorKind::NotFound) {
        "check the path"
    } else if io_kind == Some(io::ErrorKind::PermissionDenied) {
        "ask its owner, or use a copy you may read"
    } else if matches!(error, Error::NotFound) {
        "`butternut ls` shows what is there"
    } else if matches!(error, Error::NotDirectory | Error::WrongKind { .. }) {
        "`butternut stat` shows what it is"
    } else if matches!(error, Error::NoSubvolume { .. } | Error::NotSubvolume { .. }) {
        "`butternut subvolume list` shows what there is"
    } else if matches!(error, Error::IsDirectory) {
        "name a file in it; `butternut ls` shows them"
    } else if matches!(error, Error::Exists) {
        "remove it, or choose another name"
    } else if matches!(error, Error::NotEmpty) {
        "`butternut rm -r` removes it with what is in it"
    } else if matches!(error, Error::CrossesSubvolumes) {
        "copy it with `butternut export` and `butternut import`"
    } else if error.errno() == NO_SPACE {
        "remove something, or make the volume larger with `butternut filesystem resize`"
    } else {
        return None;
    };
    Some(text.to_owned())
}

fn innermost_io<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io);
        }
        at = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_to_do() {
        let failure = Failure::of("/x", &Error::NotFound);
        assert_eq!(
            failure.to_string(),
            "/x: no such file or directory (`butternut ls` shows what is there)"
        );
    }

    #[test]
    fn system_errors_lose_their_number() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(Failure::io("a", &error).to_string(), "a: no such file or directory");
    }

    #[test]
    fn a_closed_reader_is_not_a_failure_to_tell() {
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(closed), Failure::Closed));
    }
}

//! `truncate`: shrinks or extends files to a size.

use butternut::{Privileges, SetAttributes, SetTime};

use super::touch::find_or_make;
use super::transaction::{Transaction, failed};
use crate::args::{GlobalArgs, TruncateArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// A size on the command line, absolute or relative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Exactly(u64),
    More(u64),
    Fewer(u64),
}

pub(crate) fn run(global: &GlobalArgs, args: &TruncateArgs, out: &mut Output) -> Outcome {
    let size = Size::parse("--size", &args.size)?;
    let mut transaction = Transaction::open_to_delete(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let Some(id) = find_or_make(&mut transaction, &path, !args.no_create)? else { continue };
        let was = transaction.stat(id, &path)?.size;
        let bytes = size.of(was).ok_or_else(|| {
            Failure::new(text::escaped(&path), "the new size is larger than the maximum file size")
                .hint("choose a smaller size")
        })?;
        // As on a mounted volume, a change of size clears the set-ID bits. truncate(1) updates the
        // modification time even if the size stays the same.
        let mtime = Some(SetTime::Now);
        let set =
            SetAttributes { privileges: Privileges::Strip, mtime, ..SetAttributes::size(bytes) };
        transaction.filesystem().set_attributes(id, &set).map_err(|error| failed(&path, &error))?;
        transaction.record("changed", &path);
    }
    transaction.finish(global, out, |object| object)
}

impl Size {
    pub(super) fn parse(flag: &str, typed: &str) -> Result<Self, Failure> {
        if let Some(more) = typed.strip_prefix('+') {
            return crate::args::parse_bytes(flag, more).map(Self::More);
        }
        match typed.strip_prefix('-') {
            Some(fewer) => crate::args::parse_bytes(flag, fewer).map(Self::Fewer),
            None => crate::args::parse_bytes(flag, typed).map(Self::Exactly),
        }
    }

    /// Returns the new size of a file of `was` bytes, at least 0, or `None` on overflow.
    pub(super) fn of(self, was: u64) -> Option<u64> {
        match self {
            Self::Exactly(bytes) => Some(bytes),
            Self::More(bytes) => was.checked_add(bytes),
            Self::Fewer(bytes) => Some(was.saturating_sub(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_relative() {
        let of = |typed, was| Size::parse("--size", typed).unwrap().of(was);
        assert_eq!(of("10", 3), Some(10));
        assert_eq!(of("+1K", 3), Some(1027));
        assert_eq!(of("-2", 3), Some(1));
        assert_eq!(of("-1M", 3), Some(0));
        assert_eq!(of("+1", u64::MAX), None);
        assert!(Size::parse("--size", "+-1").is_err());
    }
}

//! `truncate`: the size of files.

use butternut::{Privileges, SetAttributes, SetTime};

use super::change::{Change, failed};
use super::touch::find_or_make;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, TruncateArgs};
use crate::options;
use crate::output::{Output, text};

/// A size as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Exactly(u64),
    More(u64),
    Fewer(u64),
}

pub(crate) fn run(global: &GlobalArgs, args: &TruncateArgs, out: &mut Output) -> Outcome {
    let size = Size::parse("--size", &args.size)?;
    let mut change = Change::open_to_delete(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let Some(id) = find_or_make(&mut change, &path, !args.no_create)? else { continue };
        let was = change.stat(id, &path)?.size;
        let bytes = size.of(was).ok_or_else(|| {
            Failure::new(text::escaped(&path), "no file is as large as that").cure("ask for less")
        })?;
        // The set-id bits of what is cut or grown go, as they do under a mount. truncate(1) changes
        // the time of modification also where the size stays.
        let mtime = Some(SetTime::Now);
        let set =
            SetAttributes { privileges: Privileges::Strip, mtime, ..SetAttributes::size(bytes) };
        change.filesystem().set_attributes(id, &set).map_err(|error| failed(&path, &error))?;
        change.did("changed", &path);
    }
    change.finish(global, out, |object| object)
}

impl Size {
    pub(super) fn parse(flag: &str, typed: &str) -> Result<Self, Failure> {
        if let Some(more) = typed.strip_prefix('+') {
            return options::bytes(flag, more).map(Self::More);
        }
        match typed.strip_prefix('-') {
            Some(fewer) => options::bytes(flag, fewer).map(Self::Fewer),
            None => options::bytes(flag, typed).map(Self::Exactly),
        }
    }

    /// The new size of what had `was` bytes; nothing is smaller than empty.
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

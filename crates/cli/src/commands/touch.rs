//! `touch`: changes access and modification times, and creates missing files.

use std::time::{SystemTime, UNIX_EPOCH};

use butternut::{Error, FileId, Follow, SetAttributes, SetTime, Time};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::transaction::{Transaction, failed, new_inode};
use crate::args::{GlobalArgs, TouchArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// Mode of a new file.
pub(super) const PERMISSIONS: u32 = 0o644;

pub(crate) fn run(global: &GlobalArgs, args: &TouchArgs, out: &mut Output) -> Outcome {
    let time = args.date.as_deref().map_or_else(|| Ok(now()), parse)?;
    let mut transaction = Transaction::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let Some(id) = find_or_make(&mut transaction, &path, !args.no_create)? else { continue };
        let (atime, mtime) = (Some(SetTime::At(time)), Some(SetTime::At(time)));
        let set = SetAttributes { atime, mtime, ..SetAttributes::default() };
        transaction.filesystem().set_attributes(id, &set).map_err(|error| failed(&path, &error))?;
        transaction.record("changed", &path);
    }
    transaction.finish(global, out, |object| object)
}

/// Resolves a path. If it does not exist and `creates` is set, creates an empty file; otherwise
/// returns `None`.
pub(super) fn find_or_make(
    transaction: &mut Transaction,
    path: &[u8],
    creates: bool,
) -> Result<Option<FileId>, Failure> {
    match transaction.filesystem().resolve(path, Follow::Last) {
        Ok(id) => return Ok(Some(id)),
        Err(Error::NotFound) => {}
        Err(error) => return Err(failed(path, &error)),
    }
    if !creates {
        return Ok(None);
    }
    let location = transaction.locate(path)?;
    location.refuse_slash()?;
    if transaction.existing(&location)?.is_some() {
        return Err(Failure::new(text::escaped(path), "is a symlink whose target does not exist")
            .hint("name the target"));
    }
    let new = new_inode(PERMISSIONS);
    let made = transaction.filesystem().create(location.dir, &location.name, &new);
    let id = made.map_err(|error| failed(path, &error))?;
    transaction.record("made", path);
    Ok(Some(id))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: i64::try_from(since.as_secs()).unwrap_or_default(), nanos: since.subsec_nanos() }
}

/// Parses `@SECONDS`, a timestamp, or a local date and time.
fn parse(typed: &str) -> Result<Time, Failure> {
    let wrong = || {
        Failure::new("--date", format!("{typed:?} is not a time"))
            .hint("examples: 2024-05-01T12:00:00Z, \"2024-05-01 12:00:00\", @1714564800")
    };
    if let Some(seconds) = typed.strip_prefix('@') {
        let secs = seconds.parse().map_err(|_| wrong())?;
        return Ok(Time { secs, nanos: 0 });
    }
    let here =
        |civil: DateTime| -> Result<Zoned, jiff::Error> { civil.to_zoned(TimeZone::system()) };
    let stamp: Timestamp = typed
        .parse()
        .or_else(|_| typed.parse::<DateTime>().and_then(here).map(|zoned| zoned.timestamp()))
        .map_err(|_| wrong())?;
    // `nanos` counts forward from `secs`, also before 1970.
    let nanos = stamp.as_nanosecond();
    let secs = i64::try_from(nanos.div_euclid(1_000_000_000)).map_err(|_| wrong())?;
    let nanos = u32::try_from(nanos.rem_euclid(1_000_000_000)).map_err(|_| wrong())?;
    Ok(Time { secs, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_timestamps_or_dates() {
        assert_eq!(parse("@-5").unwrap(), Time { secs: -5, nanos: 0 });
        let stamp = parse("2024-05-01T12:00:00.25Z").unwrap();
        assert_eq!(stamp, Time { secs: 1_714_564_800, nanos: 250_000_000 });
        let before = parse("1969-12-31T23:59:59.75Z").unwrap();
        assert_eq!(before, Time { secs: -1, nanos: 750_000_000 });
        assert!(parse("2024-05-01 12:00:00").is_ok());
        for typed in ["", "@x", "yesterday", "2024-13-01"] {
            assert!(parse(typed).is_err(), "{typed:?}");
        }
    }
}

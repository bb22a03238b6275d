//! `touch`: access and modification times; empty files where there are none.

use std::time::{SystemTime, UNIX_EPOCH};

use butternut::{Error, FileId, Follow, SetAttributes, SetTime, Time};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::change::{Change, failed, new_inode};
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, TouchArgs};
use crate::output::{Output, text};

/// Permissions of a file that nobody decides on.
pub(super) const PERMISSIONS: u32 = 0o644;

pub(crate) fn run(global: &GlobalArgs, args: &TouchArgs, out: &mut Output) -> Outcome {
    let time = args.date.as_deref().map_or_else(|| Ok(now()), parse)?;
    let mut change = Change::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let Some(id) = find_or_make(&mut change, &path, !args.no_create)? else { continue };
        let (atime, mtime) = (Some(SetTime::At(time)), Some(SetTime::At(time)));
        let set = SetAttributes { atime, mtime, ..SetAttributes::default() };
        change.filesystem().set_attributes(id, &set).map_err(|error| failed(&path, &error))?;
        change.did("changed", &path);
    }
    change.finish(global, out, |object| object)
}

/// What a path leads to; an empty file is made where nothing is, if asked for.
pub(super) fn find_or_make(
    change: &mut Change,
    path: &[u8],
    makes: bool,
) -> Result<Option<FileId>, Failure> {
    match change.filesystem().resolve(path, Follow::Last) {
        Ok(id) => return Ok(Some(id)),
        Err(Error::NotFound) => {}
        Err(error) => return Err(failed(path, &error)),
    }
    if !makes {
        return Ok(None);
    }
    let place = change.place(path)?;
    if change.occupant(&place)?.is_some() {
        return Err(Failure::new(text::escaped(path), "is a symlink to what is not there")
            .cure("name what it points at"));
    }
    let new = new_inode(PERMISSIONS);
    let made = change.filesystem().create(place.dir, &place.name, &new);
    let id = made.map_err(|error| failed(path, &error))?;
    change.did("made", path);
    Ok(Some(id))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: i64::try_from(since.as_secs()).unwrap_or_default(), nanos: since.subsec_nanos() }
}

/// `@SECONDS`, a timestamp, or a date and time here.
fn parse(typed: &str) -> Result<Time, Failure> {
    let wrong = || {
        Failure::new("--date", format!("{typed:?} is no time"))
            .cure("write 2024-05-01T12:00:00Z, \"2024-05-01 12:00:00\" or @1714564800")
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
    // Nanoseconds count upward, also before 1970.
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

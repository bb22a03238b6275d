//! Formats values that several items share: UUIDs, names, times, flags.

use butternut_format::inode::RawTimespec;
use butternut_format::uuid::Uuid;
use jiff::{Timestamp, tz::TimeZone};
use std::fmt;
use std::io::{self, Write};

const DAY_SECS: i64 = 86_400;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;
/// Days in 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;

/// Displays a UUID.
pub(super) struct UuidText<'a>(pub(super) &'a [u8; 16]);

/// Displays bytes in hexadecimal, in memory order.
pub(super) struct HexText<'a>(pub(super) &'a [u8]);

/// Displays a name or value on one line, with backslash escapes, or octal if there is none.
pub(super) struct EscapedText<'a>(pub(super) &'a [u8]);

/// Displays seconds since 1970 as a local date and time.
pub(super) struct LocalTimeText(pub(super) i64);

impl fmt::Display for UuidText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid(*self.0).fmt(f)
    }
}

impl fmt::Display for HexText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| match byte {
            0x07 => f.write_str("\\a"),
            0x08 => f.write_str("\\b"),
            b'\t' => f.write_str("\\t"),
            b'\n' => f.write_str("\\n"),
            0x0b => f.write_str("\\v"),
            0x0c => f.write_str("\\f"),
            b'\r' => f.write_str("\\r"),
            0x1b => f.write_str("\\e"),
            b' ' => f.write_str("\\ "),
            b'\\' => f.write_str("\\\\"),
            b'!'..=b'~' => write!(f, "{}", char::from(*byte)),
            _ => write!(f, "\\{byte:03o}"),
        })
    }
}

impl fmt::Display for LocalTimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let at = Timestamp::from_second(known).map_err(|_| fmt::Error)?;
        let ahead = i64::from(TimeZone::system().to_offset(at).seconds());
        let local = self.0.saturating_add(ahead);
        let (year, month, day) = civil(local.div_euclid(DAY_SECS));
        let second = local.rem_euclid(DAY_SECS);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }
}

/// Converts days since 1970-01-01 to year, month and day of the proleptic Gregorian calendar. Years
/// begin in March, so that the leap day is the last day of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(EPOCH_DAYS);
    let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day_of_month)
}

/// Prints a time: seconds as an unsigned number, nanoseconds, and the local time.
pub(super) fn time_line(name: &str, time: &RawTimespec, out: &mut dyn Write) -> io::Result<()> {
    let secs = time.sec.get();
    let unsigned = secs.cast_unsigned();
    writeln!(out, "\t\t{name} {unsigned}.{} ({})", time.nsec, LocalTimeText(secs))
}

/// Returns the names of the bits that have one, joined with `|`.
pub(super) fn flag_names(flags: u64, names: &[(u64, &'static str)]) -> String {
    let names: Vec<_> =
        names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    names.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_far_from_1970_are_correct() {
        for (secs, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (951_782_400, (2000, 2, 29)),
            (1 << 40, (36_812, 2, 20)),
            (-2_208_988_800, (1900, 1, 1)),
        ] {
            assert_eq!(civil(i64::div_euclid(secs, DAY_SECS)), date, "{secs}");
        }
    }

    #[test]
    fn names_are_escaped_to_one_ascii_line() {
        let text = EscapedText(b"a b\n\\\xff\x01~").to_string();
        assert_eq!(text, "a\\ b\\n\\\\\\377\\001~");
    }
}

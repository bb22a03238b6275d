//! Formats and parses times in the local time zone. Times out of the range of the calendar are
//! printed in seconds.

use butternut::Time;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

fn zoned(time: Time) -> Option<jiff::Zoned> {
    let nanos = i32::try_from(time.nanos).ok()?;
    // jiff requires both parts to have the same sign.
    let (secs, nanos) = if time.secs < 0 && nanos > 0 {
        (time.secs + 1, nanos - 1_000_000_000)
    } else {
        (time.secs, nanos)
    };
    Some(Timestamp::new(secs, nanos).ok()?.to_zoned(TimeZone::system()))
}

/// Formats a time as stat(1) does: `2026-11-21 00:42:25.464287885 +0000`.
pub(crate) fn full(time: Time) -> String {
    match zoned(time) {
        Some(at) => {
            format!("{}.{:09} {}", at.strftime("%Y-%m-%d %H:%M:%S"), time.nanos, at.strftime("%z"))
        }
        None => format!("@{}.{:09}", time.secs, time.nanos),
    }
}

/// Formats a time as btrfs-progs does for subvolumes: `2026-11-21 00:42:25 +0000`.
pub(crate) fn with_zone(time: Time) -> String {
    zoned(time).map_or_else(
        || format!("@{}", time.secs),
        |at| at.strftime("%Y-%m-%d %H:%M:%S %z").to_string(),
    )
}

/// Formats a time as btrfs-progs does in streams: `2026-11-21T00:42:25+0000`.
pub(crate) fn compact(time: Time) -> String {
    zoned(time).map_or_else(
        || format!("@{}", time.secs),
        |at| at.strftime("%Y-%m-%dT%H:%M:%S%z").to_string(),
    )
}

/// Formats a time as `2026-11-21 00:42:25`.
pub(crate) fn seconds(time: Time) -> String {
    zoned(time).map_or_else(
        || format!("@{}", time.secs),
        |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// Formats a time as `2026-11-21 00:42`, for `ls`.
pub(crate) fn minutes(time: Time) -> String {
    zoned(time)
        .map_or_else(|| format!("@{}", time.secs), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

/// Parses a date, a date and time, or `@` and seconds. Returns seconds since 1970, and nanoseconds.
pub(crate) fn parse(typed: &str) -> Option<(i64, u32)> {
    if let Some(secs) = typed.strip_prefix('@') {
        return Some((secs.parse().ok()?, 0));
    }
    let at = match typed.parse::<Timestamp>() {
        Ok(at) => at,
        Err(_) => typed.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok()?.timestamp(),
    };
    let nanos = at.as_nanosecond();
    let secs = i64::try_from(nanos.div_euclid(1_000_000_000)).ok()?;
    Some((secs, u32::try_from(nanos.rem_euclid(1_000_000_000)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_range_are_printed_in_seconds() {
        assert_eq!(full(Time { secs: i64::MAX, nanos: 1 }), format!("@{}.000000001", i64::MAX));
        assert_eq!(seconds(Time { secs: i64::MIN, nanos: 0 }), format!("@{}", i64::MIN));
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let text = full(Time { secs: -1, nanos: 500_000_000 });
        assert!(text.contains(":59.500000000 "), "{text}");
    }
}

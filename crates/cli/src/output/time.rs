//! Points in time as text, in the local time zone; years that no calendar holds as seconds.

use butternut::Time;
use jiff::Timestamp;
use jiff::tz::TimeZone;

fn zoned(time: Time) -> Option<jiff::Zoned> {
    let nanos = i32::try_from(time.nanos).ok()?;
    // jiff wants both parts of one sign.
    let (secs, nanos) = if time.secs < 0 && nanos > 0 {
        (time.secs + 1, nanos - 1_000_000_000)
    } else {
        (time.secs, nanos)
    };
    Some(Timestamp::new(secs, nanos).ok()?.to_zoned(TimeZone::system()))
}

/// `2026-11-21 00:42:25.464287885 +0000`, as stat(1).
pub(crate) fn full(time: Time) -> String {
    match zoned(time) {
        Some(at) => {
            format!("{}.{:09} {}", at.strftime("%Y-%m-%d %H:%M:%S"), time.nanos, at.strftime("%z"))
        }
        None => format!("@{}.{:09}", time.secs, time.nanos),
    }
}

/// `2026-11-21 00:42:25 +0000`, as btrfs-progs shows a subvolume's times.
pub(crate) fn with_zone(time: Time) -> String {
    zoned(time).map_or_else(
        || format!("@{}", time.secs),
        |at| at.strftime("%Y-%m-%d %H:%M:%S %z").to_string(),
    )
}

/// `2026-11-21 00:42:25`.
pub(crate) fn seconds(time: Time) -> String {
    zoned(time).map_or_else(
        || format!("@{}", time.secs),
        |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// `2026-11-21 00:42`, for listings.
pub(crate) fn minutes(time: Time) -> String {
    zoned(time)
        .map_or_else(|| format!("@{}", time.secs), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_every_calendar_are_seconds() {
        assert_eq!(full(Time { secs: i64::MAX, nanos: 1 }), format!("@{}.000000001", i64::MAX));
        assert_eq!(seconds(Time { secs: i64::MIN, nanos: 0 }), format!("@{}", i64::MIN));
    }

    #[test]
    fn fractions_before_1970_keep_their_nanoseconds() {
        let text = full(Time { secs: -1, nanos: 500_000_000 });
        assert!(text.contains(":59.500000000 "), "{text}");
    }
}

//! The system's clock: the one place that reads it. Everyone else is given the time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Whole seconds since 1970, and nanoseconds beyond them. Before 1970 it says 1970.
pub fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

//! Lines on stderr: progress, notes and errors, each begun with the name of the program.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Turns progress off; notes and errors are still printed.
pub(crate) fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Prints a note or an error.
pub(crate) fn line(text: &str) {
    // An error cannot be reported anywhere else.
    drop(writeln!(std::io::stderr(), "butternut-lab: {text}"));
}

/// Prints a line of progress.
pub(crate) fn step(text: &str) {
    if !IS_QUIET.load(Ordering::Relaxed) {
        drop(writeln!(std::io::stderr(), "{text}"));
    }
}

/// Formats a duration in the two largest units.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

/// Formats a figure with about three significant digits.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    let (scaled, suffix) = match size {
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{scaled:.decimals$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_figures_are_short() {
        assert_eq!(duration(Duration::from_secs(59)), "59 s");
        assert_eq!(duration(Duration::from_secs(61)), "1 min 1 s");
        assert_eq!(duration(Duration::from_secs(7300)), "2 h 1 min");
        assert_eq!(figure(202_345.0), "202k");
        assert_eq!(figure(9_876.5), "9876");
        assert_eq!(figure(1.234), "1.23");
        assert_eq!(figure(2.5e6), "2.50M");
    }
}

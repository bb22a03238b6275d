//! The progress bar: shown only if stderr is a terminal, and not with --quiet or --json.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::GlobalArgs;

const TEMPLATE: &str = "{spinner} {bytes} of {total_bytes} found so far, {bytes_per_sec} {bar:30}";

pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(global: &GlobalArgs) -> Self {
        if global.quiet || global.json || !stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    /// Adds bytes to the total.
    pub(crate) fn found(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Adds bytes that have been copied.
    pub(crate) fn done(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Calls `print`, which writes to stderr, while the bar is not there.
    pub(crate) fn hide_while(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

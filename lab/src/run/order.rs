//! Names, times and pace of a run.

use std::time::{Duration, Instant};

/// Returns the time, as RFC 3339 in UTC with seconds.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns a new id: suite, date, time, and the number of this process.
pub(crate) fn run_id(suite: &str) -> String {
    let time = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    format!("{suite}-{time}-{}", std::process::id())
}

/// How long measurements take, and the time that is left for them.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Instant,
    budget: Option<Duration>,
    total: Duration,
    count: u32,
}

impl Pace {
    /// Starts the time of a budget.
    pub(crate) fn new(budget: Option<Duration>) -> Self {
        Self { began: Instant::now(), budget, total: Duration::ZERO, count: 0 }
    }

    /// Records how long a measurement took.
    pub(crate) fn took(&mut self, duration: Duration) {
        self.total += duration;
        self.count += 1;
    }

    /// Returns the time that a number of measurements will take.
    pub(crate) fn left(&self, measurements: usize) -> Duration {
        let measurements = u32::try_from(measurements).unwrap_or(u32::MAX);
        let left = self.mean().saturating_mul(measurements);
        match self.budget {
            Some(budget) => left.min(budget.saturating_sub(self.began.elapsed())),
            None => left,
        }
    }

    /// Returns whether the next measurement would exceed the budget.
    pub(crate) fn is_over(&self) -> bool {
        self.budget.is_some_and(|budget| self.began.elapsed() + self.mean() > budget)
    }

    fn mean(&self) -> Duration {
        self.total.checked_div(self.count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_measurements() {
        let mut pace = Pace::new(None);
        assert!(!pace.is_over() && pace.left(5).is_zero());
        pace.took(Duration::from_secs(2));
        pace.took(Duration::from_secs(4));
        assert_eq!(pace.left(3), Duration::from_secs(9));
        assert!(Pace::new(Some(Duration::ZERO)).is_over());
    }

    #[test]
    fn ids_are_names_of_files() {
        let id = run_id("nosec");
        assert!(id.starts_with("nosec-2") && !id.contains('/'), "{id}");
        assert!(now().ends_with('Z') && now().len() == 20);
    }
}

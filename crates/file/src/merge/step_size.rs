//! [`StepSize`]: how many items a step of a merge on a full volume changes.
//!
//! ```text
//! 256 -- no space --> 64 -- no space --> 16 -- space, many times --> 32 -- no space --> 16
//! ```
//!
//! 1. A step without space becomes smaller: as small as the last one that had space, or a quarter.
//! 2. The commit of a step may free space, so the size grows again. A step that is too large
//!    commits before it finds no space, and each failure doubles the number of steps with space
//!    that growth needs, to at most [`STEPS_MAX`]. So few of the commits are in vain.

/// The size of the first step, and of the largest.
const ITEMS_MAX: u32 = 256;
/// The factor by which a step becomes smaller, if no smaller one had space before (law 1).
const DIVISOR: u32 = 4;
/// The steps with space that growth needs, before the first failure and at most (law 2).
const STEPS_MIN: u32 = 4;
const STEPS_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct StepSize {
    items: u32,
    /// The size of the last step that had space, or 0.
    had_space: u32,
    /// Steps of this size that had space, and how many growth needs.
    steps: u32,
    steps_wanted: u32,
}

impl Default for StepSize {
    fn default() -> Self {
        Self { items: ITEMS_MAX, had_space: 0, steps: 0, steps_wanted: STEPS_MIN }
    }
}

impl StepSize {
    /// Returns the number of items that the next step changes at most.
    pub(super) fn items(&self) -> u32 {
        self.items
    }

    /// Records that a step had no space. Returns `false` if there is no smaller step.
    pub(super) fn shrink(&mut self) -> bool {
        if self.items <= 1 {
            return false;
        }
        let quarter = (self.items / DIVISOR).max(1);
        let is_known = (1..self.items).contains(&self.had_space);
        self.items = if is_known { self.had_space } else { quarter };
        self.had_space = 0;
        self.steps = 0;
        self.steps_wanted = self.steps_wanted.saturating_mul(2).min(STEPS_MAX);
        true
    }

    /// Records that a step had space.
    pub(super) fn had_space(&mut self) {
        self.had_space = self.items;
        self.steps = self.steps.saturating_add(1);
        if self.steps >= self.steps_wanted {
            self.items = self.items.saturating_mul(2).min(ITEMS_MAX);
            self.steps = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `steps` steps find no space where at most `space` items have some.
    fn failures(size: &mut StepSize, space: u32, steps: u32) -> u32 {
        let mut failures = 0;
        for _ in 0..steps {
            if size.items() <= space {
                size.had_space();
            } else {
                assert!(size.shrink());
                failures += 1;
            }
        }
        failures
    }

    #[test]
    fn few_steps_find_no_space_and_the_size_follows_the_space() {
        for space in [1, 5, 16, 40, 255] {
            let mut size = StepSize::default();
            failures(&mut size, space, 200);
            let failed = failures(&mut size, space, 2000);
            assert!(failed <= 40, "{failed} of 2000 steps with space for {space} items");
            assert!(size.items() <= space && size.items() > space / 4, "{size:?} of {space}");
            assert_eq!(failures(&mut size, ITEMS_MAX, 64 * 9), 0);
            assert_eq!(size.items(), ITEMS_MAX);
        }
        let mut size = StepSize::default();
        while size.shrink() {}
        assert_eq!(size.items(), 1);
    }
}

//! Tests over all images and views, and the tests that are skipped on a machine without a suitable
//! kernel.

use crate::image::View;
use crate::recipe::Recipe;
use crate::recipes;
use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::Arc;

/// A test of one view of an image.
pub type Judge = fn(&Recipe, &View) -> Result<()>;

/// Returns whether tests that need images made by the kernel are skipped.
pub fn is_without_kernel() -> bool {
    std::env::var_os("BUTTERNUT_NO_KERNEL").is_some_and(|value| !value.is_empty())
}

/// Returns one test for each view of every image.
pub fn over_all_views(judge: Judge) -> Vec<Trial> {
    let mut trials = Vec::new();
    for recipe in recipes::all() {
        let recipe = Arc::new(recipe);
        for view in recipe.views.clone() {
            let name = format!("{}::{}", recipe.name, view.name);
            let recipe = Arc::clone(&recipe);
            trials.push(trial(&name, move || judge(&recipe, &view)));
        }
    }
    trials
}

/// Returns one test that is skipped without a kernel.
pub fn trial(name: &str, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    let run = move || run().map_err(|error| Failed::from(format!("{error:#}")));
    Trial::test(name, run).with_ignored_flag(is_without_kernel())
}

/// Runs a test program.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

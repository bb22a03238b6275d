//! Flags that several commands have: where the runs are, and what counts as a difference.

use crate::history::History;
use crate::judge::comparison::Limits;
use crate::record::default_history;
use anyhow::Result;
use std::path::PathBuf;

/// Where the runs are.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct HistoryFlags {
    /// Directory of the runs [default: $XDG_DATA_HOME/butternut-lab/history].
    #[arg(long = "history", value_name = "DIR", global = true)]
    pub(super) directory: Option<PathBuf>,
}

impl HistoryFlags {
    pub(super) fn path(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(default_history)
    }

    pub(super) fn open(&self) -> Result<History> {
        Ok(History::open(&self.path())?)
    }
}

/// What counts as a difference.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LimitFlags {
    /// Expected part of false ones among the reported differences.
    #[arg(
        long,
        value_name = "PART",
        default_value_t = Limits::default().discoveries,
        value_parser = part
    )]
    discoveries: f64,
    /// Smallest difference that is reported: 0.02 is 2 %.
    #[arg(
        long,
        value_name = "PART",
        default_value_t = Limits::default().effect,
        value_parser = part
    )]
    effect: f64,
}

impl Default for LimitFlags {
    fn default() -> Self {
        let Limits { discoveries, effect, .. } = Limits::default();
        Self { discoveries, effect }
    }
}

impl LimitFlags {
    pub(super) fn limits(&self) -> Limits {
        Limits { discoveries: self.discoveries, effect: self.effect, ..Limits::default() }
    }
}

/// Parses a number of at least 0 and less than 1.
fn part(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if (0.0..1.0).contains(&part) => Ok(part),
        _ => Err("want a number of at least 0 and less than 1".to_owned()),
    }
}

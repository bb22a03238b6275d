//! The judge: what the samples of runs prove, and with which error.
//!
//! ```text
//! comparison      two selections of cells     -> a verdict for each cell
//! change_points   a cell over its history     -> the runs at which its level changed
//! error_rates     simulated noise             -> how often both are wrong
//! statistics      numbers                     -> estimates, intervals, p-values
//! ```
//!
//! It reads records and computes. It measures nothing, and prints nothing.

pub mod change_points;
pub mod comparison;
pub mod error_rates;
pub mod selection;
pub mod statistics;

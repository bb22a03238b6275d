//! What the judge found: tables as text, Markdown and CSV, and a page of HTML.
//!
//! ```text
//! judge, history -> words: cells as words    -> tables: text, Markdown, CSV
//!                -> page: figures and charts -> one HTML file
//! ```
//!
//! It decides nothing: verdicts are the judge's.

#![allow(clippy::format_push_string, reason = "reports are not built where speed matters")]

pub mod figures;
pub mod page;
pub mod published;
pub mod tables;
pub mod words;

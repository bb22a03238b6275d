//! The report: one HTML file with everything in it.
//!
//! ```text
//! verdict       the comparison in a sentence, then the cells that changed, then all of them
//! scenarios     a table for each metric, then charts: scaling, time, latency; memory
//! history       each cell over the runs of this machine, with its change points
//! environment, commands
//! ```
//!
//! Laws:
//!
//! 1. The file loads nothing: styles, scripts and data are inside, and its own policy forbids the
//!    rest.
//! 2. Whatever comes from a record is escaped.
//! 3. A chart shows nothing that is not in a table, too, and the tables need no script.

pub mod charts;
mod sections;

use crate::history::Point;
use crate::judge::comparison::{Comparison, Verdict};
use crate::record::Record;
use crate::reports::figures::scenarios;
use crate::reports::published::Published;
use crate::reports::words;

/// What a report shows.
#[derive(Debug)]
pub struct Contents<'a> {
    pub record: &'a Record,
    /// Against the runs before it, when there are any.
    pub comparison: Option<&'a Comparison>,
    /// What the run was compared with, in words.
    pub baseline: String,
    pub published: &'a [Published],
    /// Points of this machine's history, the oldest first.
    pub history: &'a [Point],
    /// The column that ratios are taken to: the start of a target's name.
    pub reference: &'a str,
}

/// Returns the page.
///
/// # Errors
///
/// The data of the charts cannot be encoded.
pub fn page(contents: &Contents<'_>) -> Result<String, serde_json::Error> {
    let run = &contents.record.run;
    let mut charts = charts::Charts::default();
    let scenarios = scenarios(contents.record, contents.published);
    let mut body = verdict(contents);
    for scenario in &scenarios {
        sections::scenario(&mut body, scenario, contents.reference, &mut charts);
    }
    sections::history(&mut body, contents.history, &mut charts);
    sections::environment(&mut body, contents.record);
    let title = format!("{}: {}", run.suite, run.id);
    // A tag inside the data would end the script, and an at sign may begin a mark of the template.
    let data = serde_json::to_string(&charts.all)?.replace('<', "\\u003c").replace('@', "\\u0040");
    Ok(TEMPLATE
        .replace("@TITLE@", &escaped(&title))
        .replace("@SUITE@", &escaped(&run.suite))
        .replace("@RUN@", &escaped(&run.id))
        .replace("@STARTED@", &escaped(&run.started))
        .replace("@UPLOT_CSS@", include_str!("../../assets/uplot/uPlot.min.css"))
        .replace("@CSS@", include_str!("../../assets/report.css"))
        .replace("@UPLOT_LICENCE@", include_str!("../../assets/uplot/LICENSE"))
        .replace("@UPLOT_JS@", include_str!("../../assets/uplot/uPlot.iife.min.js"))
        .replace("@JS@", include_str!("../../assets/report.js"))
        .replace("@DATA@", &data)
        .replace("@BODY@", &body))
}

const TEMPLATE: &str = include_str!("../../assets/report.html");

/// Escapes a text for HTML, also inside attributes. An at sign is escaped, too: the template's
/// marks have two.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '@' => out.push_str("&#64;"),
            c if c.is_control() && c != '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn verdict(contents: &Contents<'_>) -> String {
    let record = contents.record;
    let mut html = String::new();
    let (class, sentence) = match contents.comparison {
        Some(comparison) if comparison.count(Verdict::Worse) > 0 => {
            ("worse", words::summary(comparison))
        }
        Some(comparison) => ("fine", words::summary(comparison)),
        None => ("neutral", "Not compared: there is no earlier run to compare with.".to_owned()),
    };
    let mut facts = vec![contents.baseline.clone()];
    if !record.is_complete() {
        facts.push("The run is not complete.".to_owned());
    }
    if !record.failures.is_empty() {
        facts.push(format!("{} repeats failed.", record.failures.len()));
    }
    let facts: Vec<String> =
        facts.iter().filter(|fact| !fact.is_empty()).map(|f| escaped(f)).collect();
    html.push_str(&format!(
        "<section id=\"verdict\" class=\"verdict {class}\" aria-labelledby=\"verdict-title\">\n\
         <h2 id=\"verdict-title\">{}</h2>\n<p>{}</p>\n</section>\n",
        escaped(&sentence),
        facts.join(" ")
    ));
    sections::contents(&mut html, contents);
    if let Some(comparison) = contents.comparison {
        sections::comparison(&mut html, comparison);
    }
    sections::failures(&mut html, record);
    html
}

#[cfg(test)]
mod tests;

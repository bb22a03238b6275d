//! Verdicts and figures in words: the same ones in every form of report.

use super::tables::Table;
use crate::judge::comparison::{Comparison, Judgement, Verdict};
use crate::record::Better;

/// A number with three or four digits that count, and thousands separated.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value != 0.0 && size < 0.001 {
        return format!("{value:.2e}");
    }
    let digits = match size {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{rest}")
}

/// A part in percent, such as `4.2 %`.
pub fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() >= 10.0 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

/// The verdict of a cell as one phrase.
pub fn verdict(cell: &Judgement, smallest: f64) -> String {
    let change = || {
        let part = cell.ratio.map_or(0.0, |ratio| (ratio - 1.0).abs());
        let is_less = cell.ratio.is_some_and(|ratio| ratio < 1.0);
        format!("{} {}", percent(part), if is_less { "less" } else { "more" })
    };
    match cell.verdict {
        Verdict::Worse => format!("worse: {}", change()),
        Verdict::Better => format!("better: {}", change()),
        Verdict::Small => format!("differs, by less than {}", percent(smallest)),
        Verdict::WithinNoise => match cell.visible {
            Some(visible) => {
                format!("within noise (a loss of {} would have shown)", percent(visible))
            }
            None => "within noise".to_owned(),
        },
        Verdict::NotJudged => {
            format!("not judged: {}", cell.reason.as_deref().unwrap_or("no samples"))
        }
    }
}

/// The ratio with its interval, or a dash.
pub fn ratio(cell: &Judgement) -> String {
    match (cell.ratio, cell.interval) {
        (Some(ratio), Some((low, high))) => format!("{ratio:.3} [{low:.3}, {high:.3}]"),
        (Some(ratio), None) => format!("{ratio:.3}"),
        (None, _) => "-".to_owned(),
    }
}

/// The sentence that opens a comparison.
pub fn summary(comparison: &Comparison) -> String {
    let count = |verdict| comparison.count(verdict);
    let cells = comparison.cells.len();
    let (worse, better) = (count(Verdict::Worse), count(Verdict::Better));
    let mut text = match worse {
        0 => format!("No regression in {cells} cells"),
        1 => format!("1 of {cells} cells is worse"),
        worse => format!("{worse} of {cells} cells are worse"),
    };
    let mut more = |count: usize, what: &str| {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    };
    more(better, "better");
    more(
        count(Verdict::WithinNoise) + count(Verdict::Small),
        "within noise or too small to matter",
    );
    more(count(Verdict::NotJudged), "not judged");
    text + "."
}

/// All cells of a comparison as a table.
pub fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new(&[
        "row", "metric", "first", "second", "median 1", "median 2", "unit", "better", "ratio",
        "effect", "p", "repeats", "verdict",
    ]);
    for cell in &comparison.cells {
        let better = match cell.better {
            Better::Higher => "higher",
            Better::Lower => "lower",
        };
        table.push(vec![
            cell.row.clone(),
            cell.metric.clone(),
            cell.first.label.clone(),
            cell.second.label.clone(),
            number(cell.first.median),
            number(cell.second.median),
            cell.unit.clone(),
            better.to_owned(),
            ratio(cell),
            format!("{:+.2}", cell.effect),
            cell.p_adjusted.map_or("-".to_owned(), |p| format!("{p:.4}")),
            format!("{}+{}", cell.first.repeats, cell.second.repeats),
            verdict(cell, comparison.limits.effect),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_count() {
        for (value, want) in [
            (0.0, "0.000"),
            (0.12345, "0.123"),
            (9.876, "9.88"),
            (98.76, "98.8"),
            (987.6, "988"),
            (1_234_567.8, "1,234,568"),
            (-1234.0, "-1,234"),
            (0.000_05, "5.00e-5"),
        ] {
            assert_eq!(number(value), want);
        }
    }
}

//! A table of words, as aligned text, Markdown or CSV.

/// The forms that a table is printed in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Columns aligned with spaces.
    #[default]
    Text,
    Markdown,
    /// RFC 4180, with a header line.
    Csv,
}

/// A table. Every line has as many cells as the head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    pub head: Vec<String>,
    pub lines: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column names and no lines.
    pub fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|name| (*name).to_owned()).collect(), lines: Vec::new() }
    }

    /// Adds a line; missing cells are empty.
    pub fn push(&mut self, mut line: Vec<String>) {
        line.resize(self.head.len(), String::new());
        self.lines.push(line);
    }

    /// Prints the table in `form`, with a line feed at the end of each line.
    pub fn show(&self, form: Form) -> String {
        match form {
            Form::Text => self.text(),
            Form::Markdown => self.markdown(),
            Form::Csv => self.csv(),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let widths = self.widths();
        for line in [&self.head].into_iter().chain(&self.lines) {
            let mut out = String::new();
            for ((cell, width), right) in line.iter().zip(&widths).zip(self.numbers()) {
                let cell = plain(cell);
                let gap = " ".repeat(width - cell.chars().count());
                let cell = if right { gap + &cell } else { cell + &gap };
                out.push_str(&cell);
                out.push_str("  ");
            }
            text.push_str(out.trim_end());
            text.push('\n');
        }
        text
    }

    fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let escaped = |cell: &String| plain(cell).replace('|', "\\|");
        let mut text = line(self.head.iter().map(escaped).collect());
        let rule = |right| if right { "---:" } else { "---" }.to_owned();
        text.push_str(&line(self.numbers().map(rule).collect()));
        for cells in &self.lines {
            text.push_str(&line(cells.iter().map(escaped).collect()));
        }
        text
    }

    fn csv(&self) -> String {
        let quoted = |cell: &String| {
            if cell.contains(['"', ',', '\n', '\r']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell.clone()
            }
        };
        let mut text = String::new();
        for line in [&self.head].into_iter().chain(&self.lines) {
            text.push_str(&line.iter().map(quoted).collect::<Vec<_>>().join(","));
            text.push_str("\r\n");
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let of = |column: usize| {
            let lines = [&self.head].into_iter().chain(&self.lines);
            lines.map(|line| plain(&line[column]).chars().count()).max().unwrap_or(0)
        };
        (0..self.head.len()).map(of).collect()
    }

    /// Tells for each column whether all its cells begin with a digit or a sign.
    fn numbers(&self) -> impl Iterator<Item = bool> {
        (0..self.head.len()).map(|column| {
            let is_number = |line: &Vec<String>| {
                line[column].is_empty()
                    || line[column].starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c))
            };
            !self.lines.is_empty() && self.lines.iter().all(is_number)
        })
    }
}

/// A cell on one line, without control characters.
fn plain(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["row", "value"]);
        table.push(vec!["a|b".to_owned(), "1.5".to_owned()]);
        table.push(vec!["says \"x\", y".to_owned(), "100".to_owned()]);
        table
    }

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let want = "row          value\na|b            1.5\nsays \"x\", y    100\n";
        assert_eq!(table().show(Form::Text), want);
    }

    #[test]
    fn what_a_form_reserves_is_escaped() {
        let want = "| row | value |\n| --- | ---: |\n| a\\|b | 1.5 |\n| says \"x\", y | 100 |\n";
        assert_eq!(table().show(Form::Markdown), want);
        let want = "row,value\r\na|b,1.5\r\n\"says \"\"x\"\", y\",100\r\n";
        assert_eq!(table().show(Form::Csv), want);
    }
}

//! Tables of text, with each column as wide as its widest cell.

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A table, aligned when it is printed.
#[derive(Debug, Default)]
pub(crate) struct Table {
    sides: Vec<Side>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(sides: &[Side]) -> Self {
        Self { sides: sides.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Adds a line of dashes.
    pub(crate) fn rule(&mut self) {
        self.rows.push(Vec::new());
    }

    /// Returns the lines, with one space between columns and no trailing spaces.
    pub(crate) fn lines(&self) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.sides.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            if row.is_empty() {
                return widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join(" ");
            }
            let cells =
                row.iter().zip(&widths).zip(&self.sides).map(|((cell, width), side)| match side {
                    Side::Left => format!("{cell:<width$}"),
                    Side::Right => format!("{cell:>width$}"),
                });
            cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[Side::Left, Side::Right]);
        table.row(vec!["a".into(), "100".into()]);
        table.row(vec!["long".into(), "1".into()]);
        assert_eq!(table.lines(), ["a    100", "long   1"]);
    }
}

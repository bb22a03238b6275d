//! [`Spans`]: sorted ranges of addresses, with adjacent ranges merged, so that memory grows only
//! with fragmentation.

/// One range, and whether it holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_data: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    sorted: Vec<Span>,
}

impl Spans {
    /// Appends a range. Of a range that overlaps the last one, only the rest is added.
    ///
    /// # Errors
    /// The range overlaps the last one; the error is the end of that.
    pub(crate) fn push(&mut self, start: u64, end: u64, is_data: bool) -> Result<(), u64> {
        let Some(last) = self.sorted.last_mut() else {
            self.sorted.push(Span { start, end, is_data });
            return Ok(());
        };
        let last_end = last.end;
        if last.is_data == is_data && start <= last_end {
            last.end = last_end.max(end);
        } else if end > last_end {
            self.sorted.push(Span { start: start.max(last_end), end, is_data });
        }
        if start < last_end { Err(last_end) } else { Ok(()) }
    }

    /// Appends all ranges of `right`.
    ///
    /// # Errors
    /// A range overlaps. The error is the start of the first such range and the end that it
    /// overlaps.
    pub(crate) fn append(&mut self, right: Self) -> Result<(), (u64, u64)> {
        let mut rest = right.sorted.into_iter();
        let mut overlap = Ok(());
        // After the first range without overlap, no other overlaps.
        for span in rest.by_ref() {
            match self.push(span.start, span.end, span.is_data) {
                Ok(()) => break,
                Err(end) => overlap = overlap.and(Err((span.start, end))),
            }
        }
        self.sorted.extend(rest);
        overlap
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.sorted.iter().copied()
    }

    /// Returns the parts of these ranges inside `start..end`.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Span> + '_ {
        let first = self.sorted.partition_point(|span| span.end <= start);
        self.sorted
            .iter()
            .skip(first)
            .take_while(move |span| span.start < end)
            .map(move |span| Span { start: span.start.max(start), end: span.end.min(end), ..*span })
    }

    /// Returns the number of bytes of `start..end` that these ranges cover.
    pub(crate) fn covered(&self, start: u64, end: u64) -> u64 {
        self.within(start, end).map(|span| span.end.saturating_sub(span.start)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(list: &[(u64, u64, bool)]) -> Spans {
        let mut spans = Spans::default();
        for (start, end, is_data) in list {
            spans.push(*start, *end, *is_data).unwrap();
        }
        spans
    }

    #[test]
    fn adjacent_ranges_of_one_type_are_merged() {
        let spans = spans(&[(0, 4, true), (4, 8, true), (8, 12, false), (20, 24, false)]);
        let list: Vec<_> = spans.iter().map(|span| (span.start, span.end)).collect();
        assert_eq!(list, [(0, 8), (8, 12), (20, 24)]);
        assert_eq!(spans.covered(2, 22), 12);
        assert_eq!(spans.covered(12, 20), 0);
    }

    #[test]
    fn an_overlap_is_reported_once_and_counted_once() {
        let mut left = spans(&[(0, 10, true)]);
        assert_eq!(left.push(8, 12, true), Err(10));
        assert_eq!(left.append(spans(&[(11, 14, false), (20, 30, true)])), Err((11, 12)));
        assert_eq!(left.covered(0, 100), 24);
    }
}

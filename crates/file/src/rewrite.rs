//! Rewrites: what becomes of a file's extent items, as data.
//!
//! The items as they are, what goes away and what comes, give the items as they will be; the
//! difference is what the tree and the extents' reference counts are told.
//!
//! ```text
//! old      |--- A ---|      |--------- B ---------|
//! gone         |------------------|
//! come         |= N ==|
//! new      |-A-|= N ==|hole?      |------ B ------|      A and B keep their extents
//! ```
//!
//! Laws:
//!
//! 1. What is not in a range that goes reads as before.
//! 2. Every item that shows a data extent is one reference to it. The changes of references are
//!    the difference in numbers of such items, and never more than that.
//! 3. What comes is joined with its neighbours where one item can say both; other neighbours are
//!    left as they are.
//! 4. Ranges to be covered have no gap: hole items fill them.
//!
//! It reads nothing and writes nothing. The old items must be all those that touch a range.

use crate::piece::{Piece, Reference};
use butternut_format::refused::Refused;
use std::collections::BTreeMap;
use std::ops::Range;

/// What becomes of the items of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewrite<'a> {
    /// In file order: the item that is to be at a place, or that none is.
    pub(crate) changes: Vec<(u64, Option<Piece<'a>>)>,
    /// How many references more, or fewer. More come first.
    pub(crate) references: Vec<(Reference, i64)>,
    /// Added to the inode's byte count.
    pub(crate) bytes_used: i64,
}

/// Plans a rewrite. All lists are in file order, without overlaps; `come` lies within `gone`.
pub(crate) fn plan<'a>(
    old: &[Piece<'a>],
    gone: &[Range<u64>],
    come: Vec<Piece<'a>>,
    covered: &[Range<u64>],
) -> Result<Rewrite<'a>, Refused> {
    let mut pieces = remains(old, gone)?;
    pieces.extend(come);
    pieces.sort_by_key(|piece| piece.start);
    fill_gaps(&mut pieces, covered);
    join_neighbours(&mut pieces);
    Ok(difference(old, pieces))
}

/// What is left of the old items.
fn remains<'a>(old: &[Piece<'a>], gone: &[Range<u64>]) -> Result<Vec<Piece<'a>>, Refused> {
    let mut left = Vec::with_capacity(old.len());
    for piece in old {
        let mut rest = Some(*piece);
        let first = gone.partition_point(|range| range.end <= piece.start);
        for range in gone
            .iter()
            .skip(first)
            .take_while(|range| range.start <= piece.start.max(piece.end().saturating_sub(1)))
        {
            let Some(now) = rest.take() else { break };
            if range.start >= now.end().max(now.start.saturating_add(1)) {
                rest = Some(now);
                break;
            }
            let (front, back) = now.without(range)?;
            left.extend(front);
            rest = back;
        }
        left.extend(rest);
    }
    Ok(left)
}

/// Puts hole items where `covered` has none (law 4). The pieces are sorted.
fn fill_gaps(pieces: &mut Vec<Piece<'_>>, covered: &[Range<u64>]) {
    let mut holes = Vec::new();
    for range in covered {
        let mut at = range.start;
        let first = pieces.partition_point(|piece| piece.end() <= range.start);
        for piece in pieces.iter().skip(first) {
            if piece.start >= range.end {
                break;
            }
            if piece.start > at {
                holes.push(Piece::hole(at..piece.start));
            }
            at = at.max(piece.end());
        }
        if at < range.end {
            holes.push(Piece::hole(at..range.end));
        }
    }
    if !holes.is_empty() {
        pieces.extend(holes);
        pieces.sort_by_key(|piece| piece.start);
    }
}

/// Joins what is new with what it touches (law 3).
fn join_neighbours(pieces: &mut Vec<Piece<'_>>) {
    pieces.dedup_by(|next, piece| (piece.is_new || next.is_new) && piece.join(next));
}

fn difference<'a>(old: &[Piece<'a>], new: Vec<Piece<'a>>) -> Rewrite<'a> {
    let mut rewrite = Rewrite::default();
    let mut references: BTreeMap<(u64, u64), (Reference, i64)> = BTreeMap::new();
    let mut count = |piece: &Piece<'_>, by: i64| {
        rewrite.bytes_used += i64::try_from(piece.bytes_used()).unwrap_or(0) * by;
        if let Some(reference) = piece.reference() {
            let key = (reference.extent.logical.0, reference.offset);
            references.entry(key).or_insert((reference, 0)).1 += by;
        }
    };
    let mut old = old.iter().peekable();
    for piece in new {
        while let Some(gone) = old.next_if(|gone| gone.start < piece.start) {
            count(gone, -1);
            rewrite.changes.push((gone.start, None));
        }
        let was = old.next_if(|was| was.start == piece.start);
        if was.is_some_and(|was| *was == piece) {
            continue;
        }
        was.inspect(|was| count(was, -1));
        count(&piece, 1);
        rewrite.changes.push((piece.start, Some(piece)));
    }
    for gone in old {
        count(gone, -1);
        rewrite.changes.push((gone.start, None));
    }
    rewrite.references = references.into_values().filter(|(_, by)| *by != 0).collect();
    rewrite.references.sort_by_key(|(_, by)| *by < 0);
    rewrite
}

#[cfg(test)]
mod tests;

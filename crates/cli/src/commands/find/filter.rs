//! The tests of `find`: which files it prints.

use std::time::{SystemTime, UNIX_EPOCH};

use butternut::FileKind;

use super::super::glob;
use crate::args::{FindArgs, parse_bytes};
use crate::commands::files::{Attributes, Files};
use crate::commands::walk::{WalkEntry, WalkError};
use crate::failure::Failure;
use crate::output::text;

const DAY_SECS: i64 = 24 * 60 * 60;

/// The tests that a file must pass.
pub(super) struct Filter {
    name: Option<Vec<u8>>,
    /// In lower case.
    name_ignoring_case: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    kinds: Option<Vec<char>>,
    size: Option<Range>,
    /// The size of a unit in bytes, and the number of units.
    units: Option<(u64, Range)>,
    /// The age in days.
    age: Option<Range>,
    /// Now, in seconds since 1970.
    now: i64,
    depth_min: usize,
    pub(super) depth_max: usize,
}

/// The numbers that are accepted, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    min: i64,
    max: i64,
}

impl Range {
    /// Parses `+N`, `-N` or `N` as find(1) does: `+` is more than, `-` less than. With
    /// `is_inclusive`, N itself is accepted, too.
    fn parse<T>(
        typed: &str,
        is_inclusive: bool,
        number: impl Fn(&str) -> Result<T, Failure>,
    ) -> Result<Self, Failure>
    where
        i64: TryFrom<T>,
    {
        let beyond = i64::from(!is_inclusive);
        let number = |typed: &str| -> Result<i64, Failure> {
            Ok(i64::try_from(number(typed)?).unwrap_or(i64::MAX))
        };
        Ok(match (typed.strip_prefix('+'), typed.strip_prefix('-')) {
            (Some(typed), _) => Self { min: number(typed)?.saturating_add(beyond), max: i64::MAX },
            (_, Some(typed)) => Self { min: i64::MIN, max: number(typed)?.saturating_sub(beyond) },
            (None, None) => Self { min: number(typed)?, max: number(typed)? },
        })
    }

    fn contains(self, number: i64) -> bool {
        (self.min..=self.max).contains(&number)
    }
}

impl Filter {
    pub(super) fn of(args: &FindArgs) -> Result<Self, Failure> {
        let kinds = args.kinds.as_ref().map(|text| text.split(',').collect::<String>());
        if let Some(unknown) =
            kinds.as_ref().and_then(|k| k.chars().find(|c| !"fdlbcpsv".contains(*c)))
        {
            return Err(Failure::new("--type", format!("{unknown:?} is not a file type"))
                .hint("the types are f, d, l, b, c, p, s, and v for subvolumes"));
        }
        let size = |typed| Range::parse(typed, true, |number| parse_bytes("--size", number));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Ok(Self {
            name: args.name.as_ref().map(text::bytes),
            name_ignoring_case: args.iname.as_ref().map(|glob| lower_case(&text::bytes(glob))),
            path: args.path.as_ref().map(text::bytes),
            kinds: kinds.map(|text| text.chars().collect()),
            size: args.size.as_deref().map(size).transpose()?,
            units: args.size_in_units.as_deref().map(units).transpose()?,
            age: args.mtime.as_deref().map(|typed| Range::parse(typed, false, days)).transpose()?,
            now: i64::try_from(now).unwrap_or(i64::MAX),
            depth_min: args.min_depth.unwrap_or(0),
            depth_max: args.max_depth.unwrap_or(usize::MAX),
        })
    }

    pub(super) fn matches<F: Files>(
        &self,
        files: &F,
        found: &WalkEntry<F::Id>,
    ) -> Result<bool, WalkError<F::Error>> {
        if found.depth < self.depth_min || !self.matches_names(files, found) {
            return Ok(false);
        }
        if self.size.is_none() && self.units.is_none() && self.age.is_none() {
            return Ok(true);
        }
        let stat = files
            .attributes(&found.id)
            .map_err(|error| WalkError { path: found.path.bytes(), error: Box::new(error) })?;
        Ok(self.matches_stat(&stat))
    }

    fn matches_names<F: Files>(&self, files: &F, found: &WalkEntry<F::Id>) -> bool {
        let (name, ignoring_case) = (self.name.as_ref(), self.name_ignoring_case.as_ref());
        name.is_none_or(|glob| glob::matches(glob, found.name()))
            && ignoring_case.is_none_or(|glob| glob::matches(glob, &lower_case(found.name())))
            && self.path.as_ref().is_none_or(|glob| glob::matches(glob, &found.path.bytes()))
            && self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|k| is(*k, files, found)))
    }

    fn matches_stat(&self, stat: &Attributes) -> bool {
        let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let age = self.now.saturating_sub(stat.mtime.secs).div_euclid(DAY_SECS);
        self.size.is_none_or(|range| range.contains(number(stat.size)))
            && self.age.is_none_or(|range| range.contains(age))
            && self.units.is_none_or(|(unit_bytes, range)| {
                range.contains(number(stat.size.div_ceil(unit_bytes)))
            })
    }
}

/// Parses the number of `-size`, with its unit.
fn units(typed: &str) -> Result<(u64, Range), Failure> {
    const UNITS: [(char, u64); 6] =
        [('c', 1), ('w', 2), ('b', 512), ('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
    let unit = UNITS.into_iter().find(|(letter, _)| typed.ends_with(*letter));
    let (number, unit_bytes) = match unit {
        Some((letter, bytes)) => (typed.strip_suffix(letter).unwrap_or(typed), bytes),
        None => (typed, 512),
    };
    let range = Range::parse(number, false, |number| {
        digits(number).ok_or_else(|| {
            Failure::new("-size", format!("{typed:?} is not a size"))
                .hint("a number with c, w, b, k, M or G, and + or - before it; --size has bytes")
        })
    })?;
    Ok((unit_bytes, range))
}

fn days(typed: &str) -> Result<u64, Failure> {
    digits(typed).ok_or_else(|| {
        Failure::new("-mtime", format!("{typed:?} is not a number of days"))
            .hint("examples: +7 is more than 7 days ago, -1 in the last 24 hours")
    })
}

/// Parses a decimal number without a sign.
fn digits(typed: &str) -> Option<u64> {
    typed.parse().ok().filter(|_| typed.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns a name or pattern in lower case; of one that is not UTF-8, its ASCII letters.
fn lower_case(bytes: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => bytes.to_ascii_lowercase(),
    }
}

fn is<F: Files>(letter: char, files: &F, found: &WalkEntry<F::Id>) -> bool {
    let kind = match found.kind {
        FileKind::File => 'f',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    letter == kind || (letter == 'v' && kind == 'd' && files.is_subvolume_root(&found.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_units_are_those_of_find() {
        let check = |typed: &str, bytes: u64| {
            let (unit_bytes, range) = units(typed).unwrap();
            range.contains(i64::try_from(bytes.div_ceil(unit_bytes)).unwrap())
        };
        assert!(check("1k", 1) && check("1k", 1024) && !check("1k", 1025));
        assert!(check("+1", 513) && !check("+1", 512));
        assert!(check("-1M", 0) && !check("-1M", 1));
        assert!(check("6c", 6) && check("3w", 6));
        for wrong in ["", "k", "++1", "1T"] {
            assert!(units(wrong).is_err(), "{wrong}");
        }
    }
}

//! Glob patterns for names: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a literal.
//!
//! Matching is by bytes, but `?` matches a whole UTF-8 character.

/// The size of the longest character in UTF-8, in bytes.
const CHARACTER_BYTES_MAX: usize = 4;

/// Returns whether `name` matches `glob`. The time is bounded by the product of their lengths.
pub(crate) fn matches(glob: &[u8], name: &[u8]) -> bool {
    let (mut at, mut pos) = (0, 0);
    // Where to resume if the rest does not match: the last `*` takes one more byte.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if glob.get(at) == Some(&b'*') {
            retry = Some((at + 1, pos));
            at += 1;
            continue;
        }
        if at == glob.len() && pos == name.len() {
            return true;
        }
        if let Some((glob_bytes, name_bytes)) = step(&glob[at..], &name[pos..]) {
            at += glob_bytes;
            pos += name_bytes;
            continue;
        }
        match retry {
            Some((star, from)) if from < name.len() => {
                retry = Some((star, from + 1));
                at = star;
                pos = from + 1;
            }
            _ => return false,
        }
    }
}

/// Returns whether each set of a pattern has its end.
pub(crate) fn is_closed(glob: &[u8]) -> bool {
    let mut rest = glob;
    loop {
        rest = match rest {
            [] => return true,
            [b'[', b'!' | b'^', _, after @ ..] | [b'[', _, after @ ..] => {
                let Some(close) = after.iter().position(|byte| *byte == b']') else { return false };
                &after[close + 1..]
            }
            [b'['] => return false,
            [b'\\', _, after @ ..] | [_, after @ ..] => after,
        };
    }
}

/// Matches one element of the pattern. Returns the bytes consumed of the pattern and of the name.
fn step(glob: &[u8], name: &[u8]) -> Option<(usize, usize)> {
    let first = *name.first()?;
    match glob {
        [b'?', ..] => Some((1, character_bytes(name))),
        [b'[', rest @ ..] => set(rest, first).or((first == b'[').then_some((1, 1))),
        [b'\\', literal, ..] => (*literal == first).then_some((2, 1)),
        [literal, ..] => (*literal == first).then_some((1, 1)),
        [] => None,
    }
}

/// Matches a set, given without its `[`. Returns `None` if it does not contain the byte, or is not
/// closed.
fn set(rest: &[u8], byte: u8) -> Option<(usize, usize)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    // A `]` at the start is a member.
    let close = start + 1 + rest.get(start + 1..)?.iter().position(|b| *b == b']')?;
    let members = &rest[start..close];
    let mut inside = false;
    let mut at = 0;
    while at < members.len() {
        if let [low, b'-', high, ..] = &members[at..] {
            inside |= (*low..=*high).contains(&byte);
            at += 3;
        } else {
            inside |= members[at] == byte;
            at += 1;
        }
    }
    (inside != negated).then_some((close + 2, 1))
}

fn character_bytes(name: &[u8]) -> usize {
    // The time must not depend on the length of the rest.
    let name = &name[..name.len().min(CHARACTER_BYTES_MAX)];
    let valid = name.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    valid.chars().next().map_or(1, char::len_utf8)
}

#[cfg(test)]
mod tests {
    fn check(glob: &str, name: &str) -> bool {
        super::matches(glob.as_bytes(), name.as_bytes())
    }

    #[test]
    fn stars_and_question_marks_match() {
        assert!(check("*.txt", "a.txt") && check("*", "") && check("a*b*c", "a-b-b-c"));
        assert!(!check("*.txt", "a.txt.gz") && !check("?", "") && !check("a?", "a"));
        assert!(check("?", "\u{e9}") && !check("??", "\u{e9}"));
        assert!(super::matches(b"?", b"\xff"));
    }

    #[test]
    fn sets_and_literals_match() {
        assert!(check("[a-c]x", "bx") && !check("[a-c]x", "dx"));
        assert!(check("[!a-c]", "d") && !check("[^a-c]", "a"));
        assert!(check("[]]", "]") && check("[", "[") && check("\\*", "*") && !check("\\*", "a"));
        assert!(check("[ab", "[ab"));
    }

    #[test]
    fn many_stars_take_bounded_time() {
        assert!(!check(&"*a".repeat(200), &"a".repeat(190)));
    }

    /// Each question mark takes a time that does not depend on what follows. If it did, this would
    /// take minutes.
    #[test]
    fn many_question_marks_take_bounded_time() {
        let began = std::time::Instant::now();
        let (count, limit) = (400_000, std::time::Duration::from_secs(10));
        assert!(check(&"?".repeat(count), &"\u{1f980}".repeat(count)));
        assert!(check("?", "\u{1f980}") && check("??", "\u{20ac}\u{1f980}"));
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    }
}

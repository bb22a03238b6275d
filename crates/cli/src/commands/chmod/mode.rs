//! File modes on the command line: octal, or symbolic clauses.
//!
//! ```text
//! MODE   = OCTAL | CLAUSE [ "," CLAUSE ]...
//! CLAUSE = [ugoa]... ( [+-=] ( [rwxXst]... | [ugo] ) )...
//! ```
//!
//! 1. An octal mode sets all bits, of directories too: bits that it does not contain are cleared.
//! 2. A clause without `u`, `g`, `o` or `a` applies to all three classes. The umask is not used.

use crate::failure::Failure;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// A change of a file mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    Exactly(u32),
    Steps(Vec<Step>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Add,
    Remove,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    /// Bits of all classes, with set-ID and sticky bits. With X, `execute_if_any` adds execute
    /// permission to a directory, or to a file that any class may execute.
    These { bits: u32, execute_if_any: bool },
    /// The bits of user, group or others, named by their shift.
    As(u32),
}

/// One operator with its permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// The bits that may change.
    mask: u32,
    sign: Sign,
    bits: Bits,
}

impl Mode {
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::new("mode", format!("{text:?} is not a file mode"))
                .hint("examples: 0755, u=rwX,go-w")
        };
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
            return mode.map(Self::Exactly).ok_or_else(wrong);
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps).ok_or_else(wrong)?;
        }
        Ok(Self::Steps(steps))
    }

    /// Returns the new mode of a file or directory that has the mode `was`.
    pub(crate) fn apply(&self, was: u32, is_directory: bool) -> u32 {
        match self {
            Self::Exactly(mode) => *mode,
            Self::Steps(steps) => {
                steps.iter().fold(was, |mode, step| step.apply(mode, is_directory))
            }
        }
    }
}

fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let signs = clause.find(['+', '-', '='])?;
    let (classes, mut rest) = clause.split_at(signs);
    let mut mask = 0;
    for letter in classes.chars() {
        mask |= match letter {
            'u' => 0o700 | SET_USER_ID,
            'g' => 0o070 | SET_GROUP_ID,
            'o' => 0o007 | STICKY,
            'a' => 0o7777,
            _ => return None,
        };
    }
    if classes.is_empty() {
        mask = 0o7777;
    }
    while let Some(sign) = rest.chars().next() {
        let sign = match sign {
            '+' => Sign::Add,
            '-' => Sign::Remove,
            _ => Sign::Set,
        };
        let what = &rest[1..];
        let end = what.find(['+', '-', '=']).unwrap_or(what.len());
        steps.push(Step { mask, sign, bits: parse_bits(&what[..end])? });
        rest = &what[end..];
    }
    Some(())
}

fn parse_bits(letters: &str) -> Option<Bits> {
    match letters {
        "u" => return Some(Bits::As(6)),
        "g" => return Some(Bits::As(3)),
        "o" => return Some(Bits::As(0)),
        _ => {}
    }
    let (mut bits, mut execute_if_any) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            'X' => execute_if_any = true,
            's' => bits |= SET_USER_ID | SET_GROUP_ID,
            't' => bits |= STICKY,
            _ => return None,
        }
    }
    Some(Bits::These { bits, execute_if_any })
}

impl Step {
    fn apply(self, mode: u32, is_directory: bool) -> u32 {
        let bits = match self.bits {
            Bits::These { bits, execute_if_any } => {
                let executes = execute_if_any && (is_directory || mode & 0o111 != 0);
                bits | if executes { 0o111 } else { 0 }
            }
            Bits::As(shift) => (mode >> shift & 7) * 0o111,
        };
        let bits = bits & self.mask;
        match self.sign {
            Sign::Add => mode | bits,
            Sign::Remove => mode & !bits,
            Sign::Set => mode & !self.mask | bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, was: u32, is_directory: bool, want: u32) {
        let mode = Mode::parse(text).unwrap().apply(was, is_directory);
        assert_eq!(mode, want, "{text} of {was:04o}: have {mode:04o}, want {want:04o}");
    }

    #[test]
    fn octal_modes_set_all_bits() {
        check("755", 0o4711, false, 0o755);
        check("04755", 0, true, 0o4755);
        check("0", 0o7777, false, 0);
    }

    #[test]
    fn clauses_add_remove_and_set_in_order() {
        check("u+x", 0o644, false, 0o744);
        check("go-rx", 0o755, false, 0o700);
        check("a=r,u+w", 0o7777, false, 0o644);
        check("+t,g+s", 0o755, true, 0o3755);
        check("u=rwX,go=rX", 0o600, false, 0o644);
        check("u=rwX,go=rX", 0o600, true, 0o755);
        check("a+X", 0o654, false, 0o755);
        check("g=u,o=g", 0o750, false, 0o777);
        check("u+w-x", 0o500, false, 0o600);
        check("u=", 0o4755, false, 0o055);
    }

    #[test]
    fn invalid_modes_are_refused() {
        for text in ["", "8", "10000", "u", "u+q", "x+r", "u+r,", "rw", "u+u+ug"] {
            assert!(Mode::parse(text).is_err(), "{text:?}");
        }
    }
}

//! What tidy finds: a place that breaks a rule.

use std::fmt;

/// Something to put right: where, what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub rule: Rule,
    pub what: String,
    pub cure: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.what, self.cure)
    }
}

/// The rules by the name that an exception uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Floor,
    Lints,
    Header,
    Length,
    Width,
    Ascii,
    Unsafe,
    FileName,
    Word,
    Language,
    Call,
    Dead,
    Decision,
    Circle,
    Exception,
}

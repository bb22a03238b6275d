//! Finds the `?` operators of a source file, with the function that each is in.
//!
//! The file is formatted by `cargo fmt`: a module of tests is inline at the end, and the body of a
//! function is indented deeper than its `fn`.

/// A `?` that returns an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// From 1.
    pub line: u32,
    /// From 1, in bytes.
    pub column: u32,
    pub function: String,
    /// The line, trimmed, behind the line that its expression begins in.
    pub code: String,
    /// What the operator is applied to: `code` without what stands behind the operator, or in front
    /// of another one in the line.
    pub operand: String,
}

/// Returns the operators of the shipped code of a file.
pub fn operators(text: &str) -> Vec<Operator> {
    let shipped = shipped(text);
    let lines: Vec<&str> = shipped.lines().collect();
    let macros = macro_bodies(&lines);
    let mut found = Vec::new();
    for at in question_marks(shipped) {
        let before = &shipped[..at];
        let line = before.matches('\n').count();
        let column = at - before.rfind('\n').map_or(0, |newline| newline + 1);
        let is_bound = shipped[at + 1..].starts_with(|next: char| next.is_alphabetic());
        if is_bound || macros.iter().any(|body| body.contains(&line)) {
            continue;
        }
        let (begin, whole) = (begin(&lines, line), lines[line].trim());
        let previous = found.last().filter(|other: &&Operator| other.line == number(line + 1));
        let from = previous.map_or(0, |other| other.column as usize);
        let operand = lines[line].get(from..column).unwrap_or_default().trim();
        found.push(Operator {
            line: number(line + 1),
            column: number(column + 1),
            function: function(&lines, line),
            code: format!("{begin}{whole}"),
            operand: format!("{begin}{operand}"),
        });
    }
    found
}

/// Returns the line that the expression of a line begins in, if it is another one.
fn begin(lines: &[&str], line: usize) -> String {
    let mut at = line;
    loop {
        if !lines[at].trim_start().starts_with(['.', ')', ']', '}']) {
            break;
        }
        let most = indent(lines[at]);
        let is_outside =
            |above: &usize| !lines[*above].trim().is_empty() && indent(lines[*above]) <= most;
        let Some(above) = (0..at).rev().find(is_outside) else { break };
        at = above;
    }
    if at == line { String::new() } else { format!("{} .. ", lines[at].trim()) }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Returns the text before an inline module of tests.
fn shipped(text: &str) -> &str {
    let end = text.find("#[cfg(test)]\nmod ").filter(|at| {
        let module = text[*at..].lines().nth(1).unwrap_or_default();
        module.ends_with('{')
    });
    &text[..end.unwrap_or(text.len())]
}

/// Returns the ranges of lines of `macro_rules!` items.
fn macro_bodies(lines: &[&str]) -> Vec<std::ops::Range<usize>> {
    let begins = lines.iter().enumerate().filter(|(_, line)| line.contains("macro_rules!"));
    let body = |(begin, line): (usize, &&str)| {
        let close = format!("{}}}", &line[..indent(line)]);
        let length = lines[begin..].iter().position(|line| **line == close);
        begin..begin + length.map_or(lines.len(), |length| length + 1)
    };
    begins.map(body).collect()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the name of the function that a line is in: the nearest `fn` above that is indented
/// less, or one in the line itself.
fn function(lines: &[&str], line: usize) -> String {
    if let Some(name) = function_name(lines[line]) {
        return name;
    }
    let mut depth = indent(lines[line]);
    for above in lines[..line].iter().rev().filter(|above| !above.trim().is_empty()) {
        if indent(above) < depth {
            if let Some(name) = function_name(above) {
                return name;
            }
            // The end of a signature of several lines is indented as the begin.
            let ends_signature = usize::from(above.trim_start().starts_with(')'));
            depth = (indent(above) + ends_signature).max(1);
        }
    }
    String::new()
}

fn function_name(line: &str) -> Option<String> {
    let code = line.trim_start();
    let (before, after) = code.split_once("fn ")?;
    let is_item = before.chars().all(|c| c.is_alphanumeric() || "()_:\" ".contains(c));
    let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (is_item && !name.is_empty()).then_some(name)
}

/// Returns the offsets of all `?` outside comments, strings and characters.
fn question_marks(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let rest = &text[at..];
        at += match bytes[at] {
            b'?' => {
                found.push(at);
                1
            }
            b'/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            b'"' => string_bytes(rest),
            b'r' if is_raw_string(text, at) => raw_string_bytes(rest),
            b'\'' => character_bytes(rest),
            // A character of several bytes, too.
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    found
}

fn string_bytes(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn is_raw_string(text: &str, at: usize) -> bool {
    let is_word = text[..at].ends_with(|c: char| c.is_alphanumeric() && c != 'b' || c == '_');
    !is_word && text[at + 1..].trim_start_matches('#').starts_with('"')
}

fn raw_string_bytes(rest: &str) -> usize {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    let close = format!("\"{}", "#".repeat(hashes));
    let begin = hashes + 2;
    rest[begin..].find(&close).map_or(rest.len(), |end| begin + end + close.len())
}

/// Returns the bytes of a character, or 1 for the quote of a lifetime.
fn character_bytes(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
        Some(_) => match characters.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::{Operator, operators};

    fn places(text: &str) -> Vec<(u32, u32, String)> {
        let place = |found: Operator| (found.line, found.column, found.function);
        operators(text).into_iter().map(place).collect()
    }

    #[test]
    fn an_operator_is_found_with_its_function() {
        let text = "impl A {\n    pub(crate) fn one(&self) -> R {\n        let f = |a| {\n\
                    \x20           a?;\n        };\n        call(\n            b,\n\
                    \x20       )?\n    }\n}\nfn two() -> R { c()? }\n\
                    fn three(\n    a: A,\n) -> R {\n    d()?\n}\n";
        let want = [(4, 14, "one"), (8, 10, "one"), (11, 20, "two"), (15, 8, "three")];
        assert_eq!(places(text), want.map(|(line, column, name)| (line, column, name.to_owned())));
    }

    #[test]
    fn an_operand_is_what_the_operator_is_applied_to() {
        let text = "fn a() -> R {\n    b(c()?)?.d()?;\n    let e = f(|| {\n        g\n    })\n\
                    \x20   .h(i)?;\n}\n";
        let operands = operators(text).into_iter().map(|found| found.operand);
        let want = ["b(c()", ")", ".d()", "let e = f(|| { .. .h(i)"];
        assert_eq!(operands.collect::<Vec<_>>(), want);
    }

    #[test]
    fn other_question_marks_are_none() {
        let text = "// is it?\n/* or? */\nfn a<T: ?Sized>(b: &'static str) {\n    \
                    let c = (\"?\\\"?\", r#\"?\"?\"#, '?', '\\'', b\"?\");\n    d(c)?;\n}\n\
                    macro_rules! e {\n    ($f:expr $(,)?) => { $f? };\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn g() { h()? }\n}\n";
        assert_eq!(places(text), [(5, 9, "a".to_owned())]);
    }
}

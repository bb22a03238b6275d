//! The imports of one source file, as its text has them: modules, definitions, `use` bindings and
//! paths. Comments, strings and test code are left out.

use std::mem;

/// A word or a sign of a source file, and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// The contents of one module of a file: the file itself, or a `mod` with a body in it.
#[derive(Debug, Default)]
pub struct Module {
    /// The path of the module below its file's; empty for the file itself.
    pub inside: Vec<String>,
    /// Modules that have files of their own.
    pub children: Vec<String>,
    /// Names of items that are defined here.
    pub items: Vec<String>,
    pub uses: Vec<Use>,
    /// Paths in code.
    pub paths: Vec<Path>,
    /// Single words in code: a name that a `use` binds is one of them, if the code uses it.
    pub words: Vec<String>,
}

/// One binding of a `use`.
#[derive(Debug, Clone)]
pub struct Use {
    pub path: Path,
    /// The name that it binds; `*` for all names of a module.
    pub name: String,
    pub is_public: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    pub parts: Vec<String>,
    pub line: usize,
}

const ITEM_WORDS: &[&str] =
    &["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
/// What an item may begin with. Other code after `#[cfg(test)]` is a field, an arm or a statement.
const ITEM_STARTS: &[&str] = &["mod", "use", "impl", "unsafe", "async", "extern"];

/// Returns the modules of a file, itself first.
pub fn modules(text: &str) -> Vec<Module> {
    let tokens = tokens(text);
    let mut scanner = Scanner { tokens: &tokens, at: 0, found: vec![Module::default()] };
    scanner.scan();
    scanner.found
}

/// What an open brace belongs to.
enum Scope {
    /// A module, by its place in the list.
    Module(usize),
    Body,
}

struct Scanner<'a> {
    tokens: &'a [Token],
    at: usize,
    found: Vec<Module>,
}

impl Scanner<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text.as_str())
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    fn scan(&mut self) {
        let mut scopes = vec![Scope::Module(0)];
        while self.at < self.tokens.len() {
            let module = scopes.iter().rev().find_map(|scope| match scope {
                Scope::Module(at) => Some(*at),
                Scope::Body => None,
            });
            let (module, is_in_body) =
                (module.unwrap_or(0), matches!(scopes.last(), Some(Scope::Body)));
            match self.text(0) {
                "#" => self.attribute(),
                "{" => scopes.push(Scope::Body),
                "}" => drop(scopes.pop().filter(|_| scopes.len() > 1)),
                "use" => self.use_item(module),
                "mod" if !is_in_body && self.text(2) == ";" => {
                    let name = self.text(1).to_owned();
                    self.found[module].children.push(name);
                    self.at += 1;
                }
                "mod" if !is_in_body && self.text(2) == "{" => {
                    scopes.push(Scope::Module(self.inner_module(module)));
                    self.at += 2;
                }
                word if ITEM_WORDS.contains(&word) && !is_in_body => {
                    let ahead = if self.text(1) == "!" { 2 } else { 1 };
                    let name = self.text(ahead).to_owned();
                    self.found[module].items.push(name);
                    self.at += ahead;
                }
                word if is_word(word) => self.path(module),
                _ => {}
            }
            self.at += 1;
        }
    }

    fn inner_module(&mut self, parent: usize) -> usize {
        let mut inside = self.found[parent].inside.clone();
        inside.push(self.text(1).to_owned());
        self.found.push(Module { inside, ..Module::default() });
        self.found.len() - 1
    }

    /// Reads a path or a word of code.
    fn path(&mut self, module: usize) {
        let line = self.line();
        let before = self.at.checked_sub(1).map_or("", |at| &self.tokens[at].text);
        if before == "." || before == "::" {
            return;
        }
        let mut parts = vec![self.text(0).to_owned()];
        while self.text(1) == "::" && is_word(self.text(2)) {
            parts.push(self.text(2).to_owned());
            self.at += 2;
        }
        self.found[module].words.push(parts[0].clone());
        if parts.len() > 1 {
            self.found[module].paths.push(Path { parts, line });
        }
    }

    /// Reads a `use`, up to its semicolon.
    fn use_item(&mut self, module: usize) {
        let is_public =
            matches!(self.at.checked_sub(1).map(|at| &*self.tokens[at].text), Some("pub" | ")"));
        let line = self.line();
        self.at += 1;
        let mut uses = Vec::new();
        self.use_tree(&mut Vec::new(), &mut uses);
        for (parts, name) in uses {
            let path = Path { parts, line };
            self.found[module].uses.push(Use { path, name, is_public });
        }
    }

    fn use_tree(&mut self, prefix: &mut Vec<String>, uses: &mut Vec<(Vec<String>, String)>) {
        let depth = prefix.len();
        loop {
            match self.text(0) {
                "" | ";" => return,
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "}" | "" | ";") {
                        self.use_tree(prefix, uses);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                "," | "}" => {
                    bind(prefix, depth, None, uses);
                    break;
                }
                "as" => {
                    let name = self.text(1).to_owned();
                    self.at += 2;
                    bind(prefix, depth, Some(name), uses);
                    break;
                }
                "::" => {}
                word => prefix.push(word.to_owned()),
            }
            self.at += 1;
            if self.text(0) == ";" {
                bind(prefix, depth, None, uses);
                break;
            }
        }
        prefix.truncate(depth);
    }

    /// Passes an attribute, and what it makes test code of.
    fn attribute(&mut self) {
        let inner = usize::from(self.text(1) == "!");
        let is_test = inner == 0 && self.is_test_attribute();
        self.skip_attribute();
        if !is_test {
            return;
        }
        self.at += 1;
        while self.text(0) == "#" {
            self.skip_attribute();
            self.at += 1;
        }
        self.skip_item();
    }

    fn is_test_attribute(&self) -> bool {
        let words: Vec<&str> = (2..8).map(|ahead| self.text(ahead)).collect();
        words.starts_with(&["test", "]"])
            || words.starts_with(&["cfg", "(", "test", ")", "]"])
            || words.starts_with(&["cfg", "(", "all", "(", "test"])
    }

    /// Goes to the last token of an attribute.
    fn skip_attribute(&mut self) {
        while self.at < self.tokens.len() && self.text(0) != "[" {
            self.at += 1;
        }
        self.skip_group();
    }

    /// Goes from an opening sign to the closing one.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
            self.at += 1;
        }
    }

    /// Goes to the last token of an item, a field, an arm or a statement.
    fn skip_item(&mut self) {
        let mut start = 0;
        if self.text(0) == "pub" {
            start = if self.text(1) == "(" { 4 } else { 1 };
        }
        let word = self.text(start);
        let is_item = ITEM_WORDS.contains(&word) || ITEM_STARTS.contains(&word);
        let is_use = word == "use";
        while self.at < self.tokens.len() {
            match self.text(0) {
                ";" => return,
                "," if !is_item => return,
                "}" | ")" | "]" => {
                    // The end of what the field is in.
                    self.at -= 1;
                    return;
                }
                "{" if is_item && !is_use => return self.skip_group(),
                "(" | "[" | "{" => self.skip_group(),
                _ => {}
            }
            self.at += 1;
        }
    }
}

/// Adds the binding that a branch of a `use` ends in.
fn bind(
    prefix: &[String],
    depth: usize,
    name: Option<String>,
    uses: &mut Vec<(Vec<String>, String)>,
) {
    let mut parts = prefix.to_vec();
    if parts.len() == depth {
        return;
    }
    if parts.len() > 1 && parts.last().is_some_and(|last| last == "self") {
        parts.pop();
    }
    if let Some(name) = name.or_else(|| parts.last().cloned()) {
        uses.push((parts, name));
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits a source text. Comments, and the contents of strings, are left out.
fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut line, mut rest) = (1, text);
    while let Some(c) = rest.chars().next() {
        let (length, is_token) = token_length(rest, c);
        let (token, after) = rest.split_at(length);
        if is_token {
            found.push(Token { text: token.to_owned(), line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    found
}

/// Returns the length of the token at the start of a text, and whether it is more than space, a
/// comment or a literal.
fn token_length(rest: &str, c: char) -> (usize, bool) {
    let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
    if rest.starts_with("//") {
        return (until("\n"), false);
    }
    if rest.starts_with("/*") {
        return (until("*/"), false);
    }
    if let Some(length) = string_length(rest) {
        return (length, false);
    }
    if c == '\'' {
        return (quote_length(rest), false);
    }
    if c.is_alphanumeric() || c == '_' {
        let start = if rest.starts_with("r#") { 2 } else { 0 };
        let word = &rest[start..];
        let length = word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len());
        return (start + length, true);
    }
    if rest.starts_with("::") {
        return (2, true);
    }
    (c.len_utf8(), !c.is_whitespace())
}

/// Returns the length of the string literal at the start of a text, if there is one.
fn string_length(rest: &str) -> Option<usize> {
    let prefix = rest.find(|c: char| !matches!(c, 'b' | 'c' | 'r')).filter(|at| *at <= 2)?;
    let raw = rest[..prefix].contains('r');
    let after = &rest[prefix..];
    let hashes = if raw { after.find(|c| c != '#')? } else { 0 };
    if !after[hashes..].starts_with('"') {
        return None;
    }
    let start = prefix + hashes + 1;
    if raw {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len()));
    }
    let mut is_escaped = false;
    for (at, c) in rest[start..].char_indices() {
        if c == '"' && !is_escaped {
            return Some(start + at + 1);
        }
        is_escaped = c == '\\' && !mem::take(&mut is_escaped);
    }
    Some(rest.len())
}

/// Returns the length of a character literal or of a lifetime.
fn quote_length(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    let Some((_, first)) = chars.next() else { return rest.len() };
    if first == '\\' {
        let end = rest[2..].find('\'').map_or(rest.len(), |at| at + 3);
        return if rest[2..].starts_with('\'') { 4.min(rest.len()) } else { end };
    }
    match chars.next() {
        Some((at, '\'')) => at + 1,
        _ => 1,
    }
}

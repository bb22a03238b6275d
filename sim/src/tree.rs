//! [`Tree`]: everything that is visible of a filesystem, and the difference of two trees.

use crate::bytes::Bytes;
use crate::content::Digest;
use crate::operation::Moment;
use crate::random::mix;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Differences that a report lists.
const SHOWN_MAX: usize = 12;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Nodes by path; the root is the empty path.
    pub nodes: BTreeMap<Bytes, Node>,
    /// Open files by slot.
    pub open: BTreeMap<u8, Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Character,
    Block,
    Socket,
}

/// One name. An attribute that is `None` is unknown, and equal to every value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: Kind,
    /// Permission bits with set-id and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub nlink: u64,
    pub rdev: (u32, u32),
    pub content: Digest,
    pub target: Bytes,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    pub flags: Option<u32>,
    pub atime: Option<Moment>,
    pub mtime: Option<Moment>,
    /// The first path with the same inode.
    pub twin: Bytes,
    /// The inode number. It is not compared between filesystems.
    pub number: u64,
}

impl Tree {
    /// Returns how `have` differs from `self`, or `None` if they are equal.
    pub fn difference(&self, have: &Tree) -> Option<String> {
        let mut found = Found::default();
        let paths: BTreeSet<&Bytes> = self.nodes.keys().chain(have.nodes.keys()).collect();
        for path in paths {
            found.pair(&path, self.nodes.get(path), have.nodes.get(path));
        }
        let slots: BTreeSet<&u8> = self.open.keys().chain(have.open.keys()).collect();
        for slot in slots {
            found.pair(&format!("open {slot}"), self.open.get(slot), have.open.get(slot));
        }
        found.into_text()
    }

    /// Returns the tree without the open files, as another mount would show it.
    #[must_use]
    pub fn closed(&self) -> Tree {
        Tree { nodes: self.nodes.clone(), open: BTreeMap::new() }
    }

    /// Builds a tree from nodes with their inode numbers, from which it derives the twins.
    pub fn from_numbered(nodes: BTreeMap<Bytes, (Node, u64)>, open: BTreeMap<u8, Node>) -> Tree {
        let mut first: BTreeMap<u64, Bytes> = BTreeMap::new();
        let twin = |(path, (node, number)): (Bytes, (Node, u64))| {
            let twin = first.entry(number).or_insert_with(|| path.clone()).clone();
            (path, Node { twin, number, ..node })
        };
        Tree { nodes: nodes.into_iter().map(twin).collect(), open }
    }
}

#[derive(Default)]
struct Found {
    text: String,
    count: usize,
}

impl Found {
    fn line(&mut self, line: &str) {
        self.count += 1;
        if self.count <= SHOWN_MAX {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn pair(&mut self, what: &dyn std::fmt::Display, want: Option<&Node>, have: Option<&Node>) {
        let what = cut(&what.to_string());
        match (want, have) {
            (Some(want), Some(have)) => self.nodes(&what, want, have),
            (Some(want), None) => self.line(&format!("{what}: missing, a {:?}", want.kind)),
            (None, Some(have)) => self.line(&format!("{what}: too many, a {:?}", have.kind)),
            (None, None) => {}
        }
    }

    fn nodes(&mut self, what: &str, want: &Node, have: &Node) {
        let mut field = |name: &str, want: String, have: String| {
            if want != have {
                self.line(&format!("{what}: {name}: have {}, want {}", cut(&have), cut(&want)));
            }
        };
        field("kind", format!("{:?}", want.kind), format!("{:?}", have.kind));
        field("mode", format!("{:04o}", want.mode), format!("{:04o}", have.mode));
        field("uid", want.uid.to_string(), have.uid.to_string());
        field("gid", want.gid.to_string(), have.gid.to_string());
        field("size", want.size.to_string(), have.size.to_string());
        field("nlink", want.nlink.to_string(), have.nlink.to_string());
        field("device", format!("{:?}", want.rdev), format!("{:?}", have.rdev));
        if let Some(block) = first_difference(&want.content, &have.content) {
            // One hash over the hashes of the sectors.
            let shown = |digest: &Digest| {
                let sum = digest.block(block).into_iter().fold(0, |sum, hash| mix(sum ^ hash));
                if digest.has(block) { format!("{sum:x}") } else { "zeros".to_owned() }
            };
            let name = format!("content in block {block}");
            field(&name, shown(&want.content), shown(&have.content));
        }
        field("target", want.target.to_string(), have.target.to_string());
        field("same inode as", want.twin.to_string(), have.twin.to_string());
        if let (Some(want), Some(have)) = (want.flags, have.flags) {
            field("flags", format!("{want:x}"), format!("{have:x}"));
        }
        for (name, want, have) in
            [("atime", want.atime, have.atime), ("mtime", want.mtime, have.mtime)]
        {
            if let (Some(want), Some(have)) = (want, have) {
                field(name, format!("{want:?}"), format!("{have:?}"));
            }
        }
        let names: BTreeSet<&Bytes> = want.xattrs.keys().chain(have.xattrs.keys()).collect();
        for name in names {
            let shown = |value: Option<&Bytes>| {
                value.map_or("none".into(), |value| format!("{} bytes {value}", value.0.len()))
            };
            let (want, have) = (want.xattrs.get(name), have.xattrs.get(name));
            field(&format!("xattr {}", cut(&name.to_string())), shown(want), shown(have));
        }
    }

    fn into_text(mut self) -> Option<String> {
        if self.count > SHOWN_MAX {
            writeln!(self.text, "... and {} more", self.count - SHOWN_MAX).ok();
        }
        (self.count > 0).then_some(self.text)
    }
}

fn first_difference(want: &Digest, have: &Digest) -> Option<u64> {
    let numbers = want.numbers().chain(have.numbers());
    numbers.filter(|number| want.block(*number) != have.block(*number)).min()
}

/// Shortens a long value for the report. Values are compared whole.
fn cut(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((at, _)) => format!("{}... ({})", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

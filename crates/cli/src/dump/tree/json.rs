//! Prints the dump as JSON: one object, written incrementally.
//!
//! ```text
//! {"trees": [{"name": "fs tree", "key": KEY, "bytenr": N, "level": N, "blocks": [BLOCK, ..]}, ..],
//!  "total_bytes": N, "bytes_used": N, "uuid": "..", "backups": [..]}
//! KEY    {"objectid": N, "type": N, "offset": N, "text": "(FS_TREE ROOT_ITEM 0)"}
//! BLOCK  {"bytenr", "level", "generation", "owner", "flags", "fs_uuid", "chunk_uuid", "csum",
//!         "items": [{"key": KEY, "offset", "size", "text": [lines of the text format]}, ..]
//!         or "children": [{"key": KEY, "block", "generation"}, ..]}
//! ```
//!
//! Blocks selected by address are in a tree without a name.

use super::formatting::{HexText, UuidText};
use super::item;
use super::key::KeyText;
use super::render::{Heading, Renderer, Style};
use super::slots::{items, slots};
use butternut_format::key::Key;
use butternut_format::node::{RawHeader, RawKeyPtr};
use butternut_format::super_block::{RawRootBackup, RawSuperBlock};
use serde_json::{Value, json};
use std::io::{self, Write};
use zerocopy::FromBytes;

pub(super) struct Json<'a> {
    style: Style,
    out: &'a mut dyn Write,
    position: Position,
    /// Keys that follow the trees.
    totals: Value,
}

/// The position in the document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    BeforeTrees,
    BeforeBlocks,
    AfterBlock,
}

impl<'a> Json<'a> {
    pub(super) fn start(style: Style, out: &'a mut dyn Write) -> io::Result<Self> {
        write!(out, "{{\"trees\":[")?;
        Ok(Self { style, out, position: Position::BeforeTrees, totals: json!({}) })
    }

    fn open_tree(&mut self, tree: &Value) -> io::Result<()> {
        if self.position != Position::BeforeTrees {
            write!(self.out, "]}},")?;
        }
        self.position = Position::BeforeBlocks;
        let text = tree.to_string();
        write!(self.out, "\n{},\"blocks\":[", text.strip_suffix('}').unwrap_or(&text))
    }

    fn leaf_items(&self, bytes: &[u8]) -> io::Result<Value> {
        let mut shown = Vec::new();
        for (key, raw, data) in items(bytes) {
            let mut lines = Vec::new();
            item::print(key, data, self.style, &mut lines)?;
            let text = String::from_utf8_lossy(&lines);
            let text: Vec<_> = text.lines().map(str::trim_start).collect();
            let (offset, size) = (raw.offset.get(), raw.size.get());
            shown.push(json!({"key": key_json(key), "offset": offset, "size": size, "text": text}));
        }
        Ok(Value::Array(shown))
    }
}

impl Renderer for Json<'_> {
    fn tree(&mut self, heading: &Heading<'_>) -> io::Result<()> {
        self.open_tree(&json!({
            "name": heading.name,
            "key": heading.key.map(key_json),
            "bytenr": heading.root.logical.0,
            "level": heading.root.level,
        }))
    }

    fn block(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.position {
            Position::BeforeTrees => self.open_tree(&json!({"name": null}))?,
            Position::BeforeBlocks => {}
            Position::AfterBlock => write!(self.out, ",")?,
        }
        self.position = Position::AfterBlock;
        let Ok((header, _)) = RawHeader::ref_from_prefix(bytes) else {
            return write!(self.out, "null");
        };
        let csum = header.csum.get(..self.style.csum.bytes()).unwrap_or_default();
        let mut block = json!({
            "bytenr": header.bytenr.get(),
            "level": header.level,
            "generation": header.generation.get(),
            "owner": header.owner.get(),
            "flags": header.flags.get(),
            "fs_uuid": UuidText(&header.fsid).to_string(),
            "chunk_uuid": UuidText(&header.chunk_tree_uuid).to_string(),
            "csum": HexText(csum).to_string(),
        });
        if header.level == 0 {
            block["items"] = self.leaf_items(bytes)?;
        } else {
            let children = slots::<RawKeyPtr>(bytes).iter().map(|child| {
                let (logical, generation) = (child.blockptr.get(), child.generation.get());
                let key = key_json(Key::from(&child.key));
                json!({"key": key, "block": logical, "generation": generation})
            });
            block["children"] = children.collect();
        }
        write!(self.out, "\n{block}")
    }

    fn totals(&mut self, raw: &RawSuperBlock, with_backups: bool) -> io::Result<()> {
        self.totals = json!({
            "total_bytes": raw.total_bytes.get(),
            "bytes_used": raw.bytes_used.get(),
            "uuid": UuidText(&raw.fsid).to_string(),
        });
        if with_backups {
            self.totals["backups"] = raw.super_roots.iter().map(backup_json).collect();
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        if self.position != Position::BeforeTrees {
            write!(self.out, "]}}")?;
        }
        write!(self.out, "]")?;
        for (name, value) in self.totals.as_object().into_iter().flatten() {
            write!(self.out, ",\n{}:{value}", json!(name))?;
        }
        writeln!(self.out, "}}")
    }
}

fn key_json(key: Key) -> Value {
    let text = KeyText(key).to_string();
    json!({
        "objectid": key.objectid,
        "type": key.item_type.0,
        "offset": key.offset,
        "text": text.strip_prefix("key ").unwrap_or(&text),
    })
}

fn backup_json(backup: &RawRootBackup) -> Value {
    json!({
        "tree_root": backup.tree_root.get(),
        "tree_root_gen": backup.tree_root_gen.get(),
        "extent_root": backup.extent_root.get(),
        "extent_root_gen": backup.extent_root_gen.get(),
        "chunk_root": backup.chunk_root.get(),
        "chunk_root_gen": backup.chunk_root_gen.get(),
        "dev_root": backup.dev_root.get(),
        "dev_root_gen": backup.dev_root_gen.get(),
        "csum_root": backup.csum_root.get(),
        "csum_root_gen": backup.csum_root_gen.get(),
        "fs_root": backup.fs_root.get(),
        "fs_root_gen": backup.fs_root_gen.get(),
        "bytes_used": backup.bytes_used.get(),
        "total_bytes": backup.total_bytes.get(),
        "num_devices": backup.num_devices.get(),
    })
}

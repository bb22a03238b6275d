//! `receive --dump --json`: the commands of a stream as objects of JSON.
//!
//! 1. Each object has the name of the command as `command`, and its fields under the names that the
//!    text form has. Paths are as in the stream, below the subvolume whose name the last `subvol`
//!    or `snapshot` has as `path`.
//! 2. Data is not printed, but its length. Values of attributes are.

use butternut::Time;
use butternut::format::inode;
use butternut::format::stream::Command;

use crate::output::json::Object;

/// Returns a command as an object.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other half is below")]
pub(super) fn object(command: &Command<'_>) -> Object {
    let object = Object::new().put("command", command.name());
    let object = match command.path() {
        Some(path) => object.name("path", path),
        None => object,
    };
    match *command {
        Command::Subvol { uuid, ctransid, .. } => {
            object.uuid("uuid", &uuid.0).put("transid", ctransid)
        }
        Command::Snapshot { uuid, ctransid, clone_uuid, clone_ctransid, .. } => object
            .uuid("uuid", &uuid.0)
            .put("transid", ctransid)
            .uuid("parent_uuid", &clone_uuid.0)
            .put("parent_transid", clone_ctransid),
        Command::Mkfile { ino, .. } | Command::Mkdir { ino, .. } => object.put("ino", ino),
        Command::Mknod { ino, device, mode, .. }
        | Command::Mkfifo { ino, device, mode, .. }
        | Command::Mksock { ino, device, mode, .. } => object
            .put("ino", ino)
            .put("mode", mode)
            .put("major", device.major())
            .put("minor", device.minor()),
        Command::Symlink { ino, target, .. } => object.put("ino", ino).name("dest", target),
        Command::Rename { to, .. } => object.name("dest", to),
        Command::Link { existing, .. } => object.name("dest", existing),
        Command::SetXattr { name, value, .. } => object.name("name", name).name("value", value),
        Command::RemoveXattr { name, .. } => object.name("name", name),
        Command::Unlink { .. } | Command::Rmdir { .. } | Command::End => object,
        _ => data_or_attributes(command, object),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "`object` has chosen the commands")]
fn data_or_attributes(command: &Command<'_>, object: Object) -> Object {
    match *command {
        Command::Write { offset, data, .. } => object.put("offset", offset).put("len", data.len()),
        Command::Clone { offset, len, clone_uuid, clone_path, clone_offset, .. } => object
            .put("offset", offset)
            .put("len", len)
            .uuid("clone_uuid", &clone_uuid.0)
            .name("from", clone_path)
            .put("clone_offset", clone_offset),
        Command::Truncate { size, .. } => object.put("size", size),
        Command::Chmod { mode, .. } => object.put("mode", mode),
        Command::Chown { uid, gid, .. } => object.put("uid", uid).put("gid", gid),
        Command::Utimes { atime, mtime, ctime, otime, .. } => {
            let times = object.time("atime", time(atime)).time("mtime", time(mtime));
            let times = times.time("ctime", time(ctime));
            otime.map(time).into_iter().fold(times, |times, otime| times.time("otime", otime))
        }
        Command::UpdateExtent { offset, len, .. } => object.put("offset", offset).put("len", len),
        Command::Fallocate { mode, offset, len, .. } => {
            object.put("mode", mode).put("offset", offset).put("len", len)
        }
        Command::Fileattr { flags, .. } => object.put("fileattr", flags),
        Command::EnableVerity { algorithm, block_bytes, salt, signature, .. } => object
            .put("algorithm", algorithm)
            .put("block_size", block_bytes)
            .put("salt_len", salt.len())
            .put("sig_len", signature.len()),
        Command::EncodedWrite {
            offset,
            unencoded_file_len,
            unencoded_len,
            unencoded_offset,
            compression,
            encryption,
            data,
            ..
        } => object
            .put("offset", offset)
            .put("len", data.len())
            .put("unencoded_file_len", unencoded_file_len)
            .put("unencoded_len", unencoded_len)
            .put("unencoded_offset", unencoded_offset)
            .put("compression", compression.number())
            .put("encryption", encryption),
        _ => object,
    }
}

fn time(at: inode::Time) -> Time {
    Time { secs: at.secs, nanos: at.nanos }
}

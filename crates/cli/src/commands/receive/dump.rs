//! `receive --dump`: prints the commands of a stream as `btrfs receive --dump` does, byte for byte,
//! or with --json as objects ([`dump_json`]).

use std::io::{self, Write};

use butternut::Time;
use butternut::format::inode;
use butternut::format::stream::Command;
use butternut::receive::StreamEnd;

use super::dump_json;
use super::input::Input;
use crate::args::GlobalArgs;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, time};

/// Width in which shorter paths are padded.
const PATH_WIDTH: usize = 32;

pub(super) fn run(global: &GlobalArgs, mut input: Input, out: &mut Output) -> Outcome {
    if global.json {
        return as_json(&mut input, out);
    }
    // The path of the subvolume, which the paths of its commands begin with.
    let mut subvolume = b".".to_vec();
    let failure = |error| Failure::of(input.name.clone(), &error);
    while input.stream.next_stream().map_err(failure)?.is_some() {
        loop {
            let (_, command) = input.stream.next_command().map_err(failure)?;
            let Some(path) = command.path() else { break };
            if matches!(command, Command::Subvol { .. } | Command::Snapshot { .. }) {
                subvolume = [b"./", path].concat();
                line(out, &command, &subvolume, &subvolume)?;
            } else {
                line(out, &command, &below(&subvolume, path), &subvolume)?;
            }
        }
        if input.end == StreamEnd::Command {
            break;
        }
    }
    Ok(Completion::Success)
}

/// Prints a list of the commands. After a failure it ends with the last whole command.
fn as_json(input: &mut Input, out: &mut Output) -> Outcome {
    let mut list = json::List::default();
    let done = list_commands(input, &mut list, out);
    if !matches!(done, Err(Failure::StdoutClosed)) {
        list.end(out)?;
    }
    done.map(|()| Completion::Success)
}

fn list_commands(
    input: &mut Input,
    list: &mut json::List,
    out: &mut Output,
) -> Result<(), Failure> {
    let name = input.name.clone();
    let failure = |error| Failure::of(name.clone(), &error);
    while input.stream.next_stream().map_err(failure)?.is_some() {
        loop {
            let (_, command) = input.stream.next_command().map_err(failure)?;
            list.push(out, dump_json::object(&command))?;
            if command == Command::End {
                break;
            }
        }
        if input.end == StreamEnd::Command {
            break;
        }
    }
    Ok(())
}

fn line(out: &mut Output, command: &Command<'_>, path: &[u8], subvolume: &[u8]) -> io::Result<()> {
    let values = values(command, subvolume);
    let path = escaped(path);
    write!(out, "{:<16}", command.name())?;
    out.write_all(&path)?;
    if !values.is_empty() {
        let spaces = PATH_WIDTH.saturating_sub(path.len()).max(1);
        out.write_all(&vec![b' '; spaces])?;
        out.write_all(&values)?;
    }
    out.write_all(b"\n")
}

fn below(subvolume: &[u8], path: &[u8]) -> Vec<u8> {
    [subvolume, b"/", path].concat()
}

/// Returns the values of an `ENABLE_VERITY`.
fn sealed(command: &Command<'_>) -> String {
    let Command::EnableVerity { algorithm, block_bytes, salt, signature, .. } = *command else {
        return String::new();
    };
    let (salt, signature) = (salt.len(), signature.len());
    format!("algorithm={algorithm} block_size={block_bytes} salt_len={salt} sig_len={signature}")
}

/// Returns what follows the path.
fn values(command: &Command<'_>, subvolume: &[u8]) -> Vec<u8> {
    let text = match *command {
        Command::Subvol { uuid, ctransid, .. } => format!("uuid={uuid} transid={ctransid}"),
        Command::Snapshot { uuid, ctransid, clone_uuid, clone_ctransid, .. } => format!(
            "uuid={uuid} transid={ctransid} parent_uuid={clone_uuid} \
             parent_transid={clone_ctransid}"
        ),
        Command::Mknod { mode, device, .. } => {
            let (major, minor) = (u64::from(device.major()), u64::from(device.minor()));
            let device = minor & 0xff | major << 8 | (minor & !0xff) << 12;
            format!("mode={mode:o} dev=0x{device:x}")
        }
        Command::Symlink { target, .. } => return [b"dest=".as_slice(), &escaped(target)].concat(),
        Command::Rename { to, .. } => {
            return [b"dest=".as_slice(), &escaped(&below(subvolume, to))].concat();
        }
        Command::Link { existing, .. } => {
            return [b"dest=".as_slice(), &escaped(existing)].concat();
        }
        Command::SetXattr { name, value, .. } => {
            let (value, len) = (escaped(value), format!(" len={}", value.len()));
            return [b"name=", escaped(name).as_slice(), b" ", &value, len.as_bytes()].concat();
        }
        Command::RemoveXattr { name, .. } => return [b"name=".as_slice(), &escaped(name)].concat(),
        Command::Write { offset, data, .. } => format!("offset={offset} len={}", data.len()),
        Command::Clone { offset, len, clone_path, clone_offset, .. } => {
            let start = format!("offset={offset} len={len} from=");
            let end = format!(" clone_offset={clone_offset}");
            let from = escaped(&below(subvolume, clone_path));
            return [start.as_bytes(), &from, end.as_bytes()].concat();
        }
        Command::Truncate { size, .. } => format!("size={size}"),
        Command::Chmod { mode, .. } => format!("mode={mode:o}"),
        Command::Chown { uid, gid, .. } => format!("gid={gid} uid={uid}"),
        Command::Utimes { atime, mtime, ctime, .. } => {
            let [atime, mtime, ctime] = [atime, mtime, ctime].map(moment);
            format!("atime={atime} mtime={mtime} ctime={ctime}")
        }
        Command::UpdateExtent { offset, len, .. } => format!("offset={offset} len={len}"),
        Command::Fallocate { mode, offset, len, .. } => {
            format!("mode={mode} offset={offset} len={len}")
        }
        // btrfs-progs prints the number in decimal after 0x.
        Command::Fileattr { flags, .. } => format!("fileattr=0x{flags}"),
        Command::EnableVerity { .. } => sealed(command),
        Command::EncodedWrite {
            offset,
            unencoded_file_len,
            unencoded_len,
            unencoded_offset,
            compression,
            encryption,
            data,
            ..
        } => format!(
            "offset={offset} len={} unencoded_file_len={unencoded_file_len} \
             unencoded_len={unencoded_len} unencoded_offset={unencoded_offset} compression={} \
             encryption={encryption}",
            data.len(),
            compression.number()
        ),
        Command::Mkfile { .. }
        | Command::Mkdir { .. }
        | Command::Mkfifo { .. }
        | Command::Mksock { .. }
        | Command::Unlink { .. }
        | Command::Rmdir { .. }
        | Command::End => String::new(),
    };
    text.into_bytes()
}

fn moment(at: inode::Time) -> String {
    time::compact(Time { secs: at.secs, nanos: at.nanos })
}

/// Escapes what is not printable in a path or a value, spaces and backslashes.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(bytes.len());
    for byte in bytes {
        let letter = match byte {
            7 => Some(b'a'),
            8 => Some(b'b'),
            9 => Some(b't'),
            10 => Some(b'n'),
            11 => Some(b'v'),
            12 => Some(b'f'),
            13 => Some(b'r'),
            27 => Some(b'e'),
            b' ' | b'\\' => Some(*byte),
            _ => None,
        };
        match letter {
            Some(letter) => escaped.extend([b'\\', letter]),
            None if byte.is_ascii_graphic() => escaped.push(*byte),
            None => escaped.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    escaped
}

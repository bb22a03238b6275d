//! `verity enable`, `verity measure` and `verity metadata`: files sealed by fs-verity.
//!
//! 1. The first argument decides whether the files are in a volume that is not mounted, or at paths
//!    of mounted ones, as for `filesystem defragment`.
//! 2. A file that fails is reported, and the run goes on; the exit status is 1 then. On a volume
//!    that is not mounted, what was sealed is committed at the end all the same.
//! 3. Files of a mounted volume are sealed and measured by the calls of the kernel, which a mount
//!    of this project serves, too.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use butternut::format::refused::Hex;
use butternut::format::verity::{SALT_BYTES_MAX, SIGNATURE_BYTES_MAX};
use butternut::{Error, Follow, VerityHash, VerityMetadata, VerityOptions};
use butternut_sys::verity_calls;
use rustix::io::Errno;
use serde_json::Value;

use super::filesystem::defragment::is_mounted;
use super::transaction::Transaction;
use crate::args::{
    GlobalArgs, MetadataName, VerityCommand, VerityEnableArgs, VerityMeasureArgs,
    VerityMetadataArgs, VolumeArgs, parse_bytes,
};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, stderr_line, text};
use crate::volume::OpenVolume;

/// Bytes of metadata that are read at a time.
const PART_BYTES: usize = 64 << 10;

/// The number of the signature in the call that reads metadata.
const SIGNATURE: u64 = 3;

const SEALED_ALREADY: &str = "the file is sealed already";
const NO_SIGNATURE: &str = "the file has no signature";

pub(crate) fn run(global: &GlobalArgs, command: &VerityCommand, out: &mut Output) -> Outcome {
    match command {
        VerityCommand::Enable(args) => enable(global, args, out),
        VerityCommand::Measure(args) => measure(global, args, out),
        VerityCommand::Metadata(args) => metadata(global, args, out),
    }
}

/// How files are sealed.
struct Request {
    hash: VerityHash,
    block_bytes: u32,
    salt: Vec<u8>,
    signature: Vec<u8>,
}

/// The digest of a file, as it is printed.
struct Measured {
    path: Vec<u8>,
    hash: &'static str,
    digest: String,
}

fn enable(global: &GlobalArgs, args: &VerityEnableArgs, out: &mut Output) -> Outcome {
    let request = request(args)?;
    let (volume, paths) = arguments(&args.paths)?;
    let mut completion = Completion::Success;
    let mut sealed = Vec::new();
    let mut seal = |path: &OsString, done: Result<(), Failure>| match done {
        Ok(()) => sealed.push(text::bytes(path)),
        Err(failure) => failed(&mut completion, &failure),
    };
    if let Some(volume) = volume {
        let volume = VolumeArgs { volume: volume.to_owned() };
        let mut transaction = Transaction::open(global, &volume)?;
        let options = request.options();
        for path in paths {
            let filesystem = transaction.filesystem();
            let bytes = text::bytes(path);
            let id = transaction.find(&bytes, Follow::Last);
            let done = id.and_then(|id| {
                let done = filesystem.open_file(id).and_then(|file| file.enable_verity(&options));
                done.map_err(|error| {
                    let is_sealed = matches!(error, Error::Exists);
                    let known = || Failure::new(text::escaped(&bytes), SEALED_ALREADY);
                    if is_sealed { known() } else { transaction.failed(&bytes, &error) }
                })
            });
            if let Some(error) = filesystem.write_error() {
                return Err(transaction.failure(&error));
            }
            seal(path, done);
        }
        transaction.commit()?;
    } else {
        for path in paths {
            seal(path, request.seal_mounted(path));
        }
    }
    let printed = if global.json {
        let names = sealed.iter().map(|path| Value::from(Object::new().name("path", path)));
        let document = Object::new().put("sealed", names.collect::<Vec<_>>());
        json::document(out, document).map_err(Failure::from)
    } else {
        Ok(())
    };
    completion.after(printed)
}

fn measure(global: &GlobalArgs, args: &VerityMeasureArgs, out: &mut Output) -> Outcome {
    let (volume, paths) = arguments(&args.paths)?;
    let mut completion = Completion::Success;
    let opened = volume.map(|volume| open(global, volume)).transpose()?;
    let mut list = Vec::new();
    for path in paths {
        let measured = match &opened {
            Some(opened) => of_volume(opened, path),
            None => of_mounted(path),
        };
        match measured {
            Ok(measured) if global.json => list.push(Value::from(measured.as_json())),
            Ok(measured) => {
                let shown = out.display_name(&measured.path);
                write!(out, "{}:{} ", measured.hash, measured.digest)?;
                out.line(&shown)?;
            }
            Err(failure) => failed(&mut completion, &failure),
        }
    }
    let printed = if global.json {
        json::document(out, Object::new().put("files", list)).map_err(Failure::from)
    } else {
        Ok(())
    };
    completion.after(printed)
}

fn metadata(global: &GlobalArgs, args: &VerityMetadataArgs, out: &mut Output) -> Outcome {
    let (volume, paths) = arguments(&args.paths)?;
    let [path] = paths else {
        return Err(Failure::usage("verity metadata", "it is for one file")
            .hint("name a volume and a path in it, or a path of a mounted volume"));
    };
    let (what, number) = match args.kind {
        MetadataName::MerkleTree => (VerityMetadata::MerkleTree, 1),
        MetadataName::Descriptor => (VerityMetadata::Descriptor, 2),
        MetadataName::Signature => (VerityMetadata::Signature, SIGNATURE),
    };
    let shown = text::escaped(&text::bytes(path));
    let write = |part: &[u8], out: &mut Output| -> Result<bool, Failure> {
        out.write_all(part)?;
        Ok(!part.is_empty())
    };
    if let Some(volume) = volume {
        let opened = open(global, volume)?;
        let id = opened.resolve(path, Follow::Last)?;
        let file = opened.filesystem.open_file(id);
        let file = file.map_err(|error| Failure::of(&shown, &error))?;
        let mut part = vec![0; PART_BYTES];
        let mut at = 0;
        loop {
            let read = file.read_verity_metadata(what, at, &mut part);
            let read = read.map_err(|error| {
                let is_missing = matches!(error, Error::NoAttribute);
                let known = || Failure::new(&shown, NO_SIGNATURE);
                if is_missing { known() } else { Failure::of(&shown, &error) }
            })?;
            at += read as u64;
            if !write(&part[..read], out)? {
                return Ok(Completion::Success);
            }
        }
    }
    let file = File::open(path).map_err(|error| Failure::io(&shown, &error))?;
    let mut at = 0;
    loop {
        let part = verity_calls::read(file.as_fd(), number, at);
        let part = part.map_err(|error| {
            // A file that is not sealed fails with the same error.
            let is_missing =
                number == SIGNATURE && Errno::from_io_error(&error) == Some(Errno::NODATA);
            if is_missing && verity_calls::measure(file.as_fd()).is_ok() {
                return Failure::new(&shown, NO_SIGNATURE);
            }
            mounted_failure(path, &error)
        })?;
        at += part.len() as u64;
        if !write(&part, out)? {
            return Ok(Completion::Success);
        }
    }
}

/// Splits the arguments into the volume that is not mounted, if there is one, and the paths.
fn arguments(all: &[OsString]) -> Result<(Option<&OsStr>, &[OsString]), Failure> {
    let Some((first, paths)) = all.split_first() else {
        return Err(Failure::new("verity", "no file is named"));
    };
    if is_mounted(first, paths.is_empty()) {
        return Ok((None, all));
    }
    if paths.is_empty() {
        crate::volume::check_devices(&crate::volume::parse_arg(std::slice::from_ref(first))?)?;
        return Err(Failure::usage(first.display().to_string(), "no path in the volume is named")
            .hint("name files in it behind the volume"));
    }
    Ok((Some(first), paths))
}

fn open(global: &GlobalArgs, volume: &OsStr) -> Result<OpenVolume, Failure> {
    OpenVolume::from_arg(global, &VolumeArgs { volume: volume.to_owned() })
}

/// Reports a failure, and goes on (law 2).
fn failed(completion: &mut Completion, failure: &Failure) {
    stderr_line(&failure.to_string());
    *completion = Completion::PartialFailure;
}

/// Reads the options of a call that seals files.
fn request(args: &VerityEnableArgs) -> Result<Request, Failure> {
    let block_bytes = parse_bytes("--block-size", &args.block_size)?;
    let block_bytes = u32::try_from(block_bytes).ok().filter(|n| matches!(n, 1024 | 2048 | 4096));
    let block_bytes = block_bytes.ok_or_else(|| {
        Failure::usage("--block-size", "a block that is hashed has 1024, 2048 or 4096 bytes")
    })?;
    let salt = args.salt.as_deref().map_or(Some(Vec::new()), from_hex);
    let salt = salt.filter(|salt| salt.len() <= SALT_BYTES_MAX);
    let salt = salt.ok_or_else(|| {
        Failure::usage("--salt", "not at most 32 bytes in hexadecimal").hint("example: 0badcafe")
    })?;
    let signature = match &args.signature {
        None => Vec::new(),
        Some(path) => {
            let shown = path.display().to_string();
            std::fs::read(path).map_err(|error| Failure::io(shown, &error))?
        }
    };
    if signature.len() > SIGNATURE_BYTES_MAX {
        return Err(Failure::new("--signature", "a signature has at most 16128 bytes"));
    }
    Ok(Request { hash: args.hash_alg.hash(), block_bytes, salt, signature })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let (pairs, rest) = digits.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let pair = std::str::from_utf8(pair).ok()?;
        let is_hex = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        u8::from_str_radix(pair, 16).ok().filter(|_| is_hex)
    };
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

fn to_hex(bytes: &[u8]) -> String {
    Hex(bytes).to_string()
}

impl Request {
    fn options(&self) -> VerityOptions {
        let options = VerityOptions::default().hash(self.hash).block_bytes(self.block_bytes);
        options.salt(&self.salt).signature(&self.signature)
    }

    fn seal_mounted(&self, path: &OsString) -> Result<(), Failure> {
        let call = verity_calls::Enable {
            hash: self.hash.number().into(),
            block_bytes: self.block_bytes,
            salt: &self.salt,
            signature: &self.signature,
        };
        let file = File::open(path);
        let done = file.and_then(|file| verity_calls::enable(file.as_fd(), &call));
        done.map_err(|error| mounted_failure(path, &error))
    }
}

impl Measured {
    fn as_json(&self) -> Object {
        let object = Object::new().name("path", &self.path);
        object.put("hash", self.hash).put("digest", self.digest.as_str())
    }
}

fn of_volume(opened: &OpenVolume, path: &OsString) -> Result<Measured, Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    let measured = opened.filesystem.open_file(id).and_then(|file| file.measure_verity());
    let path = text::bytes(path);
    let measured = measured.map_err(|error| Failure::of(text::escaped(&path), &error))?;
    Ok(Measured { path, hash: measured.hash.name(), digest: to_hex(&measured.digest) })
}

fn of_mounted(path: &OsString) -> Result<Measured, Failure> {
    let measured = File::open(path).and_then(|file| verity_calls::measure(file.as_fd()));
    let (number, digest) = measured.map_err(|error| mounted_failure(path, &error))?;
    let hash = u8::try_from(number).ok().and_then(|number| VerityHash::check(number).ok());
    let hash = hash.map_or("unknown", VerityHash::name);
    Ok(Measured { path: path.as_bytes().to_vec(), hash, digest: to_hex(&digest) })
}

fn mounted_failure(path: &OsString, error: &io::Error) -> Failure {
    let shown = text::escaped(path.as_bytes());
    match Errno::from_io_error(error) {
        Some(Errno::NODATA) => Failure::new(shown, "the file is not sealed by fs-verity"),
        Some(Errno::TXTBSY) => Failure::new(shown, "the file is open for writing"),
        Some(Errno::EXIST) => Failure::new(shown, SEALED_ALREADY),
        Some(Errno::NOTTY | Errno::OPNOTSUPP) => {
            Failure::new(shown, "its filesystem, or this kernel, has no such call of fs-verity")
        }
        _ => Failure::io(shown, error),
    }
}

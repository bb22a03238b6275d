//! `import --tar`: copies an archive of tar into the volume, with its metadata.
//!
//! 1. Nothing is created outside PATH: absolute names are taken below it, `..` is refused, and a
//!    directory on the way to a name is never a symlink.
//! 2. Of several members with one name the last one counts, as for tar. What existed before is not
//!    overwritten, but directories get the attributes that the archive has for them.
//! 3. Owners are the numbers in the archive, since the names are those of another machine.
//! 4. An archive that is damaged or ends too early leaves the volume unchanged, as does every
//!    failure of an import. Changes are kept only if the library had to commit early, and the
//!    message says so.
//!
//! `input` decompresses, `reader` reads the members, with `records`, `acl` and `sparse` for parts
//! of their headers, and `extract` creates them.

mod acl;
mod extract;
mod input;
mod reader;
mod records;
mod sparse;

use butternut::{Error, FileKind, Follow, NewInode};

use super::super::progress::Progress;
use super::super::transaction::{Transaction, failed};
use super::create::Rules;
use super::described;
use crate::args::{GlobalArgs, ImportArgs};
use crate::failure::Outcome;
use crate::output::size::{Units, pretty};
use crate::output::{Output, stderr_line, text};
use extract::{Extract, PERMISSIONS};
use reader::Reader;

pub(super) fn run(global: &GlobalArgs, args: &ImportArgs, out: &mut Output) -> Outcome {
    let (input, shown) = input::open(&args.src)?;
    let mut transaction = Transaction::open(global, &args.volume)?;
    let dest = text::bytes(&args.dest);
    let fs = transaction.filesystem();
    // Inodes of later generations are of this import. The commit that replays a log tree makes one.
    let opened = fs.super_block();
    let generation = opened.generation().0 + u64::from(opened.log_root().is_some());
    let free_bytes =
        fs.statfs().map_or(0, |found| found.blocks_available * u64::from(found.block_bytes));
    let root = match fs.resolve(&dest, Follow::Last) {
        Ok(id) if transaction.stat(id, &dest)?.kind == FileKind::Directory => id,
        Ok(_) => return Err(failed(&dest, &Error::NotDirectory)),
        Err(Error::NotFound) => {
            let location = transaction.locate(&dest)?;
            let new = NewInode::new(PERMISSIONS);
            let made = fs.mkdir(location.dir, &location.name, &new);
            made.map_err(|error| failed(&dest, &error))?
        }
        Err(error) => return Err(failed(&dest, &error)),
    };
    if fs.subvolume(root.subvolume).is_ok_and(|found| found.read_only) {
        // A failure below would name a member.
        return Err(transaction.failed(&dest, &Error::ReadOnly { what: "the subvolume" }));
    }
    let options = &args.import_options;
    let rules = Rules { no_owner: options.no_owner, epoch: None };
    let progress = Progress::new(global);
    let committed = fs.inspect().committed_generation();
    let mut reader = Reader::new(input, shown, !options.no_xattrs);
    let mut extract = Extract::new(fs, rules, &progress, (root, generation));
    let extracted = extract.run(&mut reader);
    progress.finish();
    let (counts, is_full) = (extract.counts, extract.is_full);
    extracted.map_err(|failure| {
        let is_kept = fs.inspect().committed_generation() > committed;
        let full = is_full.then(|| full(free_bytes));
        let hints: Vec<_> = full.into_iter().chain(is_kept.then(|| kept(&dest))).collect();
        failure.hint_if((!hints.is_empty()).then(|| hints.join("; ")))
    })?;
    transaction.record("made", &dest);
    if global.verbose && !global.json {
        stderr_line(&described(&dest, counts));
    }
    transaction.finish(global, out, |object| counts.put_into(object))
}

fn full(free_bytes: u64) -> String {
    let free = pretty(free_bytes, Units::Binary);
    format!(
        "the archive needs more than the {free} that were free; remove files, or extend the \
         volume with `butternut filesystem resize`"
    )
}

/// What is left of an import that fails after the library had to commit.
fn kept(dest: &[u8]) -> String {
    format!("a part of the archive was committed before: remove it from {}", text::escaped(dest))
}

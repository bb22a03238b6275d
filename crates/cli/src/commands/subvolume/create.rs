//! `subvolume create`: makes empty subvolumes.

use crate::args::{GlobalArgs, SubvolumeCreateArgs};
use crate::commands::mounted;
use crate::commands::transaction::{Transaction, failed, new_inode};
use crate::failure::Outcome;
use crate::output::{Output, text};

/// Mode of the root directory of a new subvolume.
const PERMISSIONS: u32 = 0o755;

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeCreateArgs, out: &mut Output) -> Outcome {
    if mounted::is_path(&args.volume.volume, args.paths.is_empty()) {
        let paths: Vec<_> = std::iter::once(&args.volume.volume).chain(&args.paths).collect();
        return mounted::create(global, &paths, out);
    }
    if args.paths.is_empty() {
        return Ok(mounted::usage("subvolume create VOLUME PATH..."));
    }
    let mut transaction = Transaction::open(global, &args.volume)?;
    let mut ids = Vec::new();
    for path in &args.paths {
        let location = transaction.locate(&text::bytes(path))?;
        let new = new_inode(PERMISSIONS);
        let made = transaction.filesystem().create_subvolume(location.dir, &location.name, &new);
        ids.push(made.map_err(|error| failed(&location.path, &error))?);
        transaction.record("created", &location.path);
    }
    transaction.finish(global, out, |object| object.put("subvolumes", ids))
}

//! `subvolume create`: makes empty subvolumes.

use butternut::format::quota::QgroupId;

use crate::args::{GlobalArgs, SubvolumeCreateArgs};
use crate::commands::transaction::{Transaction, new_inode};
use crate::commands::{mounted, qgroup};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// Mode of the root directory of a new subvolume.
const PERMISSIONS: u32 = 0o755;

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeCreateArgs, out: &mut Output) -> Outcome {
    let qgroups = qgroup::parse_all(&args.qgroups)?;
    if mounted::is_path(&args.volume.volume, args.paths.is_empty()) {
        if let Some(path) = args.paths.first()
            && let Some(usage) = mounted::with_path_apart(&args.volume.volume, &[path])
        {
            return Ok(usage);
        }
        let paths: Vec<_> = std::iter::once(&args.volume.volume).chain(&args.paths).collect();
        return mounted::create(global, &paths, &qgroups, out);
    }
    if args.paths.is_empty() {
        return Ok(mounted::usage("subvolume create VOLUME PATH..."));
    }
    let mut transaction = Transaction::open(global, &args.volume)?;
    let mut ids = Vec::new();
    let done = args.paths.iter().try_for_each(|path| {
        ids.push(create(&mut transaction, &text::bytes(path), &qgroups)?);
        Ok(())
    });
    transaction.finish_after(done, global, out, |object| object.put("subvolumes", ids))
}

/// Creates one. Its directory may be a subvolume that was created just before.
fn create(
    transaction: &mut Transaction,
    path: &[u8],
    qgroups: &[QgroupId],
) -> Result<u64, Failure> {
    let location = transaction.locate(path)?;
    let new = new_inode(PERMISSIONS);
    let (filesystem, dir) = (transaction.filesystem(), location.dir);
    let made = filesystem.create_subvolume_in_qgroups(dir, &location.name, &new, qgroups);
    let id = made.map_err(|error| transaction.failed(path, &error))?;
    transaction.record("created", path);
    Ok(id)
}

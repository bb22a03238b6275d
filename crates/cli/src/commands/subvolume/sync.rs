//! `subvolume sync`: waits until the space of deleted subvolumes is freed. In a volume that is not
//! mounted, where nothing frees it in the background, the command does.

use butternut::Error;

use crate::args::{GlobalArgs, SubvolumeSyncArgs};
use crate::commands::mounted;
use crate::commands::transaction::Transaction;
use crate::failure::{Failure, Outcome};
use crate::output::Output;

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeSyncArgs, out: &mut Output) -> Outcome {
    if mounted::is_directory(&args.volume.volume) {
        return mounted::wait_until_cleaned(global, &args.volume.volume, &args.ids, out);
    }
    let mut transaction = Transaction::open_to_delete(global, &args.volume)?;
    for id in &args.ids {
        check_deleted(&transaction, *id)?;
    }
    let deleted = transaction.filesystem().deleted_subvolumes();
    let deleted = deleted.map_err(|error| transaction.failure(&error))?;
    let left = transaction.filesystem().clean_subvolumes();
    left.map_err(|error| transaction.failure(&error))?;
    for id in &deleted {
        transaction.record("freed", id.to_string().as_bytes());
    }
    transaction.finish(global, out, |object| object.put("subvolumes", deleted))
}

/// Fails if there is a subvolume with this id that is not deleted.
fn check_deleted(transaction: &Transaction, id: u64) -> Result<(), Failure> {
    match transaction.filesystem().subvolume(id) {
        Ok(found) if found.deleted => Ok(()),
        Ok(_) => Err(Failure::new(id.to_string(), "the subvolume is not deleted")
            .hint("`butternut subvolume list -d` shows those that are")),
        Err(Error::NoSubvolume { .. }) => Ok(()),
        Err(error) => Err(transaction.failure(&error)),
    }
}

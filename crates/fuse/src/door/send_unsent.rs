//! Which files may have data that the kernel has cached and not sent, and what waits until it has
//! sent that: see the laws of `unsent` and `volume_syncs`.

use std::sync::Arc;

use butternut::Filesystem;
use butternut::server::FilesystemExt;

use crate::connection;
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::unsent::UnsentFiles;
use crate::door::volume_syncs::Shared;
use crate::door::{Door, guarded};
use crate::errno::ErrnoResult;
use crate::options::Caching;

impl Door {
    /// Returns the files that may have unsent writes (law 4).
    pub(super) fn unsent_files(&self) -> UnsentFiles {
        let may_exist = self.options.caching != Caching::WriteThrough;
        UnsentFiles { may_exist, ..self.unsent_files_at_end() }
    }

    /// Returns the files that may have unsent data, for a mount that ends (law 5).
    pub(super) fn unsent_files_at_end(&self) -> UnsentFiles {
        let (handles, nodes) = (Arc::clone(&self.handles), Arc::clone(&self.nodes));
        UnsentFiles { handles, nodes, may_exist: true }
    }

    /// Makes the kernel send the unsent writes of all files, and waits for that.
    ///
    /// # Errors
    /// `EIO`: the kernel has lost writes meanwhile (law 6).
    pub(crate) fn send_unsent_data(&self) -> ErrnoResult<()> {
        let losses = self.lost_writes.watch();
        self.unsent_files().all().send(&self.device);
        losses.check()
    }

    /// Makes the kernel send all unsent data of a mount that ends, and waits for that.
    ///
    /// # Errors
    /// As of [`Self::send_unsent_data`].
    pub(crate) fn send_unsent_data_at_end(&self) -> ErrnoResult<()> {
        let losses = self.lost_writes.watch();
        self.unsent_files_at_end().all().send(&self.device);
        losses.check()
    }

    /// Defers the reply, of at most `bytes` bytes, until the kernel has sent its data of all files,
    /// and everything was committed. `sync` gets the results of both; it must not keep a
    /// reference to the door.
    pub(super) fn reply_after_unsent(
        &self,
        request: &Request<'_>,
        bytes: usize,
        sync: impl FnOnce(Shared, &mut Reply) -> ErrnoResult<()> + Send + 'static,
    ) {
        let (unique, device) = (request.header.unique, Arc::clone(request.device));
        let filesystem = self.filesystem.clone();
        // Those from now on: this caller may wait for the walk and the commit of others.
        let losses = self.lost_writes.watch();
        let answer = move |shared: Shared| {
            let shared = Shared { sent: shared.sent.and(losses.check()), ..shared };
            let mut reply = Reply::new(bytes);
            let result = guarded(&filesystem, || sync(shared, &mut reply));
            drop(filesystem);
            connection::send_reply(&device, unique, result, &mut reply);
        };
        let syncs = self.volume_syncs.clone();
        if !syncs.add(Box::new(answer)) {
            return;
        }
        let (of_thread, device) = (syncs.clone(), Arc::clone(request.device));
        let (filesystem, unsent) = (self.filesystem.clone(), self.unsent_files());
        let run = move || {
            of_thread.run(|| {
                unsent.all().send(&device);
                Shared { sent: Ok(()), committed: commit(&filesystem) }
            });
        };
        if let Err(errno) = self.spawn_deferred(run) {
            syncs.run(|| Shared { sent: Err(errno), committed: commit(&self.filesystem) });
        }
    }
}

fn commit(filesystem: &Filesystem) -> ErrnoResult<()> {
    guarded(filesystem, || Ok(filesystem.write_back_and_commit()?))
}

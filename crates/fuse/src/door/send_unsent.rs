//! Which files may have data that the kernel has cached and not sent, and what waits until it has
//! sent that: see the laws of `unsent` and `volume_syncs`.

use std::sync::Arc;

use butternut::Filesystem;
use butternut::server::FilesystemExt;

use crate::connection;
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::unsent::UnsentData;
use crate::door::volume_syncs::Shared;
use crate::door::{Door, guarded};
use crate::errno::ErrnoResult;
use crate::options::Caching;

impl Door {
    /// Lists the files that may have unsent writes (law 4).
    pub(super) fn unsent_data(&self) -> UnsentData {
        if self.options.caching == Caching::WriteThrough {
            return UnsentData::default();
        }
        self.unsent_data_at_end()
    }

    /// Lists the files that may have unsent data, for a mount that ends (law 5).
    pub(super) fn unsent_data_at_end(&self) -> UnsentData {
        let mut unsent = UnsentData::default();
        for (id, fills) in self.handles.open_for_write() {
            unsent.add(id, self.nodes.node_id(id), fills);
        }
        unsent
    }

    /// Makes the kernel send the unsent writes of all files, and waits for that.
    ///
    /// # Errors
    /// As of [`UnsentData::write_back`].
    pub(crate) fn send_unsent_data(&self) -> ErrnoResult<()> {
        self.unsent_data().write_back(&self.device)
    }

    /// Makes the kernel send all unsent data of a mount that ends, and waits for that.
    ///
    /// # Errors
    /// As of [`UnsentData::write_back`].
    pub(crate) fn send_unsent_data_at_end(&self) -> ErrnoResult<()> {
        self.unsent_data_at_end().write_back(&self.device)
    }

    /// Defers the reply, of at most `bytes` bytes, until the kernel has sent its data of these
    /// files, and everything was committed. `sync` gets the results of both; it must not keep a
    /// reference to the door.
    pub(super) fn reply_after_unsent(
        &self,
        request: &Request<'_>,
        bytes: usize,
        unsent: UnsentData,
        sync: impl FnOnce(Shared, &mut Reply) -> ErrnoResult<()> + Send + 'static,
    ) {
        let (unique, device) = (request.header.unique, Arc::clone(request.device));
        let filesystem = self.filesystem.clone();
        // Those from now on: this caller may wait for the walk and the commit of others.
        let losses = unsent.losses();
        let answer = move |shared: Shared| {
            let shared = Shared { sent: shared.sent.and(losses.check()), ..shared };
            let mut reply = Reply::new(bytes);
            let result = guarded(&filesystem, || sync(shared, &mut reply));
            drop(filesystem);
            connection::send_reply(&device, unique, result, &mut reply);
        };
        let syncs = self.volume_syncs.clone();
        if !syncs.add(unsent, Box::new(answer)) {
            return;
        }
        let (of_thread, device) = (syncs.clone(), Arc::clone(request.device));
        let filesystem = self.filesystem.clone();
        let run = move || {
            of_thread.run(|unsent| {
                unsent.send(&device);
                Shared { sent: Ok(()), committed: commit(&filesystem) }
            });
        };
        if let Err(errno) = self.spawn_deferred(run) {
            syncs.run(|_| Shared { sent: Err(errno), committed: commit(&self.filesystem) });
        }
    }
}

fn commit(filesystem: &Filesystem) -> ErrnoResult<()> {
    guarded(filesystem, || Ok(filesystem.write_back_and_commit()?))
}

//! [`Buffers`] and [`Load`]: the memory of one request.
//!
//! 1. The bytes of several buffers form one sequence, in the order of the buffers, like an iovec.
//! 2. Shared memory is only read: devices are written from it and never read into it. It can be
//!    changed again when one owner is left ([`std::sync::Arc::get_mut`]).

use crate::buffer::Buffer;
use std::sync::Arc;

/// One buffer or a list of them. A list comes back with its buffers when the request completes.
#[derive(Debug)]
pub enum Buffers {
    One(Buffer),
    Many(Vec<Buffer>),
}

/// The memory that a request owns while it is in flight and that its completion returns.
#[derive(Debug)]
pub enum Load {
    Owned(Buffers),
    /// For writes of the same bytes to several offsets or devices.
    Shared(Arc<Buffers>),
}

impl Buffers {
    pub fn as_slice(&self) -> &[Buffer] {
        match self {
            Buffers::One(buffer) => std::slice::from_ref(buffer),
            Buffers::Many(buffers) => buffers,
        }
    }

    /// Returns the total length in bytes.
    pub fn bytes(&self) -> usize {
        let lengths = self.as_slice().iter().map(Buffer::len);
        lengths.fold(0, usize::saturating_add)
    }

    /// Returns whether nothing else can change the bytes ([`Buffer::is_stable`]).
    pub fn is_stable(&self) -> bool {
        self.as_slice().iter().all(Buffer::is_stable)
    }

    /// Returns the buffer if there is exactly one.
    pub fn into_one(self) -> Option<Buffer> {
        match self {
            Buffers::One(buffer) => Some(buffer),
            Buffers::Many(mut buffers) if buffers.len() == 1 => buffers.pop(),
            Buffers::Many(_) => None,
        }
    }
}

impl Load {
    pub fn as_slice(&self) -> &[Buffer] {
        self.buffers().as_slice()
    }

    pub fn bytes(&self) -> usize {
        self.buffers().bytes()
    }

    /// Returns the buffer if the request owns exactly one, so a device may read into it.
    pub fn one_mut(&mut self) -> Option<&mut Buffer> {
        match self {
            Load::Owned(Buffers::One(buffer)) => Some(buffer),
            Load::Owned(Buffers::Many(_)) | Load::Shared(_) => None,
        }
    }

    /// Returns the buffers, unless other requests still share them.
    pub fn into_buffers(self) -> Option<Buffers> {
        match self {
            Load::Owned(buffers) => Some(buffers),
            Load::Shared(shared) => Arc::into_inner(shared),
        }
    }

    /// Returns the buffer if there is exactly one and no other request shares it.
    pub fn into_one(self) -> Option<Buffer> {
        self.into_buffers()?.into_one()
    }

    fn buffers(&self) -> &Buffers {
        match self {
            Load::Owned(buffers) => buffers,
            Load::Shared(shared) => shared,
        }
    }
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers::One(Buffer::default())
    }
}

impl Default for Load {
    fn default() -> Load {
        Load::Owned(Buffers::default())
    }
}

impl From<Buffer> for Buffers {
    fn from(buffer: Buffer) -> Buffers {
        Buffers::One(buffer)
    }
}

impl From<Vec<Buffer>> for Buffers {
    fn from(buffers: Vec<Buffer>) -> Buffers {
        Buffers::Many(buffers)
    }
}

impl<B: Into<Buffers>> From<B> for Load {
    fn from(buffers: B) -> Load {
        Load::Owned(buffers.into())
    }
}

impl From<Arc<Buffers>> for Load {
    fn from(buffers: Arc<Buffers>) -> Load {
        Load::Shared(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_list_is_the_sum_of_its_buffers() {
        let row = Buffers::from(vec![Buffer::zeroed(5), Buffer::default(), Buffer::zeroed(7)]);
        assert_eq!((row.bytes(), row.as_slice().len()), (12, 3));
        assert!(row.into_one().is_none());
        assert_eq!(Buffers::from(vec![Buffer::zeroed(9)]).into_one().unwrap().len(), 9);
    }

    #[test]
    fn only_the_last_owner_of_shared_memory_gets_it_back() {
        let shared = Arc::new(Buffers::from(Buffer::zeroed(8)));
        let (mut first, second) = (Load::from(Arc::clone(&shared)), Load::from(shared));
        assert!(first.one_mut().is_none());
        assert!(first.into_buffers().is_none());
        assert_eq!(second.into_one().unwrap().len(), 8);
    }
}

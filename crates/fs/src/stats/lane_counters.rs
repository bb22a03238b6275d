//! [`LaneCounts`]: how many requests took which I/O lane.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),+ $(,)?) => {
        /// How many requests took each I/O lane.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LaneCounts {
            $($(#[doc = $doc])* pub $name: u64,)+
        }

        /// [`LaneCounts`] that threads add to.
        #[derive(Debug, Default)]
        pub(crate) struct LaneCounters {
            $(pub(crate) $name: Count,)+
        }

        impl LaneCounters {
            pub(crate) fn now(&self) -> LaneCounts {
                LaneCounts { $($name: self.$name.now(),)+ }
            }
        }

        impl LaneCounts {
            /// Returns each count with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }

            /// Returns each name with its description.
            pub(crate) fn described() -> Vec<(&'static str, &'static str)> {
                vec![$((stringify!($name), concat!($($doc,)*).trim_ascii()),)+]
            }
        }
    };
}

counters! {
    /// Direct reads of one block whose extent and checksum were in memory.
    dio_read_simple,
    /// All other direct reads.
    dio_read_general,
    /// Direct reads that failed or did not match their checksum, and were read again.
    read_retry_mirror,
    /// Direct writes that shared the inode lock.
    dio_write_shared,
    /// Direct writes that held the inode lock exclusively.
    dio_write_exclusive,
    /// Files that lost privileges in a write.
    privs_stripped,
    /// Direct writes from the caller's memory.
    dio_write_zero_copy,
    /// Direct writes that were copied to a bounce buffer.
    dio_write_bounced,
    /// Direct writes that went through the page cache.
    dio_write_fallback,
    /// Requests that failed with EAGAIN.
    nowait_again,
}

/// One count.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

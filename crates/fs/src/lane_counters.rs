//! Counts of the I/O lanes: which way requests went.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),+ $(,)?) => {
        /// How many requests went which way so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LaneCounts {
            $($(#[doc = $doc])* pub $name: u64,)+
        }

        /// The same, being counted.
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
            /// Each count with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }

            /// Each name with what it counts.
            pub(crate) fn described() -> Vec<(&'static str, &'static str)> {
                vec![$((stringify!($name), concat!($($doc,)*).trim_ascii()),)+]
            }
        }
    };
}

counters! {
    /// Direct reads of one block, whose place and checksum were in memory.
    dio_read_simple,
    /// All other direct reads.
    dio_read_general,
    /// Direct reads that were bad or failed, and were read again from another copy.
    read_retry_mirror,
    /// Direct writes that shared their file.
    dio_write_shared,
    /// Direct writes that had their file alone.
    dio_write_exclusive,
    /// Files that lost privileges by a write.
    privs_stripped,
    /// Direct writes that went to the devices from the caller's memory.
    dio_write_zero_copy,
    /// Direct writes that were copied first.
    dio_write_bounced,
    /// Direct writes that went through the page cache.
    dio_write_fallback,
    /// Requests that were not to wait, and would have had to.
    nowait_again,
}

/// One count.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl crate::Filesystem {
    /// What the page cache holds, and did so far.
    pub fn page_counts(&self) -> butternut_pages::PageCounters {
        self.shared.source.pages().counters()
    }

    /// How many requests went which way so far.
    pub fn lane_counts(&self) -> LaneCounts {
        self.shared.counters.now()
    }
}

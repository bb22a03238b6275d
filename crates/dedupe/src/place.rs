//! [`Place`]: where the files are, as far as a search for equal data needs it.

use std::fmt;

/// The unit in which extents are aligned and space is counted, in bytes.
pub const SECTOR_BYTES: u64 = 4096;

/// A digest of everything that changes when the contents of a file may have changed: which file it
/// is, its size and its times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub [u8; 16]);

impl Identity {
    /// Returns the digest of what identifies a file and its version.
    pub fn of(parts: &[u8]) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&blake3::hash(parts).as_bytes()[..16]);
        Self(digest)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a search needs to know about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub identity: Identity,
    /// Size, in bytes.
    pub size: u64,
    /// The filesystem; files of two filesystems share no data.
    pub filesystem: u64,
    /// Whether the data has checksums. Files with and without them share no data.
    pub has_checksums: bool,
    /// Whether the file may be a target; any other is a source only.
    pub is_target: bool,
    /// Whether a later change of the contents will change the identity. It may not where the last
    /// change is too recent for the resolution of the times; such a file is not kept in an index.
    pub is_settled: bool,
}

/// Where a filesystem stores the bytes of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// At an address.
    Stored { address: u64 },
    /// In an extent that is encoded as a whole, whose first byte on disk is at an address. All of
    /// its bytes have this location: whichever of them a file refers to, the whole extent stays.
    Encoded { address: u64 },
    /// Only in memory so far.
    Buffered,
    /// With the metadata of the file, where nothing can be shared.
    Inline,
}

impl Location {
    /// Returns the location of the byte that is `bytes` bytes further.
    pub(crate) fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Stored { address } => Self::Stored { address: address.wrapping_add(bytes) },
            Self::Encoded { .. } | Self::Buffered | Self::Inline => self,
        }
    }
}

/// A range of a file that has data. Holes and preallocated ranges are not data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataExtent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length, in bytes. It may reach past the end of the file, up to the end of a sector.
    pub bytes: u64,
    pub location: Location,
}

impl DataExtent {
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// Why a file is left alone. None of these is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// It was changed or removed during the run.
    Changed,
    /// The caller may not change it: its subvolume or filesystem is read-only, its flags forbid it,
    /// or it belongs to another user.
    NotPermitted,
    /// It has the same data as a file with checksums and has none itself, or the other way round.
    Checksums,
    /// The filesystem refuses to share its data, for another reason.
    Refused,
    /// It has data so far behind its beginning that its blocks have no numbers.
    TooLarge,
}

impl Skip {
    /// Returns the reason in words that complete "files skipped:".
    pub fn reason(self) -> &'static str {
        match self {
            Self::Changed => "changed during the run",
            Self::NotPermitted => "read-only, or of another user",
            Self::Checksums => "with and without checksums",
            Self::Refused => "refused by the filesystem",
            Self::TooLarge => "too large for the block size",
        }
    }

    /// Returns the reason as one word, for keys of JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::NotPermitted => "not_permitted",
            Self::Checksums => "checksums",
            Self::Refused => "refused",
            Self::TooLarge => "too_large",
        }
    }
}

/// Why an operation of a [`Place`] was not done.
#[derive(Debug)]
pub enum Problem<E> {
    /// The file is left alone.
    Skip(Skip),
    /// The operation failed. The run goes on with other files.
    Failed(E),
    /// No further operation can succeed.
    Ends(E),
}

/// The answer of a filesystem to a request to share data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// So many bytes from the beginning were equal, and are shared now: all, or fewer.
    Shared(u64),
    /// The bytes differ, and nothing has changed.
    Differs,
}

/// A place that has files: a volume that is not mounted, or directories of mounted filesystems.
pub trait Place {
    /// How a file is found again.
    type Name;
    /// An open file.
    type File;
    /// What a failure tells the user.
    type Error;

    /// Opens a file that was found before, and returns what it is now.
    ///
    /// # Errors
    /// [`Skip::Changed`] if it is not there any more.
    fn open(&self, name: &Self::Name) -> Result<(Self::File, Facts), Problem<Self::Error>>;

    /// Reads at most `buf.len()` bytes at an offset; fewer than that, or none, at the end.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn read(
        &self,
        file: &Self::File,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Problem<Self::Error>>;

    /// Returns extents with data that end after `from`, in order and without overlap, from the
    /// first one: some of them, or none if there are none.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn extents(
        &self,
        file: &Self::File,
        from: u64,
    ) -> Result<Vec<DataExtent>, Problem<Self::Error>>;

    /// Compares `bytes` bytes of two files, at most [`Self::SHARE_BYTES_MAX`], and if they are
    /// equal, lets the target share the extents of the source. The offsets are multiples of
    /// [`SECTOR_BYTES`], and so is the length, unless both ranges end with their files.
    ///
    /// # Errors
    /// Those of the filesystem. [`Skip::Refused`] concerns the two files together, and every other
    /// [`Skip`] the target. [`Problem::Failed`] may concern either.
    fn dedupe(
        &self,
        source: (&Self::File, u64),
        target: (&Self::File, u64),
        bytes: u64,
    ) -> Result<Answer, Problem<Self::Error>>;

    /// Maximum number of bytes of one request to share data.
    const SHARE_BYTES_MAX: u64 = 16 << 20;
}

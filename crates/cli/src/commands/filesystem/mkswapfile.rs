//! `filesystem mkswapfile`: makes a swap file that the kernel can use when it has the volume
//! mounted.
//!
//! ```text
//! the first page of the file
//! 0      1024      1028        1032        1036   1052    4086
//! | boot | version | last page | bad pages | UUID | label | ... | SWAPSPACE2 |
//! ```
//!
//! 1. The kernel swaps to the places of the file on the device, so the file is written in place,
//!    has no checksums and is not compressed, and all of it is allocated.
//! 2. The file must not exist, so that nothing is lost. Only its owner can read it: it will hold
//!    the memory of programs.
//! 3. The kernel swaps to block groups of the profile single only. With another profile the file is
//!    made, and a note tells of that.

use std::io::Write;

use butternut::format::chunk::{BlockGroupFlags, Profile};
use butternut::format::uuid::Uuid;
use butternut::{Allocate, AttributeFlags, Filesystem};
use butternut_sys::random;

use super::super::transaction::{Transaction, failed, new_inode};
use crate::args::{GlobalArgs, MkswapfileArgs, parse_bytes};
use crate::failure::{Failure, Outcome};
use crate::output::size::{Units, pretty};
use crate::output::{Output, stderr_line, text};

/// The page size of the computers that the file is for, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Minimum number of pages that the kernel accepts.
const PAGES_MIN: u64 = 10;
/// Maximum number of pages: the header has 32 bits for the last one.
const PAGES_MAX: u64 = 1 << 32;
const PERMISSIONS: u32 = 0o600;
/// `FS_NOCOW_FL`.
const NO_COW: u32 = 0x0080_0000;

const VERSION_AT: usize = 1024;
const UUID_AT: usize = 1036;
const MAGIC_AT: usize = 4086;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

pub(crate) fn run(global: &GlobalArgs, args: &MkswapfileArgs, out: &mut Output) -> Outcome {
    let pages = pages(&args.size)?;
    let uuid = uuid(&args.uuid)?;
    let mut transaction = Transaction::open(global, &args.volume)?;
    let path = text::bytes(&args.path);
    let location = transaction.locate(&path)?;
    location.refuse_slash()?;
    if transaction.existing(&location)?.is_some() {
        return Err(Failure::new(text::escaped(&path), "the file exists")
            .hint("remove it first, or choose another name"));
    }
    let bytes = pages * PAGE_BYTES;
    let filesystem = transaction.filesystem();
    let make = || -> butternut::Result<()> {
        let id = filesystem.create(location.dir, &location.name, &new_inode(PERMISSIONS))?;
        filesystem.set_attribute_flags(id, AttributeFlags(NO_COW))?;
        let file = filesystem.open_file(id)?;
        file.allocate(0..bytes, Allocate::Extend)?;
        file.write_all_at(0, &header(pages, &uuid))
    };
    make().map_err(|error| failed(&path, &error))?;
    if !global.quiet && !has_single_data(filesystem) {
        let note = "note: the kernel uses swap files only where the data profile is single";
        stderr_line(&format!("{}: {note}", text::escaped(&path)));
    }
    transaction.record("made", &path);
    if !global.quiet && !global.json {
        writeln!(
            out,
            "{}: swap file of {}, UUID={}",
            text::escaped(&path),
            pretty(bytes, Units::Binary),
            text::uuid_or_dash(&uuid.0)
        )?;
    }
    transaction.finish(global, out, |object| object.put("bytes", bytes).uuid("uuid", &uuid.0))
}

/// Returns the number of whole pages of a size.
fn pages(typed: &str) -> Result<u64, Failure> {
    let pages = parse_bytes("--size", typed)? / PAGE_BYTES;
    if (PAGES_MIN..=PAGES_MAX).contains(&pages) {
        return Ok(pages);
    }
    let why = format!("a swap file has 40 KiB to 16 TiB, not {typed}");
    Err(Failure::new("--size", why).hint("examples: 512M, 2G"))
}

fn uuid(typed: &str) -> Result<Uuid, Failure> {
    match typed {
        "clear" => Ok(Uuid([0; 16])),
        "random" => {
            let bytes = random::bytes::<16>();
            Ok(Uuid::version_4(bytes.map_err(|errno| Failure::io("--uuid", &errno.into()))?))
        }
        typed => Uuid::parse(typed).ok_or_else(|| {
            Failure::usage("--uuid", format!("{typed:?} is not a UUID"))
                .hint("give 32 hexadecimal digits as 8-4-4-4-12, random or clear")
        }),
    }
}

/// Returns the first page of a swap file.
fn header(pages: u64, uuid: &Uuid) -> Vec<u8> {
    let mut page = vec![0; usize::try_from(PAGE_BYTES).unwrap_or_default()];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    let last_page = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    put(VERSION_AT, &1_u32.to_le_bytes());
    put(VERSION_AT + 4, &last_page.to_le_bytes());
    put(UUID_AT, &uuid.0);
    put(MAGIC_AT, MAGIC);
    page
}

/// Returns whether all data is in block groups without copies on one device each.
fn has_single_data(filesystem: &Filesystem) -> bool {
    let chunks = filesystem.inspect().chunks();
    let mut data = chunks.iter().filter(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    data.all(|chunk| chunk.flags.profile() == Some(Profile::Single))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_fields_where_the_kernel_reads_them() {
        let page = header(512, &Uuid([7; 16]));
        assert_eq!(page.len(), 4096);
        assert_eq!(page[1024..1036], [1, 0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[1036..1052], [7; 16]);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert!(page[..1024].iter().chain(&page[1052..4086]).all(|byte| *byte == 0));
    }

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!(pages("41000").ok(), Some(10));
        assert!(pages("39K").is_err() && pages("17T").is_err() && pages("x").is_err());
    }
}

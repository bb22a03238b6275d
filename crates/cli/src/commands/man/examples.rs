//! The EXAMPLES of the man pages. A test runs them, in order, each page in a directory with the
//! files that they name (`tests/cli/examples.rs`).

/// What one example shows, and its command line.
pub(super) type Example = (&'static str, &'static str);

/// The examples of each page, by the name of the page.
const EXAMPLES: [(&str, &[Example]); 30] = [
    (
        "butternut",
        &[
            (
                "Make a volume in an image file, fill it, and look at it:",
                "butternut mkfs --size 1G new.img\n\
                 butternut import new.img site /\n\
                 butternut ls -l new.img site",
            ),
            ("Use a volume in a partition of a disk image:", "butternut ls 'vm.raw?partition=2'"),
            ("Read a file as it was in a snapshot:", "butternut cat disk.img@snap1 etc/fstab"),
        ],
    ),
    (
        "butternut-ls",
        &[
            (
                "List the top level of a volume, and a directory of a snapshot:",
                "butternut ls disk.img\nbutternut ls -l disk.img@snap1 etc",
            ),
            (
                "List a volume on two devices, one of which is missing:",
                "butternut ls --degraded a.img",
            ),
        ],
    ),
    (
        "butternut-cat",
        &[
            ("Print a file:", "butternut cat disk.img etc/fstab"),
            (
                "Print 512 bytes of a large file:",
                "butternut cat --offset 1K --length 512 disk.img var/log/messages",
            ),
        ],
    ),
    (
        "butternut-stat",
        &[(
            "Show the attributes of a file and its extents:",
            "butternut stat --extents disk.img var/log/messages",
        )],
    ),
    (
        "butternut-find",
        &[("Find files by name in every directory:", "butternut find disk.img / --name '*.html'")],
    ),
    (
        "butternut-export",
        &[
            (
                "Copy a directory out of a volume, with its metadata:",
                "butternut export disk.img home rescued",
            ),
            (
                "Copy one file as it was in a snapshot:",
                "butternut export disk.img@snap1 etc/fstab fstab.old",
            ),
            (
                "Write a directory as an archive of tar(1), without what is below cache:",
                "butternut export --tar --exclude cache disk.img home - >home.tar",
            ),
        ],
    ),
    (
        "butternut-import",
        &[
            (
                "Copy a directory into a volume, as /srv/site:",
                "butternut mkdir disk.img srv\nbutternut import disk.img site srv",
            ),
            (
                "Copy what is in a directory, owned by root:",
                "butternut import --no-owner disk.img site/. /",
            ),
        ],
    ),
    (
        "butternut-write",
        &[(
            "Replace a file in a volume:",
            "echo 'UUID=5 / btrfs defaults 0 0' | butternut write disk.img etc/fstab",
        )],
    ),
    (
        "butternut-rm",
        &[("Remove a directory and what is in it:", "butternut rm -r disk.img home/old")],
    ),
    (
        "butternut-cp",
        &[(
            "Copy a file in a volume; the copy shares its data:",
            "butternut cp disk.img var/log/messages var/log/messages.1",
        )],
    ),
    (
        "butternut-mkfs",
        &[
            ("Make an empty volume in an image file:", "butternut mkfs -L data --size 1G new.img"),
            (
                "Make a volume with the contents of a directory, as small as possible:",
                "butternut mkfs --rootdir site --shrink site.img",
            ),
            (
                "Make a volume with other checksums, and without the second copy of metadata:",
                "butternut mkfs -f --csum xxhash -m single new.img",
            ),
            (
                "Make a volume in a partition of a disk image:",
                "butternut mkfs 'vm.raw?partition=1'",
            ),
            (
                "Make the same bytes each time:",
                "SOURCE_DATE_EPOCH=0 butternut mkfs -U 01234567-89ab-cdef-0123-456789abcdef \
                 --rootdir site same.img",
            ),
        ],
    ),
    (
        "butternut-partitions",
        &[(
            "List the partitions of a disk image, and the files in the second one:",
            "butternut partitions vm.raw\nbutternut ls 'vm.raw?partition=2'",
        )],
    ),
    (
        "butternut-mount",
        &[
            (
                "Mount a volume, use it, and unmount it:",
                "butternut mount disk.img mnt\ncp -r site mnt/\nbutternut umount mnt",
            ),
            (
                "Mount a snapshot of a volume in a partition, for reading:",
                "butternut mount -o ro 'vm.raw?partition=2@snap1' mnt\n\
                 ls mnt\n\
                 butternut umount mnt",
            ),
            (
                "Compress what is written:",
                "butternut mount -o compress=zstd disk.img mnt\nbutternut umount mnt",
            ),
        ],
    ),
    (
        "butternut-umount",
        &[(
            "Unmount a volume. Its image can be copied when the command returns:",
            "butternut mount disk.img mnt\nbutternut umount mnt\ncp disk.img backup.img",
        )],
    ),
    (
        "butternut-check",
        &[(
            "Check the metadata of a volume, and then the data, too:",
            "butternut check disk.img\nbutternut check --check-data-csum disk.img",
        )],
    ),
    (
        "butternut-subvolume-list",
        &[("List the subvolumes of a volume:", "butternut subvolume list disk.img")],
    ),
    (
        "butternut-subvolume-create",
        &[("Create a subvolume:", "butternut subvolume create disk.img /data")],
    ),
    (
        "butternut-subvolume-snapshot",
        &[
            (
                "Create a read-only snapshot of a whole volume:",
                "butternut subvolume snapshot -r disk.img / /today",
            ),
            (
                "Go back to an older state: make a writable snapshot of it, and \
                 mount that from now on:",
                "butternut subvolume snapshot disk.img /snap1 /restored\n\
                 butternut subvolume set-default disk.img /restored",
            ),
        ],
    ),
    (
        "butternut-subvolume-delete",
        &[("Delete a snapshot:", "butternut subvolume delete disk.img /snap1")],
    ),
    (
        "butternut-send",
        &[(
            "Send a snapshot, and then only what has changed since:",
            "butternut send disk.img snap1 > full.stream\n\
             butternut send -p snap1 disk.img snap2 > next.stream",
        )],
    ),
    (
        "butternut-receive",
        &[
            (
                "Make a copy of two snapshots in another volume:",
                "butternut mkfs -q --size 1G copy.img\n\
                 butternut send disk.img snap1 | butternut receive copy.img\n\
                 butternut send -p snap1 disk.img snap2 | butternut receive copy.img",
            ),
            (
                "Look at what a stream contains:",
                "butternut send disk.img snap1 > full.stream\nbutternut ls full.stream /snap1",
            ),
        ],
    ),
    (
        "butternut-filesystem-usage",
        &[("Show how the space of a volume is used:", "butternut filesystem usage disk.img")],
    ),
    (
        "butternut-filesystem-resize",
        &[("Make a volume and its image file larger:", "butternut filesystem resize disk.img +1G")],
    ),
    (
        "butternut-filesystem-label",
        &[(
            "Set the label of a volume, and print it:",
            "butternut filesystem label disk.img data\nbutternut filesystem label disk.img",
        )],
    ),
    (
        "butternut-dedupe",
        &[("Let equal files of a volume share their data:", "butternut dedupe disk.img")],
    ),
    (
        "butternut-inspect-dump-super",
        &[(
            "Print the first superblock, and then all copies in full:",
            "butternut inspect dump-super disk.img\n\
             butternut inspect dump-super --all --full disk.img",
        )],
    ),
    (
        "butternut-verity-enable",
        &[
            (
                "Seal a file of a volume that is not mounted, and verify all that is sealed:",
                "butternut verity enable disk.img /var/log/messages\n\
                 butternut check --check-data-csum disk.img",
            ),
            (
                "Seal a file of a mounted volume, by SHA-512 with a salt:",
                "butternut mount disk.img mnt\n\
                 butternut verity enable --hash-alg sha512 --salt 0badcafe mnt/etc/fstab\n\
                 butternut umount mnt",
            ),
        ],
    ),
    (
        "butternut-verity-measure",
        &[(
            "Seal two files, and print their digests:",
            "butternut verity enable disk.img /etc/fstab /var/log/messages\n\
             butternut verity measure disk.img /etc/fstab /var/log/messages",
        )],
    ),
    (
        "butternut-verity-metadata",
        &[(
            "Compare the tree of hashes of a sealed file with that of fsverity(1):",
            "butternut verity enable disk.img /var/log/messages\n\
             butternut verity metadata disk.img /var/log/messages > tree\n\
             butternut cat disk.img /var/log/messages > messages\n\
             fsverity digest --out-merkle-tree=other messages\n\
             cmp tree other",
        )],
    ),
    (
        "butternut-trim",
        &[(
            "Discard the free space of a volume, which makes a sparse image file smaller:",
            "butternut trim disk.img",
        )],
    ),
];

/// Returns the examples of a page.
pub(super) fn of(page: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(name, _)| *name == page).map_or(&[], |(_, examples)| *examples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn names(command: &clap::Command, name: &str, all: &mut Vec<String>) {
        all.push(name.to_owned());
        for subcommand in command.get_subcommands() {
            names(subcommand, &format!("{name}-{}", subcommand.get_name()), all);
        }
    }

    #[test]
    fn every_page_with_examples_exists_and_is_listed_once() {
        let mut pages = Vec::new();
        names(&Cli::command(), "butternut", &mut pages);
        for (at, (page, _)) in EXAMPLES.iter().enumerate() {
            assert!(pages.iter().any(|it| it == page), "{page}");
            assert!(EXAMPLES[..at].iter().all(|(other, _)| other != page), "{page}");
        }
    }
}

//! The page butternut(7): from the commands of other programs to those of this one.
//!
//! A test parses every command of the right-hand side.

use std::fmt::Write;

use super::escaped;

/// What one program calls its commands, and what they are here.
struct Program {
    title: &'static str,
    about: &'static str,
    /// The command of the program, the command here, and what differs; no command here if empty.
    verbs: &'static [(&'static str, &'static str, &'static str)],
}

const ABOUT: &str = "\
Butternut reads, creates, changes, checks and mounts btrfs volumes without a kernel driver. Its
commands work on a volume that is not mounted, named by its image files or devices, and need no root
for image files. A command that changes a volume is one transaction: it happens as a whole or not at
all. While a volume is mounted for writing, these commands refuse it, except those that take a path
of a mount.";

const VOLUMES: &str = "\
Everywhere below, disk.img stands for any volume: a block device, an image file, several of either
separated by commas, each with ?partition=N or ?offset=N if the volume does not start at its
beginning, and @SUBVOL for a subvolume or snapshot. butternut(1) describes the form.";

const PROGRAMS: [Program; 4] = [
    Program {
        title: "FROM BTRFS-PROGS",
        about: "The names are those of btrfs(8) where it has a command for the same purpose. \
                There, most commands need a mounted volume and root; here, they take a volume that \
                is not mounted. There is no command that repairs a volume, converts its profiles, \
                or adds and removes devices: use btrfs-progs and the kernel's driver for these.",
        verbs: &[
            (
                "mkfs.btrfs -L data disk.img",
                "butternut mkfs -L data --size 1G disk.img",
                "An image file is created with the size.",
            ),
            ("mkfs.btrfs --rootdir tree disk.img", "butternut mkfs --rootdir tree disk.img", ""),
            (
                "mount -o loop,subvol=snap disk.img /mnt",
                "butternut mount disk.img@snap /mnt",
                "butternut-mount(1) lists the options, most of which are those of the kernel.",
            ),
            ("umount /mnt", "butternut umount /mnt", "Returns when all changes are on the device."),
            ("btrfs check disk.img", "butternut check disk.img", "Never repairs."),
            ("btrfs scrub start -B -r /mnt", "butternut check --check-data-csum disk.img", ""),
            ("btrfs subvolume list /mnt", "butternut subvolume list disk.img", ""),
            ("btrfs subvolume show /mnt/snap", "butternut subvolume show disk.img /snap", ""),
            ("btrfs subvolume create /mnt/sub", "butternut subvolume create disk.img /sub", ""),
            (
                "btrfs subvolume snapshot -r /mnt /mnt/snap",
                "butternut subvolume snapshot -r disk.img / /snap",
                "With --recursive, nested subvolumes have snapshots, too.",
            ),
            ("btrfs subvolume delete /mnt/snap", "butternut subvolume delete disk.img /snap", ""),
            (
                "btrfs subvolume set-default 256 /mnt",
                "butternut subvolume set-default disk.img 256",
                "",
            ),
            (
                "btrfs property set /mnt/snap ro false",
                "butternut property set disk.img /snap ro false",
                "",
            ),
            (
                "btrfs send -p /mnt/old /mnt/new",
                "butternut send -p old disk.img new",
                "A path of a mount is accepted, too.",
            ),
            (
                "btrfs receive /mnt",
                "butternut receive disk.img",
                "With --resume, an interrupted one goes on.",
            ),
            ("btrfs filesystem df /mnt", "butternut filesystem df disk.img", ""),
            ("btrfs filesystem usage /mnt", "butternut filesystem usage disk.img", ""),
            ("btrfs filesystem show disk.img", "butternut filesystem show disk.img", ""),
            ("btrfs filesystem du /mnt/home", "butternut filesystem du disk.img home", ""),
            ("btrfs filesystem label /mnt data", "butternut filesystem label disk.img data", ""),
            (
                "btrfs filesystem resize 2g /mnt",
                "butternut filesystem resize disk.img 2G",
                "The image file changes its size with the volume.",
            ),
            (
                "btrfs filesystem defragment -r /mnt/home",
                "butternut filesystem defragment -r disk.img home",
                "Shared extents are left alone unless --break-sharing is given.",
            ),
            (
                "btrfs filesystem mkswapfile /mnt/swap",
                "butternut filesystem mkswapfile disk.img swap",
                "",
            ),
            ("fsverity enable /mnt/file", "butternut verity enable disk.img file", ""),
            ("fsverity measure /mnt/file", "butternut verity measure disk.img file", ""),
            ("btrfs quota enable /mnt", "butternut quota enable disk.img", ""),
            ("btrfs qgroup show /mnt", "butternut qgroup show disk.img", ""),
            ("btrfs qgroup limit 1g 0/256 /mnt", "butternut qgroup limit 1G 0/256 disk.img", ""),
            (
                "btrfs restore disk.img dir",
                "butternut export disk.img / dir",
                "Metadata is kept, and damaged files are reported.",
            ),
            (
                "btrfs inspect-internal dump-super disk.img",
                "butternut inspect dump-super disk.img",
                "The output is the same.",
            ),
            (
                "btrfs inspect-internal dump-tree disk.img",
                "butternut inspect dump-tree disk.img",
                "The output is the same.",
            ),
            (
                "btrfs inspect-internal inode-resolve 257 /mnt",
                "butternut inspect inode-resolve 257 disk.img",
                "",
            ),
            (
                "btrfs inspect-internal logical-resolve 13631488 /mnt",
                "butternut inspect logical-resolve 13631488 disk.img",
                "",
            ),
            ("fstrim /mnt", "butternut trim disk.img", ""),
        ],
    },
    Program {
        title: "FROM GUESTMOUNT",
        about: "Programs of libguestfs start a small virtual machine, whose kernel opens the \
                image. Butternut opens it in its own process.",
        verbs: &[
            ("virt-filesystems -l -a disk.img", "butternut partitions disk.img", ""),
            (
                "guestmount -a disk.img -m /dev/sda2 --ro mnt",
                "butternut mount -o ro disk.img?partition=2 mnt",
                "",
            ),
            (
                "guestmount -a disk.img -m /dev/sda --ro mnt",
                "butternut mount -o ro disk.img mnt",
                "",
            ),
            (
                "guestunmount mnt",
                "butternut umount mnt",
                "No pause is needed before the image is used again.",
            ),
            ("virt-ls -l -a disk.img /etc", "butternut ls -l disk.img etc", ""),
            ("virt-cat -a disk.img /etc/fstab", "butternut cat disk.img etc/fstab", ""),
            ("virt-copy-out -a disk.img /home dir", "butternut export disk.img home dir/home", ""),
            ("virt-copy-in -a disk.img site /srv", "butternut import disk.img site srv", ""),
            ("virt-df -a disk.img", "butternut filesystem usage disk.img", ""),
        ],
    },
    Program {
        title: "FROM MTOOLS",
        about: "Where mtools has a drive letter, the volume is named.",
        verbs: &[
            ("mformat -C -i disk.img ::", "butternut mkfs --size 1G disk.img", ""),
            ("mpartition -p c:", "butternut partitions disk.img", ""),
            ("mdir -i disk.img ::/etc", "butternut ls -l disk.img etc", ""),
            ("mtype -i disk.img ::/etc/fstab", "butternut cat disk.img etc/fstab", ""),
            ("mcopy -i disk.img file ::/srv", "butternut import disk.img file srv", ""),
            ("mcopy -s -i disk.img ::/home dir", "butternut export disk.img home dir/home", ""),
            ("mcopy -i disk.img - ::/file", "butternut write disk.img file", "Standard input."),
            ("mmd -i disk.img ::/srv", "butternut mkdir disk.img srv", ""),
            ("mmove -i disk.img ::/a ::/b", "butternut mv disk.img a b", "mren, too."),
            ("mdel -i disk.img ::/file", "butternut rm disk.img file", ""),
            ("mdeltree -i disk.img ::/srv", "butternut rm -r disk.img srv", "mrd, too."),
            (
                "mattrib -i disk.img ::/file",
                "butternut stat disk.img file",
                "chmod and setfattr change attributes.",
            ),
            ("mdu -i disk.img ::/srv", "butternut filesystem du disk.img srv", ""),
            ("mlabel -i disk.img ::DATA", "butternut filesystem label disk.img DATA", ""),
        ],
    },
    Program {
        title: "FROM DEBUGFS",
        about: "Each request of debugfs(8) is a command. A deleted file cannot be brought back: \
                snapshots are what keeps old contents.",
        verbs: &[
            ("ls -l /etc", "butternut ls -l disk.img etc", ""),
            ("cat /etc/fstab", "butternut cat disk.img etc/fstab", ""),
            ("stat /etc/fstab", "butternut stat disk.img etc/fstab", ""),
            ("dump /etc/fstab file", "butternut export disk.img etc/fstab file", ""),
            ("rdump /home dir", "butternut export disk.img home dir/home", ""),
            ("write file /file", "butternut import disk.img file /file", ""),
            ("rm /file", "butternut rm disk.img file", ""),
            ("mkdir /srv", "butternut mkdir disk.img srv", "rmdir is rm."),
            ("ln /file /other", "butternut ln disk.img file other", ""),
            ("symlink /link file", "butternut ln -s disk.img file link", ""),
            (
                "set_inode_field /file mode 0100600",
                "butternut chmod disk.img 600 file",
                "chown and touch change the other fields.",
            ),
            ("ea_list /file", "butternut getfattr disk.img file", ""),
            ("ea_set /file user.a b", "butternut setfattr -n user.a -v b disk.img file", ""),
            ("ncheck 257", "butternut inspect inode-resolve 257 disk.img", ""),
            (
                "icheck and ncheck of a block",
                "butternut inspect logical-resolve 13631488 disk.img",
                "The number is a logical address in bytes.",
            ),
            ("show_super_stats", "butternut inspect dump-super disk.img", ""),
            ("dump_extents /file", "butternut stat disk.img file", "With --json, each extent."),
        ],
    },
];

/// Returns the page.
pub(super) fn page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(".TH butternut 7 \"\" \"butternut {version}\"\n");
    page.push_str(".SH NAME\nbutternut \\- btrfs in user space: an overview of the commands\n");
    section(&mut page, "DESCRIPTION", ABOUT);
    section(&mut page, "VOLUMES", VOLUMES);
    for Program { title, about, verbs } in &PROGRAMS {
        section(&mut page, title, about);
        for (theirs, ours, note) in *verbs {
            page.push_str(".TP\n.B ");
            push_line(&mut page, theirs);
            push_line(&mut page, ours);
            if !note.is_empty() {
                page.push_str(".br\n");
                push_line(&mut page, note);
            }
        }
    }
    section(&mut page, "SEE ALSO", SEE_ALSO);
    page
}

const SEE_ALSO: &str = "butternut(1), butternut-mount(1), butternut-mkfs(1), btrfs(5), btrfs(8)";

fn section(page: &mut String, title: &str, text: &str) {
    writeln!(page, ".SH {title}").expect("a string accepts every byte");
    for line in text.lines() {
        push_line(page, line);
    }
}

fn push_line(page: &mut String, line: &str) {
    page.push_str(&escaped(line));
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn every_command_of_the_page_exists() {
        for (_, ours, _) in PROGRAMS.iter().flat_map(|program| program.verbs) {
            let words = ours.split(' ');
            assert_eq!(words.clone().next(), Some("butternut"));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{ours}: {error}"));
        }
    }
}

//! The EXAMPLES of the man pages, run as they stand there: the commands of one page in order, in a
//! directory with the files that the pages name.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::command::{CommandOutput, butternut, in_mount_namespace, shell};
use super::image::kernel_tests_enabled;

/// The files of the pages: a volume with snapshots, a directory, a disk with two partitions, and a
/// volume of which a device is missing.
const FILES: &str = r"
    mkdir -p tree/etc tree/home/old tree/var/log site mnt
    echo 'UUID=5 / btrfs' > tree/etc/fstab; seq 20000 > tree/var/log/messages
    echo '<p>old' > tree/home/old/index.html; echo '<p>new' > site/index.html
    butternut mkfs -q --size 600M --rootdir tree disk.img
    butternut subvolume snapshot -r disk.img / /snap1 > out
    echo more | butternut write disk.img more
    butternut subvolume snapshot -r disk.img / /snap2 > out
    truncate -s 700M vm.raw
    printf 'label: gpt\nsize=256M\nsize=+\n' | sfdisk --quiet vm.raw
    butternut mkfs -q --rootdir tree 'vm.raw?partition=2'
    butternut subvolume snapshot -r 'vm.raw?partition=2' / /snap1 > out
    truncate -s 300M a.img b.img; mkfs.btrfs -q -d raid1 -m raid1 a.img b.img
    rm -r b.img out tree";

/// Returns the command lines of the examples of a page.
fn examples(page: &str) -> Vec<String> {
    let Some((_, section)) = page.split_once(".SH EXAMPLES\n") else { return Vec::new() };
    let section = section.split("\n.SH ").next().unwrap();
    let blocks = section.split(".RS 4\n").skip(1).map(|block| block.split("\n.RE").next().unwrap());
    let unescaped = |block: &str| block.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\");
    blocks.map(unescaped).collect()
}

#[test]
fn the_examples_of_the_man_pages_succeed() {
    if !kernel_tests_enabled("the_examples_of_the_man_pages_succeed") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_butternut")).parent().unwrap().display();
    let path = format!("PATH={program}:$PATH; export PATH");
    let (files, pages) = (dir.path().join("files"), dir.path().join("pages"));
    shell(&format!("{path}; mkdir {0}; cd {0}; {FILES}", files.display()));
    butternut(&["man", pages.to_str().unwrap()]).ok();
    let mut run = 0;
    for entry in fs::read_dir(&pages).unwrap() {
        let page = entry.unwrap().path();
        let examples = examples(&fs::read_to_string(&page).unwrap());
        if examples.is_empty() {
            continue;
        }
        run += examples.len();
        let scratch = dir.path().join("scratch");
        let script = in_mount_namespace(&format!(
            "{path}; rm -rf {0}; cp -r --sparse=always {1} {0}; cd {0}
             trap 'umount -l {0}/mnt 2> /dev/null || true' EXIT
             {2}",
            scratch.display(),
            files.display(),
            examples.join("\n")
        ));
        let output = Command::new("sh").args(["-ec", &script]).output().unwrap();
        let output = CommandOutput::from(output);
        assert_eq!(output.code, Some(0), "{}: {examples:#?}\n{}", page.display(), output.err);
    }
    assert!(run > 30, "{run}");
}

//! A mount reports reads that another mirror rescued.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use super::command::{butternut, command, shell};
use super::image::kernel_tests_enabled;

/// One copy of each of many files is corrupt. Reading them is reported, with a path.
#[test]
fn a_mount_reports_rescued_reads() {
    if !kernel_tests_enabled("a_mount_reports_rescued_reads") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = scratch.path().display();
    shell(&format!(
        "cd {dir}; truncate -s 512M a b; mkdir kernel mnt
         a=$(losetup --find --show a); b=$(losetup --find --show b)
         trap 'cd /; umount {dir}/kernel; losetup --detach $a; losetup --detach $b' EXIT
         mkfs.btrfs -q -d raid1 -m raid1 $a $b; mount -o device=$a,device=$b $a kernel
         mkdir kernel/dir
         for n in $(seq 32); do yes \"rotten text\" | head -c 20480 > kernel/dir/file$n; done
         sync --file-system kernel"
    ));
    let image = scratch.path().join("a");
    let bytes = fs::read(&image).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    let mut rotten = 0;
    for (at, sector) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
        if sector.windows(11).any(|text| text == b"rotten text") {
            file.write_all_at(b"another text", at + 100).unwrap();
            rotten += 1;
        }
    }
    assert!(rotten >= 32 * 5, "{rotten}");
    let volume = format!("{dir}/a,{dir}/b");
    let mountpoint = scratch.path().join("mnt");
    let mut mount = command()
        .args(["mount", "--foreground", "-o", "ro", &volume, mountpoint.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(mount.stderr.take().unwrap()).lines();
    let mut until = |text: &str| {
        let mut lines = stderr.by_ref().map(Result::unwrap);
        lines.find(|line| line.contains(text))
    };
    until(": mounted (").expect("it reports that it serves");
    for number in 1..=32 {
        let text = fs::read(mountpoint.join(format!("dir/file{number}"))).unwrap();
        assert!(text.chunks(12).all(|line| b"rotten text\n".starts_with(line)));
    }
    let line = until("bad file data").expect("it reports the corruption");
    assert!(line.contains("warning: device 1") && line.contains("in \"dir/file"), "{line}");
    butternut(&["umount", mountpoint.to_str().unwrap()]).ok();
    mount.wait().unwrap();
}

//! `mkfs -O quota` and `-O squota`: the kernel counts on from the numbers of the new volume, and
//! `btrfs check` counts the same from the extents.

use super::command::{butternut, run, shell};
use super::image::kernel_tests_enabled;

/// Fails unless `btrfs check` and Butternut find what the volume says, for each group.
#[track_caller]
fn check(image: &str, groups: usize) {
    let report = run("btrfs", &["check", "--qgroup-report", image].map(AsRef::as_ref));
    // The kernel does not count compressed sizes.
    let counts = |prefix: &str| {
        let lines = report.lines().filter_map(|line| line.trim().strip_prefix(prefix));
        let number = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
        lines.map(number).collect::<Vec<_>>()
    };
    assert_eq!(counts("our:"), counts("disk:"), "{report}");
    assert_eq!(counts("our:").len(), groups * 2, "{report}");
    butternut(&["check", image]).ok();
}

/// What the only group of a new volume has.
fn usage(image: &str) -> Vec<String> {
    let shown = butternut(&["qgroup", "show", "--raw", "-re", image]).ok();
    let row = shown.lines().find(|line| line.starts_with("0/5 ")).unwrap().to_owned();
    row.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_new_volume_has_quotas() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (image, dir) = (path("volume.img"), path("dir"));
    shell(&format!("mkdir {dir}; head -c 300000 /dev/urandom > {dir}/file"));
    for (word, mode) in [("quota", "full"), ("squota", "simple")] {
        for more in ["--nodesize 16K", "--nodesize 4K -O bgt", "--mixed", "-O ^no-holes,^fst"] {
            let mut words = vec!["mkfs", "-q", "-f", "--size", "200M", "-O", word];
            words.extend(more.split(' '));
            butternut(&[&words[..], &[&image]].concat()).ok();
            check(&image, 1);
            let status = butternut(&["quota", "status", &image]).ok();
            let want = format!(
                "Enabled:      yes\nMode:         {mode}\nInconsistent: no\nGroups:       1\n"
            );
            assert_eq!(status, want, "{word} {more}");
            let node = if more.ends_with("16K") || more.contains('^') { "16384" } else { "4096" };
            let path = "<toplevel>";
            assert_eq!(usage(&image), ["0/5", node, node, "none", "none", path], "{word} {more}");
        }
        let words = ["mkfs", "-q", "-f", "-O", word, "--rootdir", &dir, "--shrink", &image];
        butternut(&words).ok();
        check(&image, 1);
        let used: u64 = usage(&image)[1].parse().unwrap();
        assert!((300_000..400_000).contains(&used), "{word}: {used}");
    }
    let refused = butternut(&["mkfs", "-f", "-O", "quota,squota", &image]).failure();
    let want = "quota and squota exclude each other (remove one of them from --features)";
    assert_eq!(refused, format!("butternut: {image}: {want}"));
}

const KERNEL: &str = r"
    mount -o loop IMG DIR; trap 'cd /; umount DIR 2>/dev/null || true' EXIT
    btrfs qgroup show --raw DIR > DIR.first
    btrfs -q subvolume create DIR/sub; head -c 3M /dev/urandom > DIR/sub/file
    cp --reflink=always DIR/sub/file DIR/shared; head -c 100000 /dev/urandom > DIR/own
    btrfs -q subvolume snapshot DIR/sub DIR/snap; rm DIR/sub/file
    btrfs qgroup limit 5M 0/256 DIR; sync -f DIR
    (head -c 6M /dev/urandom > DIR/sub/more) 2> DIR.refused || true
    umount DIR; cat DIR.first DIR.refused";

#[test]
fn the_kernel_counts_on_from_the_quotas_of_a_new_volume() {
    if !kernel_tests_enabled("the_kernel_counts_on_from_the_quotas_of_a_new_volume") {
        return;
    }
    let scratch = super::volumes_mounted::Scratch::new("256M");
    let (image, at) = (&scratch.image(), &scratch.at());
    for word in ["quota", "squota"] {
        butternut(&["mkfs", "-q", "-f", "--size", "256M", "-O", word, image]).ok();
        let printed = shell(&KERNEL.replace("IMG", image).replace("DIR", at));
        assert!(printed.contains("16384"), "{word}: {printed}");
        assert!(printed.contains("Disk quota exceeded"), "{word}: {printed}");
        check(image, 3);
        // Butternut counts on from what the kernel has written.
        butternut(&["rm", image, "/own"]).ok();
        check(image, 3);
        let status = butternut(&["quota", "status", image]).ok();
        assert!(status.contains("Inconsistent: no"), "{word}: {status}");
    }
}

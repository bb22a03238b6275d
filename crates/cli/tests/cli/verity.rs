//! `verity`, offline and on mounts, beside the program `fsverity` of Debian's package of that name:
//! it computes digests and trees by itself, and seals and measures by the calls of the kernel. The
//! kernel mounts the volumes, also where it is built without fs-verity, and `btrfs check` reads all
//! data.

use super::command::{butternut, shell};
use super::image::kernel_tests_enabled;
use super::volumes_mounted::{Scratch, expect_lines};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn a_file_of_an_unmounted_volume_is_sealed() {
    if !kernel_tests_enabled("a_file_of_an_unmounted_volume_is_sealed") {
        return;
    }
    let scratch = Scratch::new("256M");
    let (image, content) = (scratch.image(), scratch.text("content"));
    shell(&format!("seq 1 200000 >{content}"));
    butternut(&["import", &image, &content, "/file"]).ok();
    butternut(&["import", &image, &content, "/salted"]).ok();
    butternut(&["import", &image, &content, "/plain"]).ok();
    let verity = |words: &[&str]| butternut(&[&["verity"], words].concat());
    let measure = |path| verity(&["measure", &image, path]);
    let err = measure("/file").failure();
    assert!(err.contains("not sealed"), "{err}");
    verity(&["enable", &image, "/file"]).ok();
    let salted = ["enable", "--hash-alg=sha512", "--block-size=1K", "--salt=0badcafe"];
    verity(&[&salted[..], &[&image, "/salted"]].concat()).ok();
    for (path, options) in
        [("/file", ""), ("/salted", "--hash-alg=sha512 --block-size=1024 --salt=0badcafe")]
    {
        let digest = format!("fsverity digest --compact {options} {content}");
        let parts = ("--out-merkle-tree", "--out-descriptor");
        let (tree, descriptor) = (scratch.text("tree"), scratch.text("descriptor"));
        let digest = shell(&format!("{digest} {}={tree} {}={descriptor}", parts.0, parts.1));
        let printed = measure(path).ok();
        assert!(printed.ends_with(&format!(":{} {path}\n", digest.trim())), "{printed}");
        for (kind, file) in [("merkle-tree", &tree), ("descriptor", &descriptor)] {
            let printed = verity(&["metadata", "--type", kind, &image, path]);
            assert!(printed.bytes == fs::read(file).unwrap(), "{path} {kind}");
        }
    }
    let json = verity(&["measure", "--json", &image, "/file", "/plain"]);
    assert_eq!(json.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["files"][0]["hash"], "sha256");
    assert_eq!(json["files"].as_array().unwrap().len(), 1);
    let err = verity(&["enable", &image, "/file"]).failure();
    assert!(err.ends_with("/file: the file is sealed already"), "{err}");
    let err = verity(&["metadata", "--type", "signature", &image, "/file"]).failure();
    assert!(err.ends_with("/file: the file has no signature"), "{err}");
    let err = verity(&["enable", "--salt=xy", &image, "/plain"]).usage();
    assert!(err.contains("hexadecimal"), "{err}");
    let err = butternut(&["truncate", "--size", "5", &image, "/file"]).failure();
    assert!(err.contains("sealed by fs-verity"), "{err}");
    butternut(&["check", "--check-data-csum", &image]).ok();
    scratch.check();
    // The kernel mounts it. Without CONFIG_FS_VERITY it does not open the file.
    let said = shell(&format!(
        "at={}; mount -o loop,ro {image} $at; cat $at/plain | cmp - {content} && echo same
         if zcat /proc/config.gz | grep -q ^CONFIG_FS_VERITY=y; then cmp $at/file {content}
         else cat $at/file 2>&1 | grep -c 'not supported'; fi; umount $at",
        scratch.at()
    ));
    assert!(said.starts_with("same\n"), "{said}");
    butternut(&["rm", &image, "/file", "/salted"]).ok();
    butternut(&["check", "--check-data-csum", &image]).ok();
    scratch.check();
}

/// What programs do on a mount.
const ON_MOUNT: &str = r#"
seq 1 300000 > file; cp file copy; cp file mapped
D=$(fsverity digest --compact file)
try fsverity measure file
exec 3>>file; try fsverity enable file; exec 3>&-
try fsverity enable file
fsverity measure file | grep -q "sha256:$D " && echo measured
try $B verity measure file | sed 's/sha256:[0-9a-f]*/DIGEST/g'
try fsverity enable file
cmp file copy && dd if=file iflag=direct bs=64k status=none | cmp - copy && echo same
try dd if=copy of=file conv=notrunc status=none
try truncate -s 5 file
try fallocate -p -l 4096 file
try chmod 600 file
try mv file moved
lsattr moved | cut -d ' ' -f 1 | grep -c V
stat --printf='%s\n' moved
printf signature > "$T/sig"
seq 1 9000 > salted
try fsverity enable --hash-alg=sha512 --salt=00112233 --block-size=1024 --signature=$T/sig salted
D=$(fsverity digest --compact --hash-alg=sha512 --salt=00112233 --block-size=1024 salted)
fsverity measure salted | grep -q "sha512:$D " && echo measured
$B verity metadata --type signature salted; echo
fsverity digest --hash-alg=sha512 --salt=00112233 --block-size=1024 --out-merkle-tree=$T/tree \
    salted > /dev/null
$B verity metadata salted | cmp - "$T/tree" && echo tree
try $B verity enable copy
try $B verity metadata --type signature copy
try $B verity metadata --type signature mapped
cmp copy moved && echo same
mkdir dir; try fsverity enable dir
python3 - <<'END'
import fcntl, mmap, os, struct
def enable(file, **changed):
    fields = dict(version=1, hash=1, block=4096, salt=0, sig=0, reserved=0)
    fields.update(changed)
    f = fields
    argument = struct.pack("=IIIIQIIQ", f["version"], f["hash"], f["block"], f["salt"], 0,
                           f["sig"], f["reserved"], 0) + bytes(88)
    try:
        fcntl.ioctl(file, 0x40806685, argument)
        return 0
    except OSError as error:
        return error.errno
file = os.open("mapped", os.O_RDWR)
map = mmap.mmap(file, 4096)
map[5] = 65
os.close(file)
file = os.open("mapped", os.O_RDONLY)
print("while mapped", enable(file))
map.close()
for bad in [dict(version=2), dict(hash=3), dict(block=512), dict(block=8192), dict(reserved=1)]:
    print(*bad, enable(file, **bad))
both = os.open("mapped", os.O_RDWR)
print("both", enable(both))
os.close(both)
print("sealed", enable(file), enable(file))
print(os.pread(file, 8, 0))
try:
    os.open("mapped", os.O_WRONLY)
except OSError as error:
    print("open", error.errno)
END
"#;

fn on_a_mount(options: &str) {
    let scratch = Scratch::new("512M");
    scratch.mount(options);
    let said = scratch.script(ON_MOUNT);
    scratch.umount();
    expect_lines(
        &said,
        &[
            "fsverity measure file: 1",
            "fsverity enable file: 1 ERROR: FS_IOC_ENABLE_VERITY failed on 'file': Text file busy",
            "fsverity enable file: 0",
            "measured",
            "butternut verity measure file: 0 DIGEST file",
            "fsverity enable file: 1 ERROR: FS_IOC_ENABLE_VERITY failed on 'file': File exists",
            "same",
            "dd if=copy of=file conv=notrunc status=none: 1",
            "truncate -s 5 file: 1",
            "fallocate -p -l 4096 file: 1",
            "chmod 600 file: 0",
            "mv file moved: 0",
            "1",
            "1988895",
            "fsverity enable --hash-alg=sha512",
            "measured",
            "signature",
            "tree",
            "butternut verity enable copy: 0",
            "butternut verity metadata --type signature copy: 1 butternut: copy: the file has no \
             sig",
            "butternut verity metadata --type signature mapped: 1 butternut: mapped: the file is \
             not",
            "same",
            "fsverity enable dir: 1 ERROR: FS_IOC_ENABLE_VERITY failed on 'dir': Is a directory",
            "while mapped 26",
            "version 22",
            "hash 22",
            "block 22",
            "block 22",
            "reserved 22",
            "both 26",
            "sealed 0 17",
            "b'1\\n2\\n3A4\\n'",
            "open 1",
        ],
    );
    butternut(&["check", "--check-data-csum", &scratch.image()]).ok();
    scratch.check();
}

#[test]
fn programs_seal_and_measure_on_a_mount() {
    if !kernel_tests_enabled("programs_seal_and_measure_on_a_mount") {
        return;
    }
    on_a_mount("commit=3600");
}

#[test]
fn programs_seal_and_measure_on_a_mount_with_writeback() {
    if !kernel_tests_enabled("programs_seal_and_measure_on_a_mount_with_writeback") {
        return;
    }
    on_a_mount("writeback");
}

/// Seals of sparse files of 4 EiB, which would take years, keep no other user from a seal. The
/// threads that hash have `nice` 19, field 19 of their `stat`.
#[test]
fn long_seals_of_users_do_not_delay_that_of_another() {
    if !kernel_tests_enabled("long_seals_of_users_do_not_delay_that_of_another") {
        return;
    }
    let scratch = Scratch::new("512M");
    scratch.mount("allow_other,commit=3600");
    let said = scratch.script(
        "chmod 777 .
         as() { local id=$1; shift; exec setpriv --reuid=$id --regid=$id --clear-groups \"$@\"; }
         for id in 2001 2002 2003; do for n in 1 2 3; do
             truncate -s 4E $id.$n; chown $id $id.$n
             (as $id fsverity enable $id.$n 2>/dev/null) & P=\"$P $!\"
         done; done
         until [ $(cat /proc/*/comm 2>/dev/null | grep -c '^fsverity') -ge 9 ]; do sleep .1; done
         priorities() { cat /proc/[0-9]*/task/*/stat 2>/dev/null | grep '(butternut-seal)' |
             cut -d ' ' -f 19 | sort -u | tr '\\n' ' '; }
         for n in $(seq 600); do [ \"$(priorities)\" = '19 ' ] && break; sleep .1; done
         priorities; echo
         printf 12 >small; chown 3000 small
         timeout 60 setpriv --reuid=3000 --regid=3000 --clear-groups fsverity enable small
         echo $?; fsverity measure small | grep -c sha256
         kill -9 $P; wait 2>/dev/null; lsattr 2001.1 | cut -d ' ' -f 1 | grep -c V",
    );
    expect_lines(&said, &["19 ", "0", "1", "0"]);
    scratch.umount();
    scratch.check();
}

/// Data that was changed below the volume, with a valid checksum, is not returned: the file has
/// none.
#[test]
fn a_block_that_disagrees_is_an_error_on_a_mount() {
    if !kernel_tests_enabled("a_block_that_disagrees_is_an_error_on_a_mount") {
        return;
    }
    let scratch = Scratch::new("256M");
    scratch.mount("commit=3600");
    scratch.script(
        "touch file; chattr +C file; seq 1 200000 >> file; cp file copy; fsverity enable file",
    );
    scratch.umount();
    let image = scratch.image();
    // The fourth block begins with these bytes, and both files have them.
    let block = fs::read(scratch.path("volume.img")).unwrap();
    let wanted = b"\n3000\n3001\n3002\n";
    let places = block.windows(wanted.len()).enumerate().filter(|(_, bytes)| bytes == wanted);
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert_eq!(places.len(), 2);
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    let at = places.iter().min().unwrap();
    file.write_all_at(b"\n3000\n3001\n3003\n", *at as u64).unwrap();
    for options in ["ro", "uncached", "writeback"] {
        scratch.mount(options);
        let said = scratch.script(
            "cat file > /dev/null; echo $?; cp file $T/whole; echo $?
             dd if=file bs=4096 count=3 status=none | cmp -n 12288 - copy && echo good
             dd if=file bs=4096 skip=5 iflag=direct status=none | cmp - <(tail -c +20481 copy) \
                 && echo good
             python3 -c 'import mmap, os
f = os.open(\"file\", os.O_RDONLY); m = mmap.mmap(f, 0, prot=mmap.PROT_READ); print(m[0:2])
print(m[len(m) - 2:])
if os.fork() == 0:
    m[3 * 4096]
print(os.WTERMSIG(os.wait()[1]))'
             $B stats $M | grep verity_errors | grep -vc ' 0$'",
        );
        let good = ["cat: ", "1", "cp: ", "1", "good", "good", "b'1\\n'", "b'0\\n'", "7", "1"];
        expect_lines(&said, &good);
        scratch.umount();
    }
    let checked = butternut(&["check", "--check-data-csum", &image]);
    assert_eq!(checked.code, Some(4));
    assert!(checked.out.contains("sealed data at 12288"), "{}", checked.out);
    let out = butternut(&["cat", &image, "/file"]);
    assert_eq!(out.code, Some(1));
    assert!(!out.out.contains("3003\n"), "bytes that do not agree are never printed");
}

/// The kernel and the engine have the pages of the file from before the seal, and the medium has
/// other bytes since. A check of the mounted volume finds them, too.
#[test]
fn pages_of_a_mount_from_before_the_seal_are_not_served() {
    if !kernel_tests_enabled("pages_of_a_mount_from_before_the_seal_are_not_served") {
        return;
    }
    for options in ["commit=3600", "writeback"] {
        let scratch = Scratch::new("256M");
        scratch.mount(options);
        let said = scratch.script(
            "touch file; chattr +C file; seq 1 200000 >> file; sync .; cat file > $T/before
             cp file $T/copy; fsverity enable file; sync .; echo $?",
        );
        expect_lines(&said, &["0"]);
        let image = fs::read(scratch.path("volume.img")).unwrap();
        let wanted = b"\n3000\n3001\n3002\n";
        let at = image.windows(wanted.len()).position(|bytes| bytes == wanted).unwrap();
        drop(image);
        let file = fs::OpenOptions::new().write(true).open(scratch.image()).unwrap();
        file.write_all_at(b"\n3000\n3001\n3003\n", at as u64).unwrap();
        file.sync_all().unwrap();
        let said = scratch.script(
            "dd if=file bs=4096 skip=3 count=1 status=none | wc -c
             dd if=file bs=4096 count=3 status=none | cmp -n 12288 - $T/before && echo good
             dd if=file bs=4096 skip=4 status=none | cmp - <(tail -c +16385 $T/before) && echo good
             $B check --online . > /dev/null; echo $?
             $B check --online --check-data-csum . > $T/report; echo $?
             grep -c 'sealed data at 12288' $T/report
             rm file; $B check --online --check-data-csum . > /dev/null; echo $?",
        );
        expect_lines(&said, &["dd: error reading", "0", "good", "good", "0", "4", "1", "0"]);
        scratch.umount();
    }
}

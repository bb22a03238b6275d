//! `make install` and `make deb`: what they install is listed in `tests/installed.txt` and
//! `tests/package.txt`. The shells complete with the installed scripts, man(1) finds the pages, and
//! mount(8) finds the helpers: in a mount namespace of its own, because it searches /sbin only.
//!
//! The programs are that of the test, and echo(1) in the place of butternut-lab.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::command::{CommandOutput, in_mount_namespace, shell};
use super::image::{kernel_tests_enabled, plain};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A directory with the programs to install.
fn programs() -> TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (program, lab) = (dir.path().join("butternut"), dir.path().join("butternut-lab"));
    fs::copy(env!("CARGO_BIN_EXE_butternut"), program).unwrap();
    fs::copy("/bin/echo", lab).unwrap();
    dir
}

/// Runs make in the repository, which must succeed.
fn make(words: &[&str], binaries: &Path) -> String {
    let mut make = Command::new("make");
    make.current_dir(repository()).args(["--silent", "--no-print-directory"]).args(words);
    for variable in ["PREFIX", "DESTDIR", "HELPERDIR", "ZSHDIR", "MAKEFLAGS", "MAKELEVEL"] {
        make.env_remove(variable);
    }
    let ran = CommandOutput::from(make.env("BINARIES", binaries).output().unwrap());
    assert_eq!(ran.code, Some(0), "make {words:?}: {}{}", ran.out, ran.err);
    ran.out
}

/// Compares a list with the one that is kept in `tests`.
fn compare(name: &str, listed: &str) {
    let kept = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name));
    assert_eq!(listed, kept.unwrap_or_default(), "tests/{name} is old, or the list is wrong");
}

/// Everything that `make install` makes below a directory.
struct Installed {
    root: TempDir,
}

impl Installed {
    fn new() -> Self {
        let (root, programs) = (tempfile::tempdir_in("/var/tmp").unwrap(), programs());
        let destdir = format!("DESTDIR={}", root.path().display());
        make(&["install", "PREFIX=/usr", &destdir], programs.path());
        Self { root }
    }

    fn share(&self, path: &str) -> String {
        self.root.path().join("usr/share").join(path).display().to_string()
    }

    fn path_variable(&self) -> String {
        format!("PATH={}/usr/bin:$PATH", self.root.path().display())
    }
}

#[test]
fn make_install_installs_what_is_listed_and_uninstall_removes_it() {
    let installed = Installed::new();
    let root = installed.root.path().display();
    let list =
        format!("cd {root}; find . ! -type d -printf '%M %P %l\\n' | sed 's/ $//' | sort -k 2");
    compare("installed.txt", &shell(&list));
    let programs = programs();
    make(&["uninstall", "PREFIX=/usr", &format!("DESTDIR={root}")], programs.path());
    assert_eq!(shell(&list), "");

    let mut relative = Command::new("make");
    relative.current_dir(repository()).args(["--silent", "install", "PREFIX=usr"]);
    let refused = CommandOutput::from(relative.env("BINARIES", programs.path()).output().unwrap());
    assert!(refused.err.contains("usr is not an absolute path"), "{}", refused.err);
}

#[test]
fn the_pages_are_found_by_man_and_lab_beside_the_program() {
    let installed = Installed::new();
    let path = installed.path_variable();
    let manpath = installed.share("man");
    let page = shell(&format!("MANPAGER=cat MANWIDTH=90 man -M {manpath} butternut-mkfs"));
    assert!(page.contains("Create a volume, empty or filled from a directory"), "{page}");
    assert_eq!(shell(&format!("{path}; butternut lab list")), "list\n");
}

#[test]
fn shells_complete_commands_options_and_values() {
    let installed = Installed::new();
    let path = installed.path_variable();
    let bash = installed.share("bash-completion/completions/butternut");
    let (zsh, fish) = (
        installed.share("zsh/site-functions"),
        installed.share("fish/vendor_completions.d/butternut.fish"),
    );
    let in_bash = |words: &[&str]| {
        let typed = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let (at, line) = (words.len() - 1, words.join(" "));
        let script = format!(
            "bash -c '{path}; . {bash}; COMP_WORDS=({}); COMP_CWORD={at}; COMP_LINE=\"{line}\"
             _butternut butternut \"{}\" \"{}\" 2> /dev/null
             printf \"%s\\n\" \"${{COMPREPLY[@]}}\"'",
            typed.replace('\'', "\""),
            words[at],
            words[at - 1],
        );
        shell(&script)
    };
    let in_fish = |words: &[&str]| {
        let line = words.join(" ");
        shell(&format!(
            "HOME=/nonexistent fish --private -c \"source {fish}; complete -C '{line}'\""
        ))
    };
    for (words, wanted) in [
        (&["butternut", "subv"][..], "subvolume"),
        (&["butternut", "subvolume", "s"], "snapshot"),
        (&["butternut", "mkfs", "--cs"], "--csum"),
        (&["butternut", "mkfs", "--csum", ""], "blake2"),
        (&["butternut", "mkfs", "--data", "d"], "dup"),
        (&["butternut", "mkfs", "-O", "^"], "^no-holes"),
        (&["butternut", "mount", "-o", "compress=z"], "compress=zstd"),
        (&["butternut", "filesystem", "defragment", "--compress", ""], "zstd"),
        (&["butternut", "inspect", "dump-tree", "--tree", ""], "extent"),
    ] {
        for (shell, said) in [("bash", in_bash(words)), ("fish", in_fish(words))] {
            let mut offered = said.lines().map(|line| line.split('\t').next().unwrap_or_default());
            assert!(offered.any(|it| it == wanted), "{shell} {words:?}: {said}");
        }
    }
    // zsh completes only on a terminal, so its script is loaded, and its values are looked for.
    shell(&format!(
        "zsh -f -c 'fpath=({zsh} $fpath); autoload -U compinit; compinit -D; whence -w _butternut'"
    ));
    let script = fs::read_to_string(Path::new(&zsh).join("_butternut")).unwrap();
    for wanted in ["crc32c xxhash sha256 blake2", "compress=zstd", "snapshot:", "--rootdir"] {
        assert!(script.contains(wanted), "{wanted}");
    }
}

#[test]
fn the_debian_package_has_what_is_listed() {
    let (programs, out) = (programs(), tempfile::tempdir_in("/var/tmp").unwrap());
    // A package with the program of the test would be compressed for half a minute.
    let program = programs.path().join("butternut");
    fs::write(&program, format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_butternut")))
        .unwrap();
    let package = out.path().join("butternut.deb");
    let mut deb = Command::new("scripts/deb");
    deb.current_dir(repository()).env("BINARIES", programs.path());
    let ran = deb.args(["--fast", "--offline", "--output"]).arg(&package).output();
    let ran = CommandOutput::from(ran.unwrap());
    assert_eq!(ran.code, Some(0), "scripts/deb: {}{}", ran.out, ran.err);
    let package = package.display();
    let listed = shell(&format!(
        "dpkg-deb --contents {package} | awk '$1 !~ /^d/ {{ print $1, $6, $7, $8 }}' |
             sed 's/ *$//' | sort -k 2"
    ));
    compare("package.txt", &listed);
    let field = |name: &str| shell(&format!("dpkg-deb --field {package} {name}")).trim().to_owned();
    assert_eq!((field("Package"), field("Recommends")), ("butternut".into(), "fuse3".into()));
    assert_eq!(field("Version").split('-').next().unwrap(), env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").contains("libc6"), "{}", field("Depends"));
    // The package, extracted, works as an installation does.
    let root = out.path().join("root");
    let image = plain().0.display();
    let shown = shell(&format!(
        "dpkg-deb --extract {package} {0}; {0}/usr/bin/butternut cat {image} hello.txt",
        root.display()
    ));
    assert_eq!(shown, "hello\n");
}

/// The script has the programs installed below `/usr/local`, and their helpers in `/sbin`, both of
/// which are directories of this namespace; `$D` has `a.img` and the directory `m`, and `line
/// OPTIONS` writes the fstab `$D/fstab`.
fn with_helpers(script: &str) -> String {
    let (programs, scratch) = (programs(), tempfile::tempdir_in("/var/tmp").unwrap());
    let (dir, binaries) = (scratch.path().display(), programs.path().display());
    let (image, repository) = (plain().0.display(), repository().display().to_string());
    shell(&in_mount_namespace(&format!(
        r#"
        D={dir}; cd $D; mkdir m up work; cp --sparse=always {image} a.img
        mount -t tmpfs none /usr/local
        mount -t overlay -o lowerdir=/usr/sbin,upperdir=$D/up,workdir=$D/work overlay /usr/sbin
        MAKEFLAGS= BINARIES={binaries} make --silent --no-print-directory -C {repository} install
        line() {{ echo "$D/${{2:-a.img}} $D/m fuse.butternut $1 0 0" > fstab; }}
        ended() {{ flock a.img true; }}
        trap 'umount -l $D/m 2> /dev/null || true' EXIT
        {{
            {script}
        }} | sed "s|$D/|D/|g""#
    )))
}

#[test]
fn a_line_of_fstab_mounts_remounts_and_unmounts_an_installed_butternut() {
    if !kernel_tests_enabled("a_line_of_fstab_mounts_remounts_and_unmounts_an_installed_butternut")
    {
        return;
    }
    let output = with_helpers(
        r#"
        options() { findmnt -n -o FSTYPE,VFS-OPTIONS $D/m | tr -s " "; }
        line rw,allow_other,compress=zstd
        mount -a -T fstab; options; cat m/hello.txt; echo one > m/new
        mount -a -T fstab; echo "again: $?"
        mount -T fstab -o remount,ro $D/m; options; touch m/x 2> /dev/null || echo "read-only"
        mount -T fstab -o remount,rw $D/m; echo two >> m/new
        umount $D/a.img; ended; butternut cat a.img new
        mount -T fstab $D/m; umount $D/m; ended; echo "unmounted $?"
        line dev,suid,nofail; mount -a -T fstab; options; umount $D/a.img; ended
        line nodev,nosuid,noexec,ro,user,noauto,x-systemd.automount
        mount -a -T fstab; ls m | wc -l; mount -T fstab $D/m; options; umount $D/a.img; ended
        line nofail missing.img; mount -a -T fstab; echo "nofail: $?"
        line rw missing.img
        mount -a -T fstab 2> said || echo "fails: $?"; sed "s/ (name.*//" said
        line frob; mount -a -T fstab 2>&1 | sed "s/is not known.*/is not known/" || true
        butternut check -q a.img
        "#,
    );
    let expected = r"fuse.butternut rw,noatime
hello
again: 0
fuse.butternut ro,noatime
read-only
one
two
unmounted 0
fuse.butternut rw,noatime
0
fuse.butternut ro,nosuid,nodev,noexec,noatime
nofail: 0
fails: 32
butternut: D/missing.img: no such file or directory
butternut: option frob: is not known
";
    assert_eq!(output, expected);
}

//! A root tree of the machine and a git repository, sent and received: programs with capabilities
//! and hard links, devices, sparse and compressed files, and a repository that is committed to and
//! repacked between two snapshots. Butternut's streams are received by the kernel, and the kernel's
//! by Butternut; the entries are those of the source, and git finds the repository whole.

use super::command::{butternut, run, shell};
use super::image::kernel_tests_enabled;
use super::kernel_history::describe;
use super::kernel_received::assert_received;
use super::receive::Mounted;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// As a shell script in the root of the kernel's mount: two snapshots, of a tree that changes in
/// between, and their streams.
const SOURCE: &str = r#"
btrfs -q subvolume create w
mkdir -p w/usr/bin w/usr/share/doc w/dev w/var
cp -a /etc w/; cp -a /usr/sbin w/usr/; cp -a /usr/bin/[a-f]* w/usr/bin/
cp -a /usr/share/doc/[a-k]* w/usr/share/doc/
mknod w/dev/null c 1 3; mknod w/dev/loop0 b 7 0; mknod w/dev/far c 300 70000; mkfifo w/dev/fifo
cp /usr/bin/env w/usr/bin/ping; setcap cap_net_raw+ep w/usr/bin/ping; ln w/usr/bin/ping w/ping
truncate -s 200M w/var/sparse
printf middle | dd of=w/var/sparse bs=1 seek=100000000 conv=notrunc status=none
seq 100000 > w/var/log
export GIT_CONFIG_GLOBAL=TOP/gitconfig GIT_CONFIG_NOSYSTEM=1
git config --file "$GIT_CONFIG_GLOBAL" user.name test
git config --file "$GIT_CONFIG_GLOBAL" user.email test@localhost
git config --file "$GIT_CONFIG_GLOBAL" safe.directory '*'
git init -q w/repository; cd w/repository; cp -r "$SOURCES"/* .; git add -A; git commit -qm first
find . -name '*.rs' -exec sed -i '1s/$/ /' {} +; git commit -qam second; git tag two; cd ../..
btrfs -q subvolume snapshot -r w a
cd w/repository; git checkout -q HEAD~1; git commit -q --allow-empty -m third; git gc -q; cd ../..
rm -r w/usr/share/doc/[a-c]*; mv w/etc w/old-etc; cp -a --reflink=always w/usr/sbin w/sbin
chown -R 1000:1000 w/old-etc/apt; mv w/usr/bin/ping w/ping2; setcap cap_net_admin+ep w/ping2
rm w/dev/null; mkdir w/dev/null; seq 100000 200000 >> w/var/log; truncate -s 150M w/var/sparse
chmod -R g+w w/usr/share
find w/usr/bin -type f -name 'c*' -exec touch -d '2001-02-03 04:05:06.7' {} +
btrfs -q subvolume snapshot -r w b
btrfs -q send --proto=2 --compressed-data -f TOP/kernel.a a
btrfs -q send --proto=2 --compressed-data -p a -f TOP/kernel.b b
"#;

/// The kernel's volume, those that receive, and the streams.
struct Volumes(TempDir);

impl Volumes {
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn mounted(&self, name: &str, options: &str) -> Mounted {
        Mounted::new(Path::new(&self.path(name)), options)
    }

    fn make(&self) {
        for name in ["source", "kernels", "from-ours"] {
            let path = self.path(name);
            shell(&format!("truncate -s 2G {path}; mkfs.btrfs -q {path}"));
        }
        butternut(&["mkfs", "--size", "2G", &self.path("ours")]).ok();
        let mount = self.mounted("source", "noatime,compress=zstd");
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../fs/src");
        let script = SOURCE.replace("TOP/", &self.path(""));
        shell(&format!("cd {}; SOURCES={sources}; {script}", mount.path("")));
    }

    fn transfer(&self) {
        for (name, parent) in [("a", &[][..]), ("b", &["-p", "/a"])] {
            let (stream, image) = (self.path(&format!("ours.{name}")), self.path("source"));
            let words = ["send", "-q", "--proto=2", "--compressed-data", "-f", &stream];
            let name = format!("/{name}");
            butternut(&[&words, parent, &[&image, &name]].concat()).ok();
        }
        let (kernels, from_ours) = (self.mounted("kernels", "rw"), self.mounted("from-ours", "rw"));
        for name in ["a", "b"] {
            let stream = |sender: &str| self.path(&format!("{sender}.{name}"));
            butternut(&["receive", "-q", "-f", &stream("kernel"), &self.path("ours")]).ok();
            for (sender, to) in [("kernel", &kernels), ("ours", &from_ours)] {
                let words = ["receive", "-q", "-f", &stream(sender), &to.path("")];
                run("btrfs", &words.map(AsRef::as_ref));
            }
        }
        run("btrfs", &["check", "--check-data-csum", &self.path("ours")].map(AsRef::as_ref));
    }

    fn compare(&self) {
        let mounts =
            ["source", "ours", "kernels", "from-ours"].map(|name| self.mounted(name, "ro"));
        for name in ["a", "b"] {
            let [source, ours, kernels, from_ours] =
                [0, 1, 2, 3].map(|at| PathBuf::from(mounts[at].path(name)));
            assert_received(&source, &ours, &kernels, name == "a");
            let (want, have) = (describe(&source), describe(&from_ours));
            assert!(want.len() > 1000, "{} entries", want.len());
            for (path, want) in &want {
                let have = have.get(path).map_or("missing", String::as_str);
                assert_eq!(have, want, "{}", from_ours.join(path).display());
            }
            assert_eq!(have.len(), want.len(), "{name}: entries are left over");
            for root in [&ours, &from_ours] {
                let repository = root.join("repository");
                shell(&format!(
                    "cd {}; git='git -c safe.directory=*'; $git fsck --full --strict
                     test -z \"$($git status --porcelain)\"; $git show --stat two",
                    repository.display()
                ));
            }
        }
    }
}

#[test]
fn a_root_tree_and_a_git_repository_are_sent_and_received() {
    if !kernel_tests_enabled("a_root_tree_and_a_git_repository_are_sent_and_received") {
        return;
    }
    let volumes = Volumes(tempfile::tempdir_in("/dev/shm").unwrap());
    volumes.make();
    volumes.transfer();
    volumes.compare();
}

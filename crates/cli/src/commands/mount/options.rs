//! The words after `-o`: what each means. An unknown one is refused by name.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use butternut::{BadPacker, Clock, Compress, MountOptions, Packer, Subvolume, Switches};
use butternut_fuse::{Caching, Options};

use super::settled;
use crate::failure::Failure;
use crate::output::size;
use crate::volume_arg::{self, VolumeArg};

/// Listed in the man page and in the message about an unknown option.
pub(crate) const KNOWN: &str = "ro, rw, commit=SECONDS, sync, subvol=PATH, subvolid=N, degraded, \
     compress[=ALGO[:LEVEL]], compress-force[=ALGO[:LEVEL]], allow_other, default_permissions, \
     offset=N, cache=N, page_cache=N, threads=N, all_wait, uncached, parallel_direct, writeback, \
     nologreplay, norecovery, fsname=NAME, dev, suid, exec, and their opposites; remount";

/// Threads that may write file data at once, at most; a larger number means this.
pub(super) const THREADS_MAX: usize = 64;

/// Access times stay as they are, and nothing is written at once unless that is asked for.
const NO_CHANGE: [&str; 14] = [
    "defaults",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "async",
    "silent",
    // Seen before the others ([`super::remount`]).
    "remount",
];

/// What all options together mean.
#[derive(Debug, Default)]
pub(crate) struct Meaning {
    pub(crate) volume: MountOptions,
    pub(crate) fuse: Options,
    pub(crate) threads: Option<usize>,
    /// The switches that are set by a word, in that order.
    pub(crate) switches: Vec<(String, String)>,
    /// The options that a served volume keeps ([`settled`]), each with the last word that gave it.
    pub(crate) settled: Vec<(&'static str, String)>,
    offset: Option<u64>,
}

impl Meaning {
    pub(crate) fn of(lists: &[OsString]) -> Result<Self, Failure> {
        let mut meaning = Self::default();
        // The kernel stamps some changes of the mount itself.
        meaning.volume.clock = Clock::coarse();
        meaning.set_read_only(false);
        for list in lists {
            for word in list.as_bytes().split(|byte| *byte == b',').filter(|w| !w.is_empty()) {
                meaning.take(word)?;
            }
        }
        Ok(meaning)
    }

    pub(super) fn take(&mut self, word: &[u8]) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(word).into_owned();
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        if Switches::is_named(name) && !value.is_empty() {
            let set = self.volume.switches.set_named(name, value);
            self.switches.push((name.to_owned(), value.to_owned()));
            return set.map_err(|error| refused(&text, error.to_string()));
        }
        if let Some(key) = settled::setting_of(name) {
            self.settled.retain(|(known, _)| *known != key);
            self.settled.push((key, text.clone()));
        }
        let number = || size::parse(value).ok_or_else(|| refused(&text, "is not a number"));
        match (name, value.is_empty()) {
            ("subvol", false) => {
                self.volume.subvolume = Subvolume::Path(word["subvol=".len()..].to_vec());
            }
            ("subvolid", false) => self.volume.subvolume = Subvolume::Id(number()?),
            ("offset", false) => self.offset = Some(number()?),
            ("cache", false) => self.volume.node_cache_bytes = number()?,
            ("page_cache", false) => self.volume.page_cache_bytes = number()?,
            ("compress" | "compress-force", _) => {
                let is_forced = name == "compress-force";
                self.volume.compress = compress(value, is_forced)
                    .map_err(|error| refused(&text, error.to_string()))?;
            }
            ("threads", false) => {
                let threads = usize::try_from(number()?).unwrap_or(THREADS_MAX);
                self.threads = Some(threads.clamp(1, THREADS_MAX));
            }
            ("fsname", false) => value.clone_into(&mut self.fuse.source),
            ("commit", false) => {
                let seconds = u32::try_from(number()?).ok().filter(|seconds| *seconds > 0);
                self.volume.commit_seconds =
                    seconds.ok_or_else(|| refused(&text, "is no number of seconds"))?;
            }
            ("ro", true) => self.set_read_only(true),
            ("rw", true) => self.set_read_only(false),
            ("sync", true) => self.fuse.is_synchronous = true,
            ("degraded", true) => self.volume.degraded = true,
            ("nologreplay" | "norecovery", true) => self.volume.ignore_log = true,
            ("allow_other", true) => self.fuse.allow_other = true,
            ("default_permissions", true) => self.fuse.default_permissions = true,
            ("uncached", true) => self.fuse.caching = Caching::Nothing,
            ("writeback" | "noparallel_direct", true) => self.fuse.caching = Caching::WriteBack,
            ("parallel_direct" | "nouncached" | "nowriteback", true) => {
                self.fuse.caching = Caching::WriteThrough;
            }
            ("all_wait", true) => self.fuse.all_wait = true,
            ("noall_wait", true) => self.fuse.all_wait = false,
            ("dev", true) => self.fuse.devices = true,
            ("nodev", true) => self.fuse.devices = false,
            ("suid", true) => self.fuse.set_user_id = true,
            ("nosuid", true) => self.fuse.set_user_id = false,
            ("exec", true) => self.fuse.execute = true,
            ("noexec", true) => self.fuse.execute = false,
            (word, true) if NO_CHANGE.contains(&word) => {}
            _ => {
                let switches: Vec<_> =
                    Switches::default().named().iter().map(|switch| switch.key).collect();
                let known = format!("known: {KNOWN}; switches: {}", switches.join(", "));
                return Err(refused(&text, "is not known").cure(known));
            }
        }
        Ok(())
    }

    /// Of several words the last one counts, as with mount(8).
    pub(super) fn set_read_only(&mut self, read_only: bool) {
        self.volume.read_only = read_only;
        self.fuse.is_writable = !read_only;
    }

    /// Lets the options say what the volume argument left open, and nothing that it did say.
    pub(crate) fn place(&mut self, volume: &mut VolumeArg) -> Result<(), Failure> {
        if let Some(offset) = self.offset {
            let [device] = volume.devices.as_mut_slice() else {
                return Err(refused("offset", "stands for one device")
                    .cure("write ?offset=N after each of several"));
            };
            device.offset = offset;
        }
        match (&volume.subvolume, &self.volume.subvolume) {
            (Subvolume::Default, _) => {}
            (named, Subvolume::Default) => self.volume.subvolume = named.clone(),
            (named, other) if is_same(named, other) => {}
            (named, other) => {
                let (named, other) = (volume_arg::shown(named), volume_arg::shown(other));
                return Err(refused("subvol", format!("names {other}, the volume {named}"))
                    .cure("name one"));
            }
        }
        Ok(())
    }
}

/// Whether two names of subvolumes are one: slashes at the ends or doubled name nothing.
fn is_same(one: &Subvolume, other: &Subvolume) -> bool {
    let parts = |path: &[u8]| -> Vec<Vec<u8>> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.map(<[u8]>::to_vec).collect()
    };
    match (one, other) {
        (Subvolume::Path(one), Subvolume::Path(other)) => parts(one) == parts(other),
        _ => one == other,
    }
}

/// Packing, as the kernel's option of the same name says it: without a value it is zlib.
fn compress(value: &str, is_forced: bool) -> Result<Option<Compress>, BadPacker> {
    Ok(match value {
        "no" | "none" => None,
        "" => Some(Compress { packer: Packer::default(), is_forced }),
        named => Some(Compress { packer: named.parse()?, is_forced }),
    })
}

fn refused(option: &str, why: impl Into<String>) -> Failure {
    Failure::new(format!("option {option}"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &str) -> Result<Meaning, String> {
        Meaning::of(&[list.into()]).map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_mean_what_they_say() {
        let meaning = check("ro,subvol=/a/b,degraded,allow_other,cache=1M,threads=3").unwrap();
        assert_eq!(meaning.volume.subvolume, Subvolume::Path(b"/a/b".to_vec()));
        assert!(meaning.volume.degraded && meaning.fuse.allow_other);
        assert!(meaning.fuse.permissions(), "others are let in only with permissions checked");
        assert_eq!((meaning.volume.node_cache_bytes, meaning.threads), (1 << 20, Some(3)));
        assert_eq!(check("subvolid=257").unwrap().volume.subvolume, Subvolume::Id(257));
    }

    #[test]
    fn a_mount_is_for_writing_unless_the_last_word_is_ro() {
        for (list, read_only) in [("", false), ("ro", true), ("ro,rw", false), ("rw,ro", true)] {
            let meaning = check(list).unwrap();
            assert_eq!(meaning.volume.read_only, read_only, "{list}");
            assert_eq!(meaning.fuse.is_writable, !read_only, "{list}");
        }
        let meaning = check("commit=5,sync,all_wait").unwrap();
        assert_eq!((meaning.volume.commit_seconds, meaning.fuse.is_synchronous), (5, true));
        assert!(meaning.fuse.all_wait);
    }

    #[test]
    fn of_the_words_about_caching_the_last_counts() {
        for (list, caching) in [
            ("", Caching::WriteThrough),
            ("uncached", Caching::Nothing),
            ("uncached,parallel_direct", Caching::WriteThrough),
            ("parallel_direct,uncached,nouncached", Caching::WriteThrough),
            ("uncached,writeback", Caching::WriteBack),
            ("writeback,nowriteback", Caching::WriteThrough),
            ("noparallel_direct", Caching::WriteBack),
        ] {
            assert_eq!(check(list).unwrap().fuse.caching, caching, "{list}");
        }
    }

    #[test]
    fn a_subvolume_may_be_named_twice_and_not_in_two_ways() {
        let place = |word: &str, list: &str| {
            let named = volume_arg::subvolume(word.as_bytes());
            let mut volume =
                VolumeArg { devices: Vec::new(), subvolume: named, typed: String::new() };
            let mut meaning = check(list)?;
            meaning.place(&mut volume).map_err(|failure| failure.to_string())
        };
        for (word, list) in
            [("src", "subvol=/src"), ("/a//b/", "subvol=a/b"), ("257", "subvolid=257")]
        {
            assert_eq!(place(word, list), Ok(()), "{word} {list}");
        }
        for (word, list) in
            [("src", "subvol=/other"), ("257", "subvolid=258"), ("a", "subvolid=257")]
        {
            let said = place(word, list).unwrap_err();
            assert!(said.starts_with("option subvol: names "), "{said}");
        }
    }

    #[test]
    fn unknown_options_are_refused_by_name() {
        for list in ["ro,discard=async", "frob", "degraded=1", "subvol="] {
            let said = check(list).unwrap_err();
            let name = list.strip_prefix("ro,").unwrap_or(list);
            assert!(
                said.starts_with(&format!("option {name}: is not known (known: ro,")),
                "{said}"
            );
        }
        assert_eq!(check("commit=0").unwrap_err(), "option commit=0: is no number of seconds");
        assert_eq!(check("subvolid=x").unwrap_err(), "option subvolid=x: is not a number");
        assert_eq!(
            check("compress=gzip").unwrap_err(),
            "option compress=gzip: is none of no, none, lzo, zlib[:1 to 9], zstd[:-15 to 15]"
        );
    }

    #[test]
    fn the_message_about_an_unknown_option_names_every_option_of_the_help() {
        let said = check("frob").unwrap_err();
        let lines =
            crate::flags::MOUNT_HELP.lines().take_while(|line| !line.starts_with("Without"));
        let options =
            lines.filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
        let mut seen = 0;
        for words in options.filter_map(|line| line.split("  ").next()) {
            for word in words.split(", ") {
                let name = word.split(['=', '[']).next().unwrap();
                assert!(said.contains(&format!(" {name}")), "{name}: {said}");
                seen += 1;
            }
        }
        assert!(seen > 25, "{seen}");
    }

    #[test]
    fn a_number_of_threads_is_what_the_mount_makes_of_it() {
        for (word, threads) in [("threads=100", 64), ("threads=0", 1), ("threads=64", 64)] {
            assert_eq!(check(word).unwrap().threads, Some(threads), "{word}");
        }
    }

    #[test]
    fn switches_are_set_by_the_names_that_ctl_has_for_them() {
        let meaning = check("nosec=off,dio_stable=trust,nosec=on,simple_read=off").unwrap();
        let switches = meaning.volume.switches;
        assert!(switches.nosec && !switches.simple_read);
        assert_eq!(switches.find_named("dio_stable").unwrap().value, "trust");
        assert_eq!(
            check("nosec=yes").unwrap_err(),
            "option nosec=yes: nosec: have \"yes\", want on or off"
        );
        assert!(check("nosec").unwrap_err().starts_with("option nosec: is not known"));
    }

    #[test]
    fn packing_is_named_as_the_kernel_names_it() {
        let packing = |list| {
            check(list)
                .unwrap()
                .volume
                .compress
                .map(|compress| (compress.packer.to_string(), compress.is_forced))
        };
        let is = |name: &str, is_forced| Some((name.to_owned(), is_forced));
        assert_eq!(packing("rw"), None);
        assert_eq!(packing("compress"), is("zlib:3", false));
        assert_eq!(packing("compress=zstd:15"), is("zstd:15", false));
        assert_eq!(packing("compress=lzo"), is("lzo", false));
        assert_eq!(packing("compress-force=zstd"), is("zstd:3", true));
        assert_eq!(packing("compress-force"), is("zlib:3", true));
        assert_eq!(packing("compress=zstd,compress=no"), None);
        assert_eq!(packing("compress-force=zstd,compress=lzo"), is("lzo", false));
    }
}

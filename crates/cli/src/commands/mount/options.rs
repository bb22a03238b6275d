//! Parses the mount options after `-o`. An unknown option is refused by name.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use butternut::{BadCompressor, Clock, Compress, Compressor, MountOptions, Subvolume, Tunables};
use butternut_fuse::{Caching, Options};

use super::fixed_options;
use crate::failure::Failure;
use crate::output::size;
use crate::volume::arg::{self, VolumeArg};

/// The options in the error message about an unknown option. The help lists the same options.
pub(crate) const KNOWN: &str = "ro, rw, commit=SECONDS, sync, subvol=PATH, subvolid=N, degraded, \
     compress[=ALGO[:LEVEL]], compress-force[=ALGO[:LEVEL]], allow_other, default_permissions, \
     user_subvol_rm_allowed, \
     offset=N, cache=N, page_cache=N, pending=N, threads=N, all_wait, blkdev, uncached, \
     parallel_direct, writeback, nologreplay, norecovery, fsname=NAME, dev, suid, exec, and their \
     opposites; remount";

/// Maximum number of threads that write file data at the same time; a larger number is reduced.
pub(super) const THREADS_MAX: usize = 64;

/// Options that are accepted without effect: access times are never updated.
const NO_CHANGE: [&str; 13] = [
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
    "silent",
    // Handled before option parsing ([`super::remount`]).
    "remount",
];

/// The parsed mount options.
#[derive(Debug, Default)]
pub(crate) struct ParsedOptions {
    pub(crate) volume: MountOptions,
    pub(crate) fuse: Options,
    pub(crate) threads: Option<usize>,
    /// Mount the block device itself, with type `fuseblk`.
    pub(crate) blkdev: bool,
    /// The source that mount tables show, instead of the volume.
    pub(crate) fsname: Option<String>,
    /// The tunables that are set, in order.
    pub(crate) tunables: Vec<(String, String)>,
    /// The fixed options ([`fixed_options`]), each with the last option that set it.
    pub(crate) fixed: Vec<(&'static str, String)>,
    /// Whether `rw` is named, and `ro` not after it.
    pub(super) is_writable_named: bool,
    offset: Option<u64>,
}

impl ParsedOptions {
    pub(crate) fn of(lists: &[OsString]) -> Result<Self, Failure> {
        let mut parsed = Self::default();
        // The kernel sets some timestamps itself, from its coarse clock.
        parsed.volume.clock = Clock::coarse();
        // A program can make a thread of a mount wait in the kernel (`NameInvalidations`).
        parsed.volume.registers_devices = false;
        parsed.set_read_only(false);
        for list in lists {
            for option in list.as_bytes().split(|byte| *byte == b',').filter(|w| !w.is_empty()) {
                parsed.apply(option)?;
                if let b"ro" | b"rw" = option {
                    parsed.is_writable_named = option == b"rw";
                }
            }
        }
        Ok(parsed)
    }

    pub(super) fn apply(&mut self, option: &[u8]) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(option).into_owned();
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        if Tunables::is_named(name) && !value.is_empty() {
            let set = self.volume.tunables.set_named(name, value);
            self.tunables.push((name.to_owned(), value.to_owned()));
            return set.map_err(|error| refused(&text, error.to_string()));
        }
        if let Some(key) = fixed_options::fixed_key(name) {
            self.fixed.retain(|(known, _)| *known != key);
            self.fixed.push((key, text.clone()));
        }
        let number = || size::parse(value).ok_or_else(|| refused(&text, "is not a number"));
        match (name, value.is_empty()) {
            ("subvol", false) => {
                self.volume.subvolume = Subvolume::Path(option["subvol=".len()..].to_vec());
            }
            ("subvolid", false) => self.volume.subvolume = Subvolume::Id(number()?),
            ("offset", false) => self.offset = Some(offset(&text, value)?),
            ("cache", false) => self.volume.node_cache_bytes = number()?,
            ("page_cache", false) => self.volume.page_cache_bytes = number()?,
            ("pending", false) => self.volume.pending_bytes = number()?,
            ("compress" | "compress-force", _) => {
                let is_forced = name == "compress-force";
                self.volume.compress = compress(value, is_forced)
                    .map_err(|error| refused(&text, error.to_string()))?;
            }
            ("threads", false) => {
                let threads = usize::try_from(number()?).unwrap_or(THREADS_MAX);
                self.threads = Some(threads.clamp(1, THREADS_MAX));
            }
            ("fsname", false) => self.fsname = Some(value.to_owned()),
            ("commit", false) => {
                let seconds = size::parse(value).and_then(|number| u32::try_from(number).ok());
                let seconds = seconds.filter(|seconds| *seconds > 0);
                self.volume.commit_seconds = seconds.ok_or_else(|| {
                    refused(&text, "is not a number of seconds").hint("the default is commit=30")
                })?;
            }
            ("ro", true) => self.set_read_only(true),
            ("rw", true) => self.set_read_only(false),
            ("sync", true) => self.fuse.is_synchronous = true,
            ("async", true) => self.fuse.is_synchronous = false,
            ("degraded", true) => self.volume.degraded = true,
            ("nologreplay" | "norecovery", true) => self.volume.ignore_log = true,
            ("allow_other", true) => self.fuse.allow_other = true,
            ("default_permissions", true) => self.fuse.default_permissions = true,
            ("user_subvol_rm_allowed", true) => self.fuse.users_delete_subvolumes = true,
            ("uncached", true) => self.fuse.caching = Caching::Nothing,
            ("writeback" | "noparallel_direct", true) => self.fuse.caching = Caching::WriteBack,
            ("parallel_direct" | "nouncached" | "nowriteback", true) => {
                self.fuse.caching = Caching::WriteThrough;
            }
            ("all_wait", true) => self.fuse.all_wait = true,
            ("noall_wait", true) => self.fuse.all_wait = false,
            ("blkdev", true) => self.blkdev = true,
            ("dev", true) => self.fuse.devices = true,
            ("nodev", true) => self.fuse.devices = false,
            ("suid", true) => self.fuse.set_user_id = true,
            ("nosuid", true) => self.fuse.set_user_id = false,
            ("exec", true) => self.fuse.execute = true,
            ("noexec", true) => self.fuse.execute = false,
            (option, true) if NO_CHANGE.contains(&option) => {}
            _ => {
                let tunables: Vec<_> =
                    Tunables::default().named().iter().map(|tunable| tunable.key).collect();
                let known = format!("known: {KNOWN}; tunables: {}", tunables.join(", "));
                return Err(refused(&text, "is not known").hint(known));
            }
        }
        Ok(())
    }

    /// Sets ro or rw; as in mount(8), the last option counts.
    pub(super) fn set_read_only(&mut self, read_only: bool) {
        self.volume.read_only = read_only;
        self.fuse.is_writable = !read_only;
    }

    /// Adds `offset`, `subvol` and `subvolid` to the volume argument.
    ///
    /// # Errors
    /// Fails if `offset` is given for several devices or beside a partition, or two different
    /// subvolumes are named.
    pub(crate) fn apply_to_volume(&mut self, volume: &mut VolumeArg) -> Result<(), Failure> {
        if let Some(offset) = self.offset {
            let [device] = volume.devices.as_mut_slice() else {
                return Err(refused("offset", "applies to a single device")
                    .hint("add ?offset=N to each device"));
            };
            if device.bytes.is_some() {
                return Err(refused("offset", "is the place of another volume than ?partition=N")
                    .hint("name the volume by one of them"));
            }
            device.offset = offset;
        }
        match (&volume.subvolume, &self.volume.subvolume) {
            (Subvolume::Default, _) => {}
            (named, Subvolume::Default) => self.volume.subvolume = named.clone(),
            (named, other) if is_same(named, other) => {}
            (named, other) => {
                let (named, other) = (arg::describe(named), arg::describe(other));
                return Err(refused(
                    "subvol",
                    format!("names {other}, the volume argument names {named}"),
                )
                .hint("name one"));
            }
        }
        Ok(())
    }
}

/// Parses the value of `offset`.
fn offset(option: &str, value: &str) -> Result<u64, Failure> {
    arg::parse_offset(value).ok_or_else(|| refused(option, "is not a number"))
}

/// Returns whether two names denote the same subvolume: leading, trailing and repeated slashes are
/// ignored.
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

/// Parses the value of `compress`, as kernel btrfs does: the default algorithm is zlib.
fn compress(value: &str, is_forced: bool) -> Result<Option<Compress>, BadCompressor> {
    Ok(match value {
        "no" | "none" => None,
        "" => Some(Compress { compressor: Compressor::default(), is_forced }),
        named => Some(Compress { compressor: named.parse()?, is_forced }),
    })
}

fn refused(option: &str, why: impl Into<String>) -> Failure {
    Failure::new(format!("option {option}"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &str) -> Result<ParsedOptions, String> {
        ParsedOptions::of(&[list.into()]).map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_set_their_fields() {
        let parsed = check("ro,subvol=/a/b,degraded,allow_other,cache=1M,threads=3").unwrap();
        assert_eq!(parsed.volume.subvolume, Subvolume::Path(b"/a/b".to_vec()));
        assert!(parsed.volume.degraded && parsed.fuse.allow_other);
        assert!(parsed.fuse.checks_permissions(), "allow_other implies permission checks");
        assert_eq!((parsed.volume.node_cache_bytes, parsed.threads), (1 << 20, Some(3)));
        assert_eq!(check("subvolid=257").unwrap().volume.subvolume, Subvolume::Id(257));
    }

    #[test]
    fn a_mount_is_writable_unless_ro_comes_last() {
        for (list, read_only) in [("", false), ("ro", true), ("ro,rw", false), ("rw,ro", true)] {
            let parsed = check(list).unwrap();
            assert_eq!(parsed.volume.read_only, read_only, "{list}");
            assert_eq!(parsed.fuse.is_writable, !read_only, "{list}");
        }
        let parsed = check("commit=5,sync,all_wait").unwrap();
        assert_eq!((parsed.volume.commit_seconds, parsed.fuse.is_synchronous), (5, true));
        assert!(!check("sync,async").unwrap().fuse.is_synchronous);
        assert!(check("async,sync").unwrap().fuse.is_synchronous);
        assert!(parsed.fuse.all_wait);
    }

    #[test]
    fn the_last_caching_option_counts() {
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
    fn two_different_subvolumes_are_refused() {
        let merge_subvolume = |option: &str, list: &str| {
            let named = arg::subvolume(option.as_bytes());
            let mut volume =
                VolumeArg { devices: Vec::new(), subvolume: named, typed: String::new() };
            let mut parsed = check(list)?;
            parsed.apply_to_volume(&mut volume).map_err(|failure| failure.to_string())
        };
        for (option, list) in
            [("src", "subvol=/src"), ("/a//b/", "subvol=a/b"), ("257", "subvolid=257")]
        {
            assert_eq!(merge_subvolume(option, list), Ok(()), "{option} {list}");
        }
        for (option, list) in
            [("src", "subvol=/other"), ("257", "subvolid=258"), ("a", "subvolid=257")]
        {
            let message = merge_subvolume(option, list).unwrap_err();
            assert!(message.starts_with("option subvol: names "), "{message}");
        }
    }

    #[test]
    fn unknown_options_are_refused_by_name() {
        for list in ["ro,discard=async", "frob", "degraded=1", "subvol="] {
            let message = check(list).unwrap_err();
            let name = list.strip_prefix("ro,").unwrap_or(list);
            assert!(
                message.starts_with(&format!("option {name}: is not known (known: ro,")),
                "{message}"
            );
        }
        for option in ["commit=0", "commit=x", "commit=5000000000"] {
            let why = "is not a number of seconds (the default is commit=30)";
            assert_eq!(check(option).unwrap_err(), format!("option {option}: {why}"));
        }
        assert_eq!(check("subvolid=x").unwrap_err(), "option subvolid=x: is not a number");
        assert_eq!(
            check("compress=gzip").unwrap_err(),
            "option compress=gzip: is none of no, none, lzo, zlib[:1 to 9], zstd[:-15 to 15]"
        );
    }

    #[test]
    fn the_message_about_an_unknown_option_lists_every_option_of_the_help() {
        let message = check("frob").unwrap_err();
        let lines = crate::args::MOUNT_HELP.lines().take_while(|line| !line.starts_with("Without"));
        let options =
            lines.filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
        let mut seen = 0;
        for option_list in options.filter_map(|line| line.split("  ").next()) {
            for option in option_list.split(", ") {
                let name = option.split(['=', '[']).next().unwrap();
                assert!(message.contains(&format!(" {name}")), "{name}: {message}");
                seen += 1;
            }
        }
        assert!(seen > 25, "{seen}");
    }

    #[test]
    fn the_number_of_threads_is_limited() {
        for (option, threads) in [("threads=100", 64), ("threads=0", 1), ("threads=64", 64)] {
            assert_eq!(check(option).unwrap().threads, Some(threads), "{option}");
        }
    }

    #[test]
    fn tunables_are_set_by_their_names_in_ctl() {
        let parsed = check("nosec=off,dio_stable=trust,nosec=on,simple_read=off").unwrap();
        let tunables = parsed.volume.tunables;
        assert!(tunables.nosec && !tunables.simple_read);
        assert_eq!(tunables.find_named("dio_stable").unwrap().value, "trust");
        assert_eq!(
            check("nosec=yes").unwrap_err(),
            "option nosec=yes: nosec: have \"yes\", want on or off"
        );
        assert!(check("nosec").unwrap_err().starts_with("option nosec: is not known"));
    }

    #[test]
    fn compression_is_named_as_in_the_kernel() {
        let compression = |list| {
            check(list)
                .unwrap()
                .volume
                .compress
                .map(|compress| (compress.compressor.to_string(), compress.is_forced))
        };
        let is = |name: &str, is_forced| Some((name.to_owned(), is_forced));
        assert_eq!(compression("rw"), None);
        assert_eq!(compression("compress"), is("zlib:3", false));
        assert_eq!(compression("compress=zstd:15"), is("zstd:15", false));
        assert_eq!(compression("compress=lzo"), is("lzo", false));
        assert_eq!(compression("compress-force=zstd"), is("zstd:3", true));
        assert_eq!(compression("compress-force"), is("zlib:3", true));
        assert_eq!(compression("compress=zstd,compress=no"), None);
        assert_eq!(compression("compress-force=zstd,compress=lzo"), is("lzo", false));
    }

    /// The place in the argument and the one in the options are two places.
    #[test]
    fn an_offset_beside_a_partition_is_refused() {
        let device = butternut::DevicePath {
            path: "disk.img".into(),
            offset: 66 << 20,
            bytes: Some(1 << 30),
        };
        let mut volume = VolumeArg {
            devices: vec![device],
            subvolume: Subvolume::Default,
            typed: "disk.img?partition=2".into(),
        };
        let refused = check("offset=1M").unwrap().apply_to_volume(&mut volume);
        assert!(refused.is_err(), "{:?}", volume.devices);
    }
}

//! Options that cannot change while a volume is mounted.
//!
//! 1. A remount, or a mount of a mounted volume at another mount point, is refused if it names such
//!    an option with another value. The error message names the option. An option with the value
//!    that the volume has is accepted: mount(8) adds the options of fstab to those of its command
//!    line.
//! 2. `degraded` is never refused: it permits opening a volume with missing devices, and a mounted
//!    volume is open. `offset`, `subvol` and `subvolid` select the volume and the directory; a
//!    remount ignores them, as kernel btrfs does.

use butternut_fuse::Caching;
use serde_json::{Map, Value};

use super::options::ParsedOptions;
use crate::failure::Failure;

/// The value of an option that is off.
const OFF: &str = "";

/// Returns the values of the fixed options, each in the form of a mount option.
pub(super) fn values(parsed: &ParsedOptions) -> Map<String, Value> {
    let on = |is_on: bool, option: &str| if is_on { option.to_owned() } else { OFF.to_owned() };
    let (volume, fuse) = (&parsed.volume, &parsed.fuse);
    let caching = match fuse.caching {
        Caching::WriteBack => "writeback",
        Caching::WriteThrough => "parallel_direct",
        Caching::Nothing => "uncached",
    };
    let compress = volume.compress.as_ref().map_or_else(
        || "compress=no".to_owned(),
        |compress| {
            let force = if compress.is_forced { "-force" } else { "" };
            format!("compress{force}={}", compress.compressor)
        },
    );
    let all = [
        (CACHING, caching.to_owned()),
        (COMPRESS, compress),
        ("commit", format!("commit={}", volume.commit_seconds)),
        ("cache", format!("cache={}", volume.node_cache_bytes)),
        ("page_cache", format!("page_cache={}", volume.page_cache_bytes)),
        ("pending", format!("pending={}", volume.pending_bytes)),
        ("threads", format!("threads={}", parsed.threads.unwrap_or(fuse.threads))),
        ("nologreplay", on(volume.ignore_log, "nologreplay")),
        ("allow_other", on(fuse.allow_other, "allow_other")),
        ("default_permissions", on(fuse.checks_permissions(), "default_permissions")),
        ("user_subvol_rm_allowed", on(fuse.users_delete_subvolumes, "user_subvol_rm_allowed")),
        ("all_wait", on(fuse.all_wait, "all_wait")),
        ("blkdev", on(parsed.blkdev, "blkdev")),
        ("fsname", format!("fsname={}", parsed.fsname.as_ref().unwrap_or(&fuse.source))),
    ];
    all.into_iter().map(|(key, option)| (key.to_owned(), Value::String(option))).collect()
}

const CACHING: &str = "caching";
const COMPRESS: &str = "compress";

/// Returns the key of a fixed option, or `None` if the option can change.
pub(super) fn fixed_key(option: &str) -> Option<&'static str> {
    Some(match option {
        "uncached" | "nouncached" | "writeback" | "nowriteback" | "parallel_direct"
        | "noparallel_direct" => CACHING,
        "compress" | "compress-force" => COMPRESS,
        "commit" => "commit",
        "cache" => "cache",
        "page_cache" => "page_cache",
        "pending" => "pending",
        "threads" => "threads",
        "nologreplay" | "norecovery" => "nologreplay",
        "allow_other" => "allow_other",
        "default_permissions" => "default_permissions",
        "user_subvol_rm_allowed" => "user_subvol_rm_allowed",
        "all_wait" | "noall_wait" => "all_wait",
        "blkdev" => "blkdev",
        "fsname" => "fsname",
        _ => return None,
    })
}

/// Fails if an option differs from its value in `served`, the values of the mounted volume (law 1).
pub(super) fn check(parsed: &ParsedOptions, served: &Value) -> Result<(), Failure> {
    let wanted = values(parsed);
    for (key, option) in &parsed.fixed {
        let (want, have) = (wanted.get(*key), &served[*key]);
        if want == Some(have) {
            continue;
        }
        let have = match have.as_str() {
            Some(OFF) => "the volume is mounted without it".to_owned(),
            Some(have) => format!("the volume is mounted with {have}"),
            None => "the process of the mount does not report its value".to_owned(),
        };
        return Err(Failure::new(format!("option {option}"), have)
            .hint("leave it out, or unmount the volume everywhere and mount it with this option"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> ParsedOptions {
        ParsedOptions::of(&[list.into()]).unwrap()
    }

    fn check_words(served: &str, option_list: &str) -> Result<(), String> {
        let served = Value::Object(values(&parsed(served)));
        check(&parsed(option_list), &served).map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_with_the_current_value_are_accepted_and_others_refused_by_name() {
        for (served, option_list) in [
            ("", "rw,noatime,degraded,subvol=x,offset=4096,nosec=off,sync"),
            ("uncached,compress=zstd", "compress=zstd:3,uncached"),
            ("page_cache=32M,threads=3", "uncached,nouncached,threads=3,page_cache=33554432"),
            ("allow_other", "default_permissions,allow_other"),
            ("threads=100", "threads=100,threads=64"),
            ("", "compress=zlib,compress=no,commit=30"),
            ("fsname=name", "fsname=other,fsname=name"),
        ] {
            assert_eq!(check_words(served, option_list), Ok(()), "{option_list}");
        }
        let hint = "(leave it out, or unmount the volume everywhere and mount it with this option)";
        for (served, option_list, why) in [
            ("", "uncached", "option uncached: the volume is mounted with parallel_direct"),
            ("uncached", "writeback", "option writeback: the volume is mounted with uncached"),
            (
                "compress=lzo",
                "compress-force=lzo",
                "option compress-force=lzo: the volume is mounted with compress=lzo",
            ),
            ("", "rw,compress", "option compress: the volume is mounted with compress=no"),
            ("", "commit=5", "option commit=5: the volume is mounted with commit=30"),
            ("", "allow_other", "option allow_other: the volume is mounted without it"),
            ("fsname=a", "fsname=b", "option fsname=b: the volume is mounted with fsname=a"),
        ] {
            assert_eq!(
                check_words(served, option_list),
                Err(format!("{why} {hint}")),
                "{option_list}"
            );
        }
    }

    #[test]
    fn every_fixed_value_has_an_option() {
        for (key, _) in &values(&parsed("")) {
            let option_list = ["uncached", key.as_str()];
            assert!(
                option_list.iter().any(|option| fixed_key(option) == Some(key.as_str())),
                "{key}"
            );
        }
    }
}

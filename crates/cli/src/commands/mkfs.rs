//! `mkfs`: creates a volume on a block device or in an image file; `rootdir` fills it.
//!
//! If `SOURCE_DATE_EPOCH` is set, it is the creation time of the volume, and every id in the volume
//! is derived from its UUID: the same command line creates the same bytes.

mod rootdir;

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use butternut::{DevicePath, Subvolume};
use butternut_mkfs::{
    ChecksumKind, FeatureName, Features, Identity, Made, MadeGroup, MkfsError, MkfsOptions,
    Overlap, Profile, Target, Time, Uuid,
};
use butternut_sys::errno::Errno;
use serde_json::Value;

use crate::args::{GlobalArgs, MkfsArgs};
use crate::failure::{Completion, Failure, Outcome, chain, hints, without_object};
use crate::output::size::{Units, exact, pretty};
use crate::output::{Output, json, stderr_line, text};
use crate::volume;
use crate::volume::arg::VolumeArg;

use super::import::Counts;

/// All profile names; the library refuses those that it cannot create.
const PROFILES: [Profile; 9] = [
    Profile::Single,
    Profile::Dup,
    Profile::Raid0,
    Profile::Raid1,
    Profile::Raid1c3,
    Profile::Raid1c4,
    Profile::Raid10,
    Profile::Raid5,
    Profile::Raid6,
];

/// Offsets that messages propose are multiples of this, in bytes.
const OFFSET_UNIT: u64 = 1 << 20;

pub(crate) fn run(global: &GlobalArgs, args: &MkfsArgs, out: &mut Output) -> Outcome {
    if words(&args.features).any(|word| word == "list-all") {
        return list_features(global, out);
    }
    let volume_arg = one_device(&args.devices)?;
    let mut options = parse_options(args)?;
    let [device] = volume_arg.devices.as_slice() else { return Err(one_only(&volume_arg.typed)) };
    if let Some(dir) = &args.rootdir {
        rootdir::choose_size(dir, device, &args.import_options, &mut options)?;
    }
    if options.bytes.is_none() {
        volume::check_device(&device.path).map_err(|failure| {
            failure.hint("name an image file or a block device, or create a file with --size")
        })?;
    }
    let DevicePath { path, offset, bytes } = device.clone();
    let target = Target { path, offset, bytes };
    let is_new = !target.path.exists();
    let failed = |error: MkfsError| failure(&volume_arg, &target, &error);
    let (mut made, counts);
    if let Some(dir) = &args.rootdir {
        let device;
        (made, device) = target.make_unfinished(&options).map_err(failed)?;
        let filled = rootdir::fill(global, args, dir, &volume_arg, (&mut made, device));
        counts = Some(filled.map_err(|rootdir::NotFilled { failure, has_volume }| {
            if has_volume {
                return failure;
            }
            if is_new {
                // The first failure is reported; an error of this cleanup is ignored.
                std::fs::remove_file(&target.path).unwrap_or_default();
                return failure;
            }
            without_volume(&volume_arg, failure, global)
        })?);
    } else {
        made = target.make(&options).map_err(failed)?;
        counts = None;
    }
    if global.json {
        json::document(out, as_json(&target, &made, counts))?;
    } else if !global.quiet {
        print(out, &made)?;
    }
    Ok(Completion::Success)
}

/// Says what a failure leaves of a device that existed before.
fn without_volume(volume_arg: &VolumeArg, failure: Failure, global: &GlobalArgs) -> Failure {
    if !global.quiet {
        stderr_line(&format!(
            "{}: note: it has no volume now: its previous contents were overwritten",
            volume_arg.typed
        ));
    }
    failure
}

fn words(features: &[String]) -> impl Iterator<Item = &str> {
    features.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

fn one_device(words: &[OsString]) -> Result<VolumeArg, Failure> {
    if words.is_empty() {
        return Err(
            Failure::new("mkfs", "no device is named").hint("name an image file or a block device")
        );
    }
    let volume_arg = volume::parse_arg(words)?;
    if volume_arg.devices.len() > 1 {
        return Err(one_only(&volume_arg.typed));
    }
    if volume_arg.subvolume != Subvolume::Default {
        return Err(Failure::new(volume_arg.typed, "names a subvolume, and a new volume has none")
            .hint("remove the @; if it is part of a file name, create the file first"));
    }
    Ok(volume_arg)
}

fn one_only(typed: &str) -> Failure {
    Failure::new(typed, "a new volume is created on one device").hint("name one")
}

/// Parses the options.
fn parse_options(args: &MkfsArgs) -> Result<MkfsOptions, Failure> {
    let mut features = Features::default();
    let mixed = args.mixed.then_some("mixed-bg");
    for word in words(&args.features).chain(mixed) {
        features.choose(word).map_err(|error| {
            Failure::new("--features", chain(&error)).hint("`-O list-all` lists all features")
        })?;
    }
    let size = |flag: &str, typed: &Option<String>| {
        typed.as_ref().map(|typed| crate::args::parse_bytes(flag, typed)).transpose()
    };
    let node_bytes = size("--nodesize", &args.nodesize)?;
    let epoch = epoch()?;
    Ok(MkfsOptions {
        identity: Some(identity(args.uuid.as_deref(), epoch.is_some())?),
        time: epoch.unwrap_or_else(now),
        label: args.label.as_ref().map(text::bytes).unwrap_or_default(),
        bytes: size("--size", &args.size)?,
        node_bytes: node_bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
        csum: csum(&args.csum)?,
        data: profile("--data", args.data.as_deref())?,
        metadata: profile("--metadata", args.metadata.as_deref())?,
        features,
        overwrite: args.force,
        discard: !args.nodiscard,
    })
}

fn identity(typed: Option<&str>, is_reproducible: bool) -> Result<Identity, Failure> {
    let fsid = typed.map(|typed| {
        Uuid::parse(typed).filter(|uuid| !uuid.is_nil()).ok_or_else(|| {
            Failure::new("--uuid", format!("{typed:?} is not a UUID"))
                .hint("give 32 hexadecimal digits as 8-4-4-4-12, or omit --uuid for a random one")
        })
    });
    let random =
        Identity::random(fsid.transpose()?).map_err(|error| Failure::new("mkfs", chain(&error)))?;
    Ok(if is_reproducible { Identity::derived(random.fsid) } else { random })
}

/// Returns the time of a reproducible build, from `SOURCE_DATE_EPOCH`.
fn epoch() -> Result<Option<Time>, Failure> {
    let Some(typed) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let secs = typed.to_str().and_then(|typed| typed.parse().ok());
    secs.map(|secs| Some(Time { secs, nanos: 0 })).ok_or_else(|| {
        Failure::new("SOURCE_DATE_EPOCH", format!("{} is not a number", typed.display()))
            .hint("set it to seconds since 1970, or unset it")
    })
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: i64::try_from(since.as_secs()).unwrap_or_default(), nanos: since.subsec_nanos() }
}

fn csum(typed: &str) -> Result<ChecksumKind, Failure> {
    match typed.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(ChecksumKind::Crc32c),
        "xxhash" | "xxhash64" => Ok(ChecksumKind::Xxhash64),
        "sha256" => Ok(ChecksumKind::Sha256),
        "blake2" | "blake2b" => Ok(ChecksumKind::Blake2b),
        _ => Err(Failure::new("--csum", format!("{typed:?} is not a checksum"))
            .hint("use crc32c, xxhash, sha256 or blake2")),
    }
}

fn profile(flag: &str, typed: Option<&str>) -> Result<Option<Profile>, Failure> {
    let Some(typed) = typed else { return Ok(None) };
    let lower = typed.to_ascii_lowercase();
    let known = PROFILES.into_iter().find(|profile| profile.name() == lower);
    known.map(Some).ok_or_else(|| {
        Failure::new(flag, format!("{typed:?} is not a profile")).hint("use single or dup")
    })
}

fn failure(volume_arg: &VolumeArg, target: &Target, error: &MkfsError) -> Failure {
    // The message begins with the volume, so a second mention of the device is removed.
    let path = target.path.display().to_string();
    let why = chain(error);
    let why =
        without_object(&why, &path).replace(&format!("cannot make {path} "), "cannot be made ");
    let failure = Failure::new(volume_arg.typed.clone(), why);
    match error {
        MkfsError::Device(error) => match hints::of_mounted(error) {
            Some(mounted) => failure.hint(mounted),
            None => failure.hint_if(hints::of_device(error)),
        },
        MkfsError::Extend { cause, .. } => failure.hint_if(of_extend(*cause)),
        MkfsError::InUse { .. } => failure.hint("--force overwrites it"),
        MkfsError::Overlaps { range, with } => failure.hint(of_overlap(target, range, with)),
        MkfsError::TooSmall { bytes_min, .. } => failure.hint(format!(
            "the minimum size is {}, with --mixed 16.00MiB",
            pretty(*bytes_min, Units::Binary)
        )),
        MkfsError::TooLarge { .. } => failure.hint("choose a smaller size, or omit --size"),
        MkfsError::NodeSize { .. } => failure.hint("use 4K, 8K, 16K, 32K or 64K"),
        MkfsError::MixedNodeSize { .. } => failure.hint("omit --nodesize"),
        MkfsError::MixedProfiles => failure.hint("use single for both, or dup for both"),
        MkfsError::Profile { .. } => failure.hint("use single or dup"),
        MkfsError::FeatureMissing { missing } => {
            failure.hint(format!("remove ^{missing} or block-group-tree from --features"))
        }
        MkfsError::TwoQuotas => failure.hint("remove one of them from --features"),
        MkfsError::OffsetTooLarge
        | MkfsError::ReadOnly
        | MkfsError::Zoned
        | MkfsError::FeatureUnknown { .. }
        | MkfsError::FeatureUnsupported { .. }
        | MkfsError::LabelTooLong { .. }
        | MkfsError::LabelBytes
        | MkfsError::Random(_) => failure,
    }
}

/// Returns where a new volume overlaps nothing, if that is known.
fn of_overlap(target: &Target, range: &Range<u64>, with: &Overlap) -> String {
    let at = |offset| format!("{}?offset={}", target.path.display(), exact(offset));
    let file_bytes = std::fs::metadata(&target.path).map_or(0, |found| found.len());
    let other = match with {
        Overlap::Partition { number, .. } => {
            format!("{}?partition={number} is that partition; ", target.path.display())
        }
        Overlap::Filesystem { range: found, .. } if found.start > range.start => {
            format!("--size {} ends in front of it; ", exact(found.start - range.start))
        }
        Overlap::Filesystem { range: found, .. } if found.end < file_bytes => {
            format!("{} is behind it; ", at(found.end.next_multiple_of(OFFSET_UNIT)))
        }
        Overlap::Filesystem { .. } | Overlap::Table { .. } => String::new(),
    };
    format!("{other}--force overwrites it")
}

/// Returns what the user can do about an image file that cannot be created or extended.
#[expect(clippy::wildcard_enum_match_arm, reason = "most errors have no hint")]
fn of_extend(cause: Errno) -> Option<&'static str> {
    match io::Error::from(cause).kind() {
        io::ErrorKind::NotFound => Some("create its directory first"),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Some("choose a file in a directory that you can write to")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge => Some("choose a smaller --size"),
        _ => None,
    }
}

fn print(out: &mut Output, made: &Made) -> std::io::Result<()> {
    let label = match made.label.as_slice() {
        b"" => "none".to_owned(),
        label => format!("'{}'", text::escaped(label)),
    };
    let size = |bytes| pretty(bytes, Units::Binary);
    let names: Vec<_> = made.features.names().collect();
    writeln!(out, "Label: {label}  uuid: {}", made.fsid)?;
    writeln!(out, "\tsize {} used {}", size(made.bytes), size(made.bytes_used))?;
    writeln!(out, "\tnode size {} checksum {}", size(made.node_bytes.into()), made.csum.name())?;
    writeln!(
        out,
        "\tfeatures {}",
        if names.is_empty() { "none".into() } else { names.join(", ") }
    )?;
    for group in &made.groups {
        let (kind, profile) = (group.kind(), group.profile.name());
        writeln!(out, "\tgroup {kind}, {profile}: {}", size(group.bytes))?;
    }
    Ok(())
}

fn as_json(target: &Target, made: &Made, counts: Option<Counts>) -> Value {
    let group = |group: &MadeGroup| -> Value {
        json::Object::new()
            .put("type", group.kind())
            .put("profile", group.profile.name())
            .put("bytes", group.bytes)
            .into()
    };
    let object = json::Object::new()
        .name("device", target.path.as_os_str().as_encoded_bytes())
        .put("offset", target.offset)
        .name("label", &made.label)
        .uuid("uuid", &made.fsid.0)
        .uuid("device_uuid", &made.device_uuid.0)
        .put("bytes", made.bytes)
        .put("used_bytes", made.bytes_used)
        .put("node_bytes", made.node_bytes)
        .put("checksum", made.csum.name())
        .put("features", made.features.names().collect::<Vec<_>>())
        .put("groups", made.groups.iter().map(group).collect::<Vec<Value>>());
    match counts {
        Some(counts) => counts.put_into(object).into(),
        None => object.into(),
    }
}

fn list_features(global: &GlobalArgs, out: &mut Output) -> Outcome {
    let default = Features::default();
    if global.json {
        let feature = |feature: &FeatureName| -> Value {
            json::Object::new()
                .put("name", feature.name)
                .put("alias", feature.alias)
                .put("about", feature.about)
                .put("default", default.has(feature))
                .into()
        };
        json::document(out, Features::ALL.iter().map(feature).collect::<Vec<Value>>())?;
        return Ok(Completion::Success);
    }
    for feature in &Features::ALL {
        let alias = feature.alias.map(|alias| format!(" (or {alias})")).unwrap_or_default();
        let is_default = if default.has(feature) { ", enabled by default" } else { "" };
        writeln!(out, "{:<16} {}{is_default}{alias}", feature.name, feature.about)?;
    }
    Ok(Completion::Success)
}

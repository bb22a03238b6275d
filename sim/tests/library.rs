//! Compares the library with the model on new volumes of several shapes, and checks them.

use anyhow::Result;
use butternut::Compress;
use butternut_device::Device;
use butternut_mkfs::{ChecksumKind, MkfsOptions, Profile};
use butternut_sim::generator::Generator;
use butternut_sim::library::LibrarySubject;
use butternut_sim::run;
use butternut_sim::script;
use butternut_sim::subject::Subject;
use butternut_sim::volume::{check, fresh};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const VOLUME_BYTES: u64 = 512 << 20;
const OPERATIONS: usize = 3000;

fn check_seed(seed: u64, options: &MkfsOptions) {
    check_seed_compressed(seed, options, None);
}

fn check_seed_compressed(seed: u64, options: &MkfsOptions, compress: Option<Compress>) {
    let last: Rc<RefCell<Option<Arc<dyn Device>>>> = Rc::default();
    let mut make = || -> Result<Box<dyn Subject>> {
        let device = fresh(VOLUME_BYTES, options)?;
        *last.borrow_mut() = Some(Arc::clone(&device));
        Ok(Box::new(LibrarySubject::open_compressing(device, compress)?))
    };
    let generator = Generator::new(seed);
    let found = run::check_seed(generator, seed, OPERATIONS, Duration::from_mins(2), &mut make)
        .expect("a subject");
    if let Some(found) = found {
        panic!("{found}");
    }
    let device = last.borrow().clone().expect("a volume was made");
    check(&device).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
}

fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    if let Some(seed) = only {
        return seed..seed + 1;
    }
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    0..if is_long { many } else { few }
}

#[test]
fn the_library_agrees_with_the_model() {
    for seed in seeds(4, 300) {
        check_seed(seed, &MkfsOptions::default());
    }
}

/// The model and the library agree on files that are compressed wherever that saves space.
#[test]
fn compressed_files_agree_with_the_model() {
    for (number, name) in (2000..).zip(["zlib:1", "lzo", "zstd:1"]) {
        let compress = Compress { compressor: name.parse().unwrap(), is_forced: true };
        for seed in seeds(2, 100).map(|more| number + more * 100) {
            check_seed_compressed(seed, &MkfsOptions::default(), Some(compress));
        }
    }
}

/// The model and the library agree on other layouts: small and large nodes, explicit hole items,
/// mixed block groups, other checksums.
#[test]
fn volumes_of_every_shape_agree_with_the_model() {
    let default = MkfsOptions::default();
    let with = |word: &str| {
        let mut features = default.features;
        features.choose(word).unwrap();
        MkfsOptions { features, ..default.clone() }
    };
    let shapes = [
        MkfsOptions { node_bytes: Some(4096), ..default.clone() },
        MkfsOptions { node_bytes: Some(65536), ..default.clone() },
        MkfsOptions { csum: ChecksumKind::Blake2b, ..default.clone() },
        MkfsOptions { data: Some(Profile::Dup), ..default.clone() },
        with("mixed-bg"),
        with("^no-holes"),
        with("^block-group-tree"),
    ];
    for (seed, shape) in (1000..).zip(&shapes) {
        for seed in seeds(1, 8).map(|more| seed + more * 100) {
            check_seed(seed, shape);
        }
    }
}

/// Scripts that have failed before, because of the model or of a subject.
#[test]
fn kept_scripts_agree() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../judges/kept");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "script") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let script = script::parse(&text).unwrap();
        let device = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
        let mut subject = LibrarySubject::open(Arc::clone(&device)).unwrap();
        if let Some(found) = run::replay(&mut subject, &script).unwrap() {
            panic!("{}: {found}", path.display());
        }
        drop(subject);
        check(&device).unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
        count += 1;
    }
    assert!(count > 0);
}

//! Our mount of a volume that gets full: a write that does not fit fails itself, and all
//! acknowledged data is there afterwards.

use anyhow::{Context, Result, bail, ensure};
use butternut_judges::our_volume::OurVolume;
use butternut_judges::subjects::Mounted;
use butternut_judges::{kept, trial};
use butternut_sys::mapped::Mapped;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

/// Every caching mode of the kernel.
const MOUNTS: [(&str, &str); 3] =
    [("default", ""), ("writeback", "writeback"), ("uncached", "uncached")];

const MIB: usize = 1 << 20;
const BYTES: u64 = 256 << 20;
const NO_SPACE: i32 = 28;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for (name, options) in MOUNTS {
        let mut add = |what: &str, judge: fn(&str) -> Result<()>| {
            let named = format!("{what}::{name}");
            trials.push(trial::trial(&named, move || judge(options)));
        };
        if name != "writeback" {
            add("write", a_write_that_does_not_fit_fails);
            add("small-files", small_files_fill_a_volume_until_enospc);
        }
        add("direct", a_direct_write_that_does_not_fit_fails);
        add("back", removing_a_file_frees_its_space);
    }
    trial::run(trials)
}

fn ours(options: &str) -> Result<OurVolume> {
    OurVolume::sized(kept::scratch(), BYTES, options)
}

/// Returns the bytes of a file at an offset; none of them is zero.
fn pattern(at: usize, bytes: usize) -> Vec<u8> {
    (at..at + bytes).map(|at| 1 + u8::try_from((at / 512 * 7 + at) % 251).unwrap_or(0)).collect()
}

fn is_no_space(error: &io::Error) -> bool {
    error.raw_os_error() == Some(NO_SPACE)
}

fn same(path: &Path, bytes: usize) -> Result<()> {
    let have = std::fs::read(path)?;
    ensure!(have.len() == bytes, "{} bytes were acknowledged, {} are there", bytes, have.len());
    let wrong = have.iter().zip(pattern(0, bytes)).position(|(have, want)| *have != want);
    ensure!(wrong.is_none(), "an acknowledged byte is lost at {wrong:?}");
    Ok(())
}

/// Writes until there is an error. Returns the number of acknowledged bytes, and the error.
fn fill(file: &mut File, step: usize) -> Result<(usize, io::Error)> {
    let mut done = 0;
    while done < 2 * usize::try_from(BYTES)? {
        match file.write(&pattern(done, step)) {
            Ok(0) => bail!("a write of {step} bytes wrote none"),
            Ok(written) => done += written,
            Err(error) => return Ok((done, error)),
        }
    }
    bail!("{done} bytes were written to a volume of {BYTES}")
}

fn a_write_that_does_not_fit_fails(options: &str) -> Result<()> {
    for step in [MIB, 4096] {
        let mut volume = ours(options)?;
        let path = volume.root()?.join("file");
        let mut file = File::create(&path)?;
        let (done, error) = fill(&mut file, step)?;
        ensure!(is_no_space(&error), "{error}");
        ensure!(done > 100 * MIB, "only {done} bytes fit");
        file.sync_all().context("what was acknowledged")?;
        drop(file);
        volume.remount()?;
        same(&volume.root()?.join("file"), done)?;
        volume.unmount()?;
    }
    Ok(())
}

fn small_files_fill_a_volume_until_enospc(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let root = volume.root()?.to_path_buf();
    let mut count = 0;
    let error = loop {
        ensure!(count < 2 * BYTES / 65536, "{count} files of 64 KiB in {BYTES} bytes");
        let written = File::create(root.join(count.to_string()))
            .and_then(|mut file| file.write_all(&pattern(0, 65536)));
        match written {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    ensure!(is_no_space(&error), "{error}");
    volume.remount()?;
    for number in 0..count {
        same(&volume.root()?.join(number.to_string()), 65536)?;
    }
    volume.unmount()
}

fn a_direct_write_that_does_not_fit_fails(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let path = volume.root()?.join("file");
    let mut how = OpenOptions::new();
    how.read(true).write(true).create_new(true);
    let file = how.custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&path)?;
    // Inside the file the kernel sends the parts of a write concurrently.
    file.set_len(2 * BYTES)?;
    let memory = Mapped::anonymous(4 * MIB)?;
    memory.put(0, &pattern(0, 4 * MIB));
    let mut done = Vec::new();
    let error = loop {
        let at = u64::try_from(done.len() * 4 * MIB)?;
        ensure!(at < 2 * BYTES, "{at} bytes were written to a volume of {BYTES}");
        match memory.write_to(&file, at, 0..4 * MIB) {
            Ok(written) => done.push((at, written)),
            Err(error) => break error,
        }
    };
    ensure!(is_no_space(&error), "{error}");
    let reader = File::open(&path)?;
    for (at, written) in done {
        let mut have = vec![0; written];
        reader.read_exact_at(&mut have, at)?;
        ensure!(have == pattern(0, written), "acknowledged bytes are lost behind {at}");
    }
    drop((file, reader));
    volume.unmount()
}

fn available(root: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(root)?;
    Ok(stat.f_bavail * stat.f_frsize)
}

fn removing_a_file_frees_its_space(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let root = volume.root()?.to_path_buf();
    let before = available(&root)?;
    let path = root.join("file");
    let mut file = File::create(&path)?;
    if options == "writeback" {
        file.write_all(&pattern(0, 160 * MIB))?;
        file.sync_all()?;
    } else {
        fill(&mut file, MIB)?;
    }
    drop(file);
    let full = available(&root)?;
    ensure!(full < before / 2, "{full} of {before} bytes are available beside a file of 160 MiB");
    std::fs::remove_file(&path)?;
    let after = available(&root)?;
    ensure!(after > before / 100 * 95, "{after} of {before} bytes are available again");
    // The space can be allocated again.
    let mut file = File::create(&path)?;
    file.write_all(&pattern(0, 100 * MIB))?;
    file.sync_all()?;
    drop(file);
    volume.remount()?;
    same(&volume.root()?.join("file"), 100 * MIB)?;
    volume.unmount()
}

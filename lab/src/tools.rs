//! The programs that a run needs: where they are, their versions, and how they were built.
//!
//! 1. Everything that is missing is named before a measurement, in one message.
//! 2. Butternut is `--butternut`, else `BUTTERNUT_BIN`, else the program beside this one, else that
//!    of the PATH. The fio engine is `--engine`, else `BUTTERNUT_FIO_ENGINE`, else the library
//!    beside this program; its fio is `--fio`, else `BUTTERNUT_FIO`, else that of the PATH.
//! 3. A debug build of Butternut, of its engine or of this program is refused: its figures mean
//!    nothing. Such a build has overflow checks, whose message is in the program.

use crate::child;
use crate::target::{Kind, Target};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The message of an overflow check, in two parts: this program must not contain it itself.
const OVERFLOW_MESSAGE: [&str; 2] = ["attempt to add", " with overflow"];
/// The symbol by which fio finds an engine.
const ENGINE_SYMBOL: &[u8] = b"\0ioengine\0";
/// fio requests the kernel's uncached I/O with the flag of released kernels since this version.
const UNCACHED_SINCE: (u32, u32) = (3, 40);

/// Programs named on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) fio: Option<PathBuf>,
    pub(crate) engine: Option<PathBuf>,
    pub(crate) butternut: Option<PathBuf>,
    pub(crate) may_debug: bool,
}

/// The programs of a run.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) fio: String,
    /// As `3.33`; empty without fio.
    pub(crate) fio_version: String,
    pub(crate) engine: Option<PathBuf>,
    pub(crate) butternut: Option<PathBuf>,
    pub(crate) is_debug: bool,
}

impl Tools {
    /// Finds the programs for the targets.
    ///
    /// # Errors
    /// Programs are missing, or are debug builds.
    pub(crate) fn find(given: &Given, targets: &[Target], needs_fio: bool) -> Result<Self> {
        let fio = given.fio.clone().or_else(|| std::env::var_os("BUTTERNUT_FIO").map(Into::into));
        let fio = fio.map_or_else(|| "fio".to_owned(), |path| path.display().to_string());
        let needs_engine = needs_fio && targets.iter().any(|t| matches!(t.kind, Kind::Butternut));
        let needs_butternut = targets.iter().any(|t| matches!(t.kind, Kind::Mount));
        let mut missing: Vec<String> = needed(targets, needs_fio.then_some(&*fio))
            .into_iter()
            .filter(|tool| child::find(tool).is_none())
            .map(|tool| match package(&tool) {
                Some(package) => format!("{tool} (apt-get install {package})"),
                None => tool,
            })
            .collect();
        let engine = needs_engine.then(|| engine(given)).flatten();
        if needs_engine && engine.is_none() {
            missing.push("the fio engine libbutternut_fio.so (make fio, or --engine FILE)".into());
        }
        let butternut = needs_butternut.then(|| butternut(given.butternut.as_ref())).flatten();
        if needs_butternut && butternut.is_none() {
            missing.push("butternut (cargo install --path crates/cli, or --butternut FILE)".into());
        }
        ensure!(missing.is_empty(), "missing: {}", missing.join("; "));
        let debug: Vec<_> =
            engine.iter().chain(&butternut).filter(|path| is_debug(path)).cloned().collect();
        let mut is_debug = cfg!(debug_assertions);
        if let Some(path) = debug.first() {
            is_debug = true;
            ensure!(
                given.may_debug,
                "{}: a debug build (build it with --release: scripts/build-release, make fio)",
                path.display()
            );
        }
        if cfg!(debug_assertions) && !given.may_debug {
            bail!("this program is a debug build (build it with --release: scripts/build-release)");
        }
        let fio_version = if needs_fio {
            let text = child::run(&fio, &["--version"])?;
            text.trim_start_matches("fio-").to_owned()
        } else {
            String::new()
        };
        Ok(Self { fio, fio_version, engine, butternut, is_debug })
    }

    /// Returns whether fio can request uncached I/O of the kernel.
    pub(crate) fn has_uncached(&self) -> bool {
        let mut numbers = self.fio_version.split(['.', '-']).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= UNCACHED_SINCE,
            _ => false,
        }
    }

    /// Returns the program or library of Butternut that the run measures.
    pub(crate) fn measured(&self) -> Option<&Path> {
        self.engine.as_deref().or(self.butternut.as_deref())
    }
}

fn needed(targets: &[Target], fio: Option<&str>) -> BTreeSet<String> {
    let mut tools: BTreeSet<String> = fio.into_iter().map(str::to_owned).collect();
    tools.insert("setpriv".into());
    for target in targets {
        if target.needs_device() {
            tools.insert("blkid".into());
            tools.insert("losetup".into());
        }
        if let Some(filesystem) = target.kind.filesystem() {
            tools.insert(format!("mkfs.{filesystem}"));
        }
        if let Kind::Custom(custom) = &target.kind {
            tools.extend(custom.needs.iter().cloned());
        }
    }
    tools
}

fn package(tool: &str) -> Option<&'static str> {
    Some(match Path::new(tool).file_name()?.to_str()? {
        "fio" => "fio",
        "setpriv" | "blkid" => "util-linux",
        "losetup" => "mount",
        "mkfs.btrfs" => "btrfs-progs",
        "mkfs.xfs" => "xfsprogs",
        "mkfs.ext4" => "e2fsprogs",
        _ => return None,
    })
}

fn engine(given: &Given) -> Option<PathBuf> {
    let named = given.engine.clone();
    let named = named.or_else(|| std::env::var_os("BUTTERNUT_FIO_ENGINE").map(Into::into));
    let path = named.or_else(|| beside("libbutternut_fio.so"))?;
    // The library that cargo builds under this name lacks the part for fio, which `make fio` adds.
    // fio runs in another directory, so the path must be absolute.
    path.canonicalize().ok().filter(|path| contains(path, ENGINE_SYMBOL))
}

/// Returns the butternut program, if there is one (law 2).
pub(crate) fn butternut(given: Option<&PathBuf>) -> Option<PathBuf> {
    let named = given.cloned().or_else(|| std::env::var_os("BUTTERNUT_BIN").map(Into::into));
    let path = named.or_else(|| beside("butternut")).or_else(|| child::find("butternut"))?;
    path.canonicalize().ok()
}

/// Returns a file beside this program; programs of tests are one directory deeper.
fn beside(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Returns whether a program has overflow checks (law 3).
fn is_debug(program: &Path) -> bool {
    contains(program, OVERFLOW_MESSAGE.concat().as_bytes())
}

fn contains(file: &Path, wanted: &[u8]) -> bool {
    let bytes = std::fs::read(file).unwrap_or_default();
    let first = wanted.first();
    let mut rest = &bytes[..];
    while let Some(at) = rest.iter().position(|byte| Some(byte) == first) {
        rest = &rest[at..];
        if rest.starts_with(wanted) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}

/// Returns the first line that a tool prints with an option, or nothing if it is missing.
pub(crate) fn version(tool: &str, option: &str) -> Option<String> {
    let path = child::find(tool)?;
    let output = std::process::Command::new(path).arg(option).output().ok()?;
    let printed = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&printed);
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Returns the directory of a path, for a command about what contains it.
///
/// # Errors
/// The path has no directory.
pub(crate) fn directory_of(path: &Path) -> Result<&Path> {
    path.parent().context("a program has a directory")
}

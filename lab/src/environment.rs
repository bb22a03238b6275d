//! The environment of a run: what its figures depend on, for the record.
//!
//! The commit is that of the working tree that contains the measured program of Butternut. Facts
//! that the machine does not tell are empty.

use crate::child;
use crate::cost::total_memory_bytes;
use crate::target::device::Device;
use crate::target::{Kind, Target};
use crate::tools::{Tools, directory_of, version};
use butternut_lab::record::{DeviceFacts, Environment};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Captures the environment.
pub(crate) fn capture(tools: &Tools, targets: &[Target], device: Option<&Device>) -> Environment {
    let (commit, dirty) = tools.measured().map(commit_of).unwrap_or_default();
    Environment {
        kernel: line("/proc/sys/kernel/osrelease"),
        cpu: cpu_model(),
        cores: std::thread::available_parallelism()
            .map_or(0, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
        governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        mitigations: mitigations(),
        memory_bytes: total_memory_bytes(),
        device: device.map(facts).unwrap_or_default(),
        versions: versions(tools, targets),
        commit,
        dirty,
        build_profile: if tools.is_debug { "debug" } else { "release" }.to_owned(),
        rustflags: std::env::var("RUSTFLAGS").unwrap_or_default(),
        load_before: load(),
    }
}

/// Names what differs between the environments of two parts of one run, or nothing.
pub(crate) fn difference(before: &Environment, now: &Environment) -> Option<String> {
    let versions = |environment: &Environment| format!("{:?}", environment.versions);
    let parts = [
        ("kernel", before.kernel.clone(), now.kernel.clone()),
        ("cpu", before.cpu.clone(), now.cpu.clone()),
        ("commit", before.commit.clone(), now.commit.clone()),
        ("build", before.build_profile.clone(), now.build_profile.clone()),
        ("device", before.device.kind.clone(), now.device.kind.clone()),
        ("versions", versions(before), versions(now)),
    ];
    let (name, before, now) = parts.into_iter().find(|(_, before, now)| before != now)?;
    Some(format!("{name}: had {before}, have {now}"))
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        ["model name", "Model"].contains(&key.trim()).then(|| value.trim().to_owned())
    });
    model.unwrap_or_default()
}

/// Returns the mitigations of the processor's vulnerabilities that are in use, by name.
fn mitigations() -> String {
    let mut all = Vec::new();
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten();
    for entry in entries.flatten() {
        let state = fs::read_to_string(entry.path()).unwrap_or_default();
        if let Some(mitigation) = state.trim().strip_prefix("Mitigation: ") {
            all.push(format!("{}: {mitigation}", entry.file_name().to_string_lossy()));
        }
    }
    all.sort();
    all.join("; ")
}

fn load() -> [f64; 3] {
    let text = line("/proc/loadavg");
    let mut loads = text.split(' ').map(|load| load.parse().unwrap_or(0.0));
    [(); 3].map(|()| loads.next().unwrap_or(0.0))
}

fn facts(device: &Device) -> DeviceFacts {
    let path = device.path();
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    // A partition's queue is that of its disk.
    let own = format!("/sys/class/block/{name}");
    let queue = ["queue", "../queue"].map(|queue| format!("{own}/{queue}"));
    let of_queue = |file: &str| {
        let texts = queue.iter().map(|queue| line(&format!("{queue}/{file}")));
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
    };
    let scheduler = of_queue("scheduler");
    let chosen = scheduler.split(['[', ']']).nth(1).map(str::to_owned);
    let kind = match device.kind {
        "block" if name.starts_with("nvme") => "nvme",
        "block" if name.starts_with("vd") => "virtio",
        "block" if name.starts_with("sd") => "scsi",
        "block" if name.starts_with("loop") => "loop",
        kind => kind,
    };
    DeviceFacts {
        path: path.display().to_string(),
        kind: kind.to_owned(),
        model: line(&format!("{own}/device/model")),
        size_bytes: device.size_bytes,
        scheduler: chosen.unwrap_or(scheduler),
        rotational: of_queue("rotational") == "1",
    }
}

fn versions(tools: &Tools, targets: &[Target]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut add = |name: &str, version: Option<String>| {
        if let Some(version) = version {
            all.insert(name.to_owned(), version);
        }
    };
    add("butternut_lab", Some(env!("CARGO_PKG_VERSION").to_owned()));
    if !tools.fio_version.is_empty() {
        add("fio", Some(tools.fio_version.clone()));
    }
    for target in targets {
        match target.kind.filesystem() {
            Some("btrfs") => add("btrfs_progs", version("mkfs.btrfs", "--version")),
            Some("xfs") => add("xfsprogs", version("mkfs.xfs", "-V")),
            Some("ext4") => add("e2fsprogs", version("mkfs.ext4", "-V")),
            _ => {}
        }
        if let Kind::Mount = target.kind
            && let Some(program) = &tools.butternut
        {
            add("butternut", version(&program.display().to_string(), "--version"));
        }
    }
    all
}

/// Returns the commit of the working tree that contains a program, and whether it has changes.
fn commit_of(program: &Path) -> (String, bool) {
    let git = |words: &[&str]| {
        let dir = directory_of(program).ok()?.display().to_string();
        let args: Vec<_> = ["-C", &dir].iter().chain(words).copied().collect();
        child::run("git", &args).ok()
    };
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let changes = git(&["status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
    (commit, !changes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let before = Environment { kernel: "6.1".into(), ..Environment::default() };
        let now = Environment { kernel: "6.2".into(), ..Environment::default() };
        assert_eq!(difference(&before, &before), None);
        assert_eq!(difference(&before, &now).unwrap(), "kernel: had 6.1, have 6.2");
    }
}

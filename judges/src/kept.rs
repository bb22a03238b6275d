//! Scripts that have found a bug. `judges/kept/` holds them, each with its cause in its first
//! lines. New ones are saved in `target/found/`, from where they are named and moved by hand.

use anyhow::{Context, Result, bail};
use butternut_sim::run::{self, Found};
use butternut_sim::script;
use butternut_sim::subject::Subject;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Returns the directory for images of tests: in memory, if the machine has such a filesystem.
pub fn scratch() -> &'static Path {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm } else { Path::new("/var/tmp") }
}

/// Saves a script in the build directory, and returns its path and text.
pub fn save(subject: &str, found: &Found) -> Result<String> {
    let dir = workspace().join("target/found");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{subject}-{}.script", found.seed));
    let text = found.to_string();
    std::fs::write(&path, &text)?;
    Ok(format!("{subject}: see {}\n{text}", path.display()))
}

/// Runs every kept script on a new subject, except those in `without`.
pub fn replay(without: &[&str], make: &mut dyn FnMut() -> Result<Box<dyn Subject>>) -> Result<()> {
    let dir = workspace().join("judges/kept");
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        paths.push(entry?.path());
    }
    paths.sort();
    let is_left_out = |path: &Path| {
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        path.extension().is_none_or(|end| end != "script") || without.contains(&name)
    };
    for path in paths.iter().filter(|path| !is_left_out(path)) {
        let name = path.display().to_string();
        let script = script::parse(&std::fs::read_to_string(path)?).context(name.clone())?;
        if let Some(found) = run::replay(&mut *make()?, &script).context(name.clone())? {
            bail!("{name}: {found}");
        }
    }
    Ok(())
}

fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

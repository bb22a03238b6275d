//! Scripts that found something: `judges/kept/` holds them for ever, each with its cause in its
//! first lines; new ones are left in `target/found/` until somebody names them and puts them there.

use anyhow::{Context, Result, bail};
use butternut_sim::run::{self, Found};
use butternut_sim::script;
use butternut_sim::subject::Subject;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where images of tests go: in memory if there is such a place.
pub fn scratch() -> &'static Path {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm } else { Path::new("/var/tmp") }
}

/// Keeps a script beside the build, and says where it is and what it says.
pub fn save(subject: &str, found: &Found) -> Result<String> {
    let dir = workspace().join("target/found");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{subject}-{}.script", found.seed));
    let text = found.to_string();
    std::fs::write(&path, &text)?;
    Ok(format!("{subject}: see {}\n{text}", path.display()))
}

/// Runs every kept script, but for some by their names, on a fresh subject each.
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

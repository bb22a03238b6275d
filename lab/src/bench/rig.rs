//! The rig: a loop device over an image, with a btrfs that the kernel wrote and mounts.
//!
//! ```text
//! image file --losetup--> /dev/loopN --mkfs, mount--> files written by the kernel, then read-only
//!                              \--> Butternut opens the same device
//! ```
//!
//! Dropping the rig unmounts the volume and detaches the loop device, also after a failure.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sizes of the files and number of repeats.
pub(crate) struct Size {
    pub(crate) stream_bytes: u64,
    pub(crate) zstd_bytes: u64,
    pub(crate) small_files: u32,
    /// Number of files of the rows about names, by the library.
    pub(crate) names: u32,
    /// Number of files of the rows about names, by a mount.
    pub(crate) mounted_names: u32,
    /// The file that is overwritten at random.
    pub(crate) overwritten_bytes: u64,
    pub(crate) repeats: usize,
    pub(crate) seconds: u32,
}

impl Size {
    pub(crate) const FULL: Self = Self {
        stream_bytes: 1 << 30,
        zstd_bytes: 512 << 20,
        small_files: 60_000,
        names: 100_000,
        mounted_names: 20_000,
        overwritten_bytes: 4 << 30,
        repeats: 5,
        seconds: 4,
    };
    pub(crate) const QUICK: Self = Self {
        stream_bytes: 256 << 20,
        zstd_bytes: 128 << 20,
        small_files: 10_000,
        names: 20_000,
        mounted_names: 5_000,
        overwritten_bytes: 512 << 20,
        repeats: 3,
        seconds: 1,
    };
}

pub(crate) struct Rig {
    pub(crate) size: &'static Size,
    pub(crate) device: PathBuf,
    /// Where the kernel mounts the volume, read-only.
    pub(crate) kernel: PathBuf,
    /// Where Butternut mounts the volume.
    pub(crate) butternut_mount: PathBuf,
    pub(crate) butternut: PathBuf,
    _dir: tempfile::TempDir,
}

/// Runs a command and returns its standard output.
///
/// # Errors
/// The command fails; the error contains its standard error.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("cannot run {program}; scripts/setup installs it"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Drops the kernel's page cache, dentries and inodes.
pub(crate) fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the kernel's caches; be root")
}

impl Rig {
    pub(crate) fn make(
        dir: &Path,
        size: &'static Size,
        butternut: Option<PathBuf>,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-bench-").tempdir_in(dir)?;
        let butternut = match butternut {
            Some(path) => path,
            None => std::env::current_exe()?.with_file_name("butternut"),
        };
        if !butternut.exists() {
            bail!("{} is missing; cargo build --release -p butternut-cli", butternut.display());
        }
        let image = dir.path().join("volume.img");
        File::create(&image)?.set_len(size.stream_bytes + size.zstd_bytes + (3 << 30))?;
        let device = PathBuf::from(run("losetup", &["-f", "--show", text(&image)])?);
        let rig = Self {
            size,
            kernel: dir.path().join("kernel"),
            butternut_mount: dir.path().join("ours"),
            device,
            butternut,
            _dir: dir,
        };
        fs::create_dir(&rig.kernel)?;
        fs::create_dir(&rig.butternut_mount)?;
        run("mkfs.btrfs", &["-q", text(&rig.device)])?;
        run("mount", &["-o", "noatime", text(&rig.device), text(&rig.kernel)])?;
        rig.populate()?;
        run("umount", &[text(&rig.kernel)])?;
        run("mount", &["-o", "ro", text(&rig.device), text(&rig.kernel)])?;
        Ok(rig)
    }

    pub(crate) fn stream(&self) -> PathBuf {
        self.kernel.join("stream")
    }

    fn populate(&self) -> Result<()> {
        write_noise(&self.stream(), self.size.stream_bytes)?;
        let zstd = self.kernel.join("zstd");
        File::create(&zstd)?;
        run("btrfs", &["property", "set", text(&zstd), "compression", "zstd"])?;
        write_words(&zstd, self.size.zstd_bytes)?;
        let mut deep = self.kernel.clone();
        for level in 0..7 {
            deep.push(format!("level-{level}"));
        }
        fs::create_dir_all(&deep)?;
        fs::write(deep.join("leaf"), b"found")?;
        let wide = self.kernel.join("wide");
        fs::create_dir(&wide)?;
        for index in 0..10_000 {
            fs::write(wide.join(format!("entry-{index:05}")), b"")?;
        }
        let small = self.kernel.join("small");
        for index in 0..self.size.small_files {
            let dir = small.join(format!("{:03}", index % 100));
            if index < 100 {
                fs::create_dir_all(&dir)?;
            }
            fs::write(dir.join(format!("file-{index}")), format!("contents of {index}\n"))?;
        }
        run("sync", &[])?;
        Ok(())
    }

    /// Mounts the volume with Butternut, with nothing cached. Dropping the result unmounts it.
    pub(crate) fn mount(&self) -> Result<Mounted<'_>> {
        run(
            text(&self.butternut),
            &["mount", text(&self.device), text(&self.butternut_mount), "-o", "ro"],
        )?;
        Ok(Mounted(self))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for (program, target) in [("umount", &self.kernel), ("losetup", &self.device)] {
            let args: &[&str] =
                if program == "losetup" { &["-d", text(target)] } else { &[text(target)] };
            if let Err(error) = run(program, args) {
                let written = writeln!(std::io::stderr(), "bench: {error:#}");
                drop(written);
            }
        }
    }
}

/// The volume, mounted by Butternut.
pub(crate) struct Mounted<'a>(&'a Rig);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = run(text(&self.0.butternut), &["umount", text(&self.0.butternut_mount)])
        {
            let written = writeln!(std::io::stderr(), "bench: {error:#}");
            drop(written);
        }
    }
}

/// Returns the next number of a pseudo-random sequence (xorshift64). The state must not be 0.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Writes bytes that do not compress, the same in every run.
pub(crate) fn write_noise(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut block = vec![0_u8; 1 << 20];
    for _ in 0..bytes >> 20 {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&next(&mut state).to_le_bytes());
        }
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Writes text that compresses to about a third, the same in every run.
fn write_words(path: &Path, bytes: u64) -> Result<()> {
    const WORDS: [&str; 16] = [
        "extent", "chunk", "block", "group", "leaf", "node", "device", "stripe", "inode", "root",
        "tree", "sector", "logical", "physical", "parity", "mirror",
    ];
    let mut file =
        std::io::BufWriter::with_capacity(1 << 20, fs::OpenOptions::new().write(true).open(path)?);
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut written = 0;
    while written < bytes {
        next(&mut state);
        let word = WORDS[usize::try_from(state >> 60)?];
        let line = format!("{word} {} ", state & 0xFFF);
        file.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    file.flush()?;
    file.get_ref().sync_all()?;
    Ok(())
}

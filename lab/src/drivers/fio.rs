//! Drives a row with fio: writes the job file for the target, lays the files out, runs the job.
//!
//! ```text
//! Row + Place -> job file: [global], then a section for each job
//!                  |-- create_only=1: lays the files out; the caches are dropped
//!                  `-- measured: JSON with histograms, bandwidth logs by second
//! ```
//!
//! 1. The same row becomes the same job on each target: only the engine, the name of the file and
//!    the options of the lane (`mode`) differ.
//! 2. On a block device each file is a range of the device.
//! 3. The sections of a file are groups of their own (`new_group`), reported apart.

use super::{Measured, fio_result};
use crate::child::Job;
use crate::scenario::rows::Row;
use crate::scenario::{Variables, scalar};
use crate::target::session::Place;
use crate::target::{Kind, Target};
use crate::tools::Tools;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A job without a duration is killed after this long.
const UNTIMED_LIMIT: Duration = Duration::from_hours(1);
/// A timed job is killed when it takes this much longer than it should.
const GRACE: Duration = Duration::from_mins(5);
/// Offsets of files on a block device are multiples of this, in bytes.
const RANGE_ALIGNMENT: u64 = 1 << 20;

/// What a job of a row runs with.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) row: &'a Row,
    pub(crate) place: &'a Place,
    /// The kind of the target, as scenarios name it.
    pub(crate) kind: &'a str,
    /// Switches of Butternut.
    pub(crate) switches: &'a Variables,
    /// Size of Butternut's page cache, in bytes.
    pub(crate) page_cache_bytes: Option<u64>,
    pub(crate) tools: &'a Tools,
    /// Servers of fio that run the job in place of this machine, each all of it.
    pub(crate) servers: &'a [String],
    /// A directory for the job file, the results and the logs.
    pub(crate) work: &'a Path,
}

impl Run<'_> {
    /// Lays the files of the row out.
    ///
    /// # Errors
    /// fio fails, for example because the device is full.
    pub(crate) fn lay_out(&self) -> Result<()> {
        if matches!(self.place, Place::Block(_)) {
            return Ok(());
        }
        let job = self.start("layout", true, |command| command)?;
        job.wait(UNTIMED_LIMIT, || {}).context("laying out the files")
    }

    /// Runs the job and returns its figures. `wrap` may put the command into another one; `watch`
    /// is called while the job runs.
    ///
    /// # Errors
    /// fio fails or completes no operation.
    pub(crate) fn measure(
        &self,
        wrap: impl FnOnce(Vec<String>) -> Vec<String>,
        watch: impl FnMut(),
    ) -> Result<Measured> {
        let row = self.row;
        let limit = if row.scenario.timed {
            Duration::from_secs(u64::from(row.seconds + row.ramp)) + GRACE
        } else {
            UNTIMED_LIMIT
        };
        let job = self.start("job", false, wrap)?;
        job.wait(limit, watch)?;
        let text = fs::read_to_string(self.work.join("job.json")).context("fio wrote no result")?;
        let mut measured = fio_result::parse(&text, &row.scenario.job)?;
        for (name, figures) in &mut measured.jobs {
            figures.series = fio_result::series(&self.work.join(format!("{name}_bw.log")));
        }
        measured.all.series =
            fio_result::sum(measured.jobs.values().map(|figures| &figures.series[..]));
        Ok(measured)
    }

    fn start(
        &self,
        name: &str,
        is_layout: bool,
        wrap: impl FnOnce(Vec<String>) -> Vec<String>,
    ) -> Result<Job> {
        let file = self.work.join(format!("{name}.fio"));
        let result = self.work.join(format!("{name}.json"));
        drop(fs::remove_file(&result));
        for job in self.row.scenario.job.keys() {
            drop(fs::remove_file(self.work.join(format!("{job}_bw.log"))));
        }
        fs::write(&file, self.job_file(is_layout)?)
            .with_context(|| format!("{}: cannot be written", file.display()))?;
        let mut command = vec![
            self.tools.fio.clone(),
            "--output-format=json+".into(),
            format!("--output={}", result.display()),
        ];
        let file = file.display().to_string();
        if self.servers.is_empty() {
            command.push(file);
        } else {
            let of_server = |server: &String| [format!("--client={server}"), file.clone()];
            command.extend(self.servers.iter().flat_map(of_server));
        }
        Job::start(&wrap(command), self.work, &self.work.join(format!("{name}.out")))
    }

    /// Returns the text of the job file.
    ///
    /// # Errors
    /// An option cannot be evaluated, or the files do not fit on the device.
    pub(crate) fn job_file(&self, is_layout: bool) -> Result<String> {
        let row = self.row;
        let mut text = String::from("[global]\nthread\nrandrepeat=0\n");
        if is_layout {
            text.push_str("create_only=1\n");
        }
        if row.scenario.timed {
            write!(text, "time_based\nruntime={}\n", row.seconds)?;
            if row.ramp > 0 {
                writeln!(text, "ramp_time={}", row.ramp)?;
            }
        }
        self.engine(&mut text)?;
        let mut offset = 0;
        for (name, options) in &row.scenario.job {
            write!(text, "\n[{name}]\nnew_group\ngroup_reporting\n")?;
            self.section(&mut text, name, options, &mut offset)
                .with_context(|| format!("{}: job {name:?}", row.name))?;
        }
        Ok(text)
    }

    /// Writes the options of fio's engine.
    fn engine(&self, text: &mut String) -> Result<()> {
        let Place::Volume(volume) = self.place else {
            writeln!(text, "ioengine=io_uring")?;
            return Ok(());
        };
        let engine = self.tools.engine.as_ref().context("the fio engine is missing")?;
        writeln!(text, "ioengine=external:{}", engine.display())?;
        writeln!(text, "volume={}", volume.display())?;
        let mut options: Vec<String> = mount_options(self.switches);
        options.extend(self.page_cache_bytes.map(|bytes| format!("page_cache={bytes}")));
        options.push(format!("stats={}", self.stats_path().display()));
        writeln!(text, "mount_options={}", options.join(","))?;
        writeln!(text, "buffers={}", self.switches.get("buffers").map_or("borrowed", |b| b))?;
        if self.row.scenario.in_place {
            writeln!(text, "nodatacow=1")?;
        }
        Ok(())
    }

    /// Where the engine writes its counters when it closes the volume.
    pub(crate) fn stats_path(&self) -> PathBuf {
        self.work.join("stats.json")
    }

    fn section(
        &self,
        text: &mut String,
        name: &str,
        options: &toml::Table,
        offset: &mut u64,
    ) -> Result<()> {
        let row = self.row;
        let (size, copies) = row.job_files(options)?;
        writeln!(text, "size={size}")?;
        let lane = row.option(options, "mode")?;
        self.mode(text, lane.as_deref().unwrap_or("direct"))?;
        self.files(text, options, size, copies, offset)?;
        // Servers write their logs on their own machines.
        if !options.contains_key("gtod_reduce") && self.servers.is_empty() {
            let log = self.work.join(name);
            write!(text, "write_bw_log={}\nlog_avg_msec=1000\nper_job_logs=0\n", log.display())?;
        }
        let own = ["size", "mode", "file", "files"];
        let plain =
            options.iter().filter(|(key, value)| !value.is_table() && !own.contains(&key.as_str()));
        // Those of the target follow, because fio takes the last value.
        let of_target = options.get(self.kind).and_then(toml::Value::as_table);
        for (key, value) in plain.chain(of_target.into_iter().flatten()) {
            let value = scalar(value).context("want a text or a number")?;
            writeln!(text, "{key}={}", row.fill(&value)?)?;
        }
        Ok(())
    }

    /// Writes where the files of a section are (law 2).
    fn files(
        &self,
        text: &mut String,
        options: &toml::Table,
        size: u64,
        copies: u64,
        offset: &mut u64,
    ) -> Result<()> {
        let row = self.row;
        let shared = row.option(options, "file")?;
        let own = row.option(options, "files")?;
        let prefix = match self.place {
            Place::Block(device) => {
                let step = size.div_ceil(RANGE_ALIGNMENT) * RANGE_ALIGNMENT;
                write!(text, "filename={}\noffset={offset}\n", device.display())?;
                if own.is_some() {
                    writeln!(text, "offset_increment={step}")?;
                }
                *offset += step * copies;
                return Ok(());
            }
            Place::Directory(dir) => format!("{}/", dir.display()),
            Place::Volume(_) => "lab/".to_owned(),
        };
        match (shared, own) {
            (Some(file), _) => writeln!(text, "filename={prefix}{file}")?,
            (None, Some(files)) => {
                let server = if self.servers.is_empty() { "" } else { ".$clientuid" };
                writeln!(text, "filename_format={prefix}{files}.$jobnum{server}")?;
            }
            (None, None) => bail!("neither file nor files"),
        }
        Ok(())
    }

    /// Writes the options of a lane (law 1).
    fn mode(&self, text: &mut String, mode: &str) -> Result<()> {
        match (self.place, mode) {
            // With direct=1 fio aligns its memory, as for the other targets.
            (Place::Volume(_), "direct") => text.push_str("mode=direct\ndirect=1\n"),
            (Place::Volume(_), "buffered" | "uncached") => writeln!(text, "mode={mode}")?,
            (Place::Block(_), _) | (Place::Directory(_), "direct") => text.push_str("direct=1\n"),
            (Place::Directory(_), "buffered") => text.push_str("direct=0\n"),
            (Place::Directory(_), "uncached") => {
                ensure!(self.tools.has_uncached(), "uncached I/O of the kernel needs fio 3.40");
                text.push_str("ioengine=pvsync2\ndirect=0\nuncached=1\n");
            }
            _ => bail!("mode {mode:?}: want direct, buffered or uncached"),
        }
        Ok(())
    }
}

/// Returns the switches that are mount options; `buffers` is an option of the engine.
pub(crate) fn mount_options(switches: &Variables) -> Vec<String> {
    let options = switches.iter().filter(|(name, _)| *name != "buffers");
    options.map(|(name, value)| format!("{name}={value}")).collect()
}

/// Says why a row cannot run on a target, or nothing.
pub(crate) fn refusal(row: &Row, target: &Target, tools: &Tools) -> Option<String> {
    if row.scenario.driver != crate::scenario::Driver::Fio {
        return None;
    }
    let is_uncached =
        row.scenario.job.values().any(
            |options| matches!(row.option(options, "mode"), Ok(Some(mode)) if mode == "uncached"),
        );
    if !is_uncached {
        return None;
    }
    match &target.kind {
        Kind::Kernel { .. } | Kind::Dir(_) | Kind::Custom(_) if !tools.has_uncached() => {
            Some(format!("uncached I/O of the kernel needs fio 3.40, have {}", tools.fio_version))
        }
        Kind::Kernel { filesystem, .. } if filesystem == "btrfs" => {
            Some("the kernel's btrfs has no uncached I/O".to_owned())
        }
        // FUSE has no such flag.
        Kind::Mount => Some("a FUSE mount has no uncached I/O by request".to_owned()),
        Kind::Raw => Some("a device has no uncached I/O".to_owned()),
        Kind::Kernel { .. } | Kind::Dir(_) | Kind::Custom(_) | Kind::Butternut => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Suite;
    use crate::scenario::rows::{Changes, rows};

    const TEXT: &str = r#"
        name = "mine"
        about = "reads"
        seconds = 3
        [[scenario]]
        name = "read"
        in-place = true
        metrics = ["iops"]
        [scenario.job.a]
        rw = "randread"
        bs = "4k"
        size = "3M"
        files = "own"
        numjobs = 4
        raw = { force_async = 4 }
        kernel = { registerfiles = 1 }
        [scenario.job.b]
        rw = "write"
        size = "1M"
        file = "shared"
        mode = "buffered"
    "#;

    fn job_file(place: &Place, kind: &str) -> String {
        let suite = Suite::parse(TEXT, "mine").unwrap();
        let row = rows(&suite, &Changes::default()).unwrap().remove(0);
        let tools = Tools {
            fio: "fio".into(),
            fio_version: "3.33".into(),
            engine: Some("/e.so".into()),
            butternut: None,
            is_debug: false,
        };
        let switches = [("nosec", "off"), ("buffers", "owned")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let run = Run {
            row: &row,
            place,
            kind,
            switches: &switches.into_iter().collect(),
            page_cache_bytes: Some(65536),
            tools: &tools,
            servers: &[],
            work: Path::new("/work"),
        };
        run.job_file(false).unwrap()
    }

    #[test]
    fn a_file_on_a_device_is_a_range() {
        let text = job_file(&Place::Block("/dev/x".into()), "raw");
        assert!(text.contains("filename=/dev/x\noffset=0\noffset_increment=3145728"), "{text}");
        assert!(text.contains("filename=/dev/x\noffset=12582912\n"), "{text}");
        assert!(text.contains("force_async=4") && !text.contains("registerfiles"), "{text}");
    }

    #[test]
    fn a_file_in_a_directory_and_in_a_volume() {
        let text = job_file(&Place::Directory("/m".into()), "kernel");
        assert!(text.contains("filename_format=/m/own.$jobnum\n"), "{text}");
        assert!(text.contains("registerfiles=1") && text.contains("runtime=3"), "{text}");
        assert!(text.contains("direct=1") && text.contains("direct=0"), "{text}");
        let text = job_file(&Place::Volume("/img".into()), "butternut");
        assert!(text.contains("ioengine=external:/e.so\nvolume=/img\n"), "{text}");
        let options = "mount_options=nosec=off,page_cache=65536,stats=/work/stats.json\n";
        assert!(text.contains(options) && text.contains("buffers=owned\nnodatacow=1"), "{text}");
        assert!(text.contains("filename=lab/shared\n"), "{text}");
    }

    #[test]
    fn uncached_requests_need_a_newer_fio() {
        let text = TEXT.replace("\"buffered\"", "\"uncached\"");
        let row = rows(&Suite::parse(&text, "mine").unwrap(), &Changes::default()).unwrap();
        let tools = |version: &str| Tools {
            fio: "fio".into(),
            fio_version: version.into(),
            engine: None,
            butternut: None,
            is_debug: false,
        };
        let is_left_out = |target: &str, version: &str| {
            refusal(&row[0], &Target::parse(target).unwrap(), &tools(version)).is_some()
        };
        assert!(is_left_out("kernel:xfs", "3.33") && !is_left_out("kernel:xfs", "3.41"));
        assert!(is_left_out("kernel:btrfs", "3.41") && !is_left_out("butternut", "3.33"));
    }
}

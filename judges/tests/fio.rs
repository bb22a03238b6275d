//! fio with our engine: fio verifies the data, the kernel reads it afterwards, and invalid jobs are
//! refused.
//!
//! Without the engine (`make fio`, which needs fio's source) these tests are skipped.

use anyhow::{Context, Result, ensure};
use butternut_judges::fio::{FioVolume, engine, verify_with_kernel};
use butternut_judges::{tool, trial};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::Duration;

const MODES: [&str; 3] = ["direct", "buffered", "uncached"];
/// Profiles that are written besides that of one device, with the number of devices.
const PROFILES: [(&str, usize); 5] =
    [("raid0", 3), ("raid1", 2), ("raid1c3", 3), ("raid1c4", 4), ("raid10", 4)];
const BUFFERS: [&str; 2] = ["borrowed", "owned"];

fn main() -> ExitCode {
    let mut tests: Vec<(String, Test)> = Vec::new();
    for mode in MODES {
        for buffers in BUFFERS {
            let run = move || every_block_verifies(mode, buffers);
            tests.push((format!("every_block_verifies::{mode}::{buffers}"), Box::new(run)));
        }
    }
    for mode in MODES {
        let run = move || synced_blocks_survive_a_kill(mode);
        tests.push((format!("synced_blocks_survive_a_kill::{mode}"), Box::new(run)));
        let run = move || durable_writes_survive_a_kill(mode);
        tests.push((format!("durable_writes_survive_a_kill::{mode}"), Box::new(run)));
    }
    for (profile, devices) in PROFILES {
        let run = move || every_profile_is_written(profile, devices);
        tests.push((format!("every_profile_is_written::{profile}"), Box::new(run)));
    }
    let named: [Named; 12] = [
        ("latencies_are_of_whole_calls", latencies_are_of_whole_calls),
        ("threads_share_a_volume", threads_share_a_volume),
        ("processes_are_refused", processes_are_refused),
        ("a_second_fio_is_refused", a_second_fio_is_refused),
        ("a_missing_file_is_made_and_grown", a_missing_file_is_made_and_grown),
        ("fallocate_preallocates_space", fallocate_preallocates_space),
        ("trimmed_blocks_are_holes", trimmed_blocks_are_holes),
        ("every_sync_option_is_honoured", every_sync_option_is_honoured),
        ("files_written_in_place_are_marked", files_written_in_place_are_marked),
        ("what_was_synced_survives_a_kill", what_was_synced_survives_a_kill),
        ("every_row_runs_on_every_target", every_row_runs_on_every_target),
        ("options_that_make_no_sense_are_refused", options_that_make_no_sense_are_refused),
    ];
    tests.extend(named.map(|(name, run)| -> (String, Test) { (name.into(), Box::new(run)) }));
    let is_left_out = trial::is_without_kernel() || engine().is_none();
    let trials = tests
        .into_iter()
        .map(|(name, run)| trial::trial(&name, run).with_ignored_flag(is_left_out));
    trial::run(trials.collect())
}

type Named = (&'static str, fn() -> Result<()>);
type Test = Box<dyn FnOnce() -> Result<()> + Send>;

/// Writes blocks of several sizes, unaligned if the lane allows it; fio reads them back through the
/// same lane, and through the kernel.
fn every_block_verifies(mode: &str, buffers: &str) -> Result<()> {
    let volume = FioVolume::new("")?;
    let lane = format!("--mode={mode} --buffers={buffers} --iodepth=32 --verify=crc32c");
    for (file, words) in [
        ("random", "--rw=randwrite --bs=4k --size=16M --overwrite=1"),
        ("again", "--rw=randwrite --bs=4k --size=4M --loops=3"),
        ("long", "--rw=write --bs=1M --size=64M --end_fsync=1"),
        ("mixed", "--rw=randwrite --bsrange=4k-64k --size=16M --fsync=50"),
        ("read-too", "--rw=randrw --bs=8k --size=16M --fdatasync=40"),
    ] {
        volume.run(&format!("--filename={file} {words} {lane}"))?;
    }
    if mode != "direct" {
        volume.run(&format!("--filename=odd --rw=randwrite --bs=3k --size=6M {lane}"))?;
    }
    let kernel = volume.check_and_mount()?;
    verify_with_kernel(&kernel.root().join("random"), 4096)?;
    verify_with_kernel(&kernel.root().join("again"), 4096)?;
    verify_with_kernel(&kernel.root().join("long"), 1 << 20)?;
    if mode != "direct" {
        verify_with_kernel(&kernel.root().join("odd"), 3072)?;
    }
    Ok(())
}

/// Writes through every lane, from borrowed and owned buffers, with checksums and nodatacow.
fn every_profile_is_written(profile: &str, devices: usize) -> Result<()> {
    let volume = FioVolume::of(&format!("-d {profile} -m {profile}"), devices)?;
    let random = "--rw=randwrite --bs=4k --size=16M --iodepth=32 --verify=crc32c";
    for mode in MODES {
        for buffers in BUFFERS {
            let lane = format!("--mode={mode} --buffers={buffers} {random} --fsync=500");
            volume.run(&format!("--filename={mode}-{buffers} {lane}"))?;
        }
    }
    volume.run(&format!("--filename=in-place --nodatacow=1 --mode=direct {random}"))?;
    let kernel = volume.check_and_mount()?;
    for mode in MODES {
        for buffers in BUFFERS {
            verify_with_kernel(&kernel.root().join(format!("{mode}-{buffers}")), 4096)?;
        }
    }
    verify_with_kernel(&kernel.root().join("in-place"), 4096)
}

fn threads_share_a_volume() -> Result<()> {
    let volume = FioVolume::new("")?;
    let own = "--numjobs=4 --filename_format=dir/$jobname.$jobnum --rw=randwrite --bs=4k --size=4M \
               --iodepth=8 --verify=crc32c --direct=1 --group_reporting";
    let job = volume.run(own)?;
    ensure!(job["write"]["io_bytes"] == 16 << 20, "{job}");
    let one = "--numjobs=4 --filename=one --rw=randread --bs=4k --size=8M --iodepth=8 --direct=1";
    volume.run(one)?;
    let kernel = volume.check_and_mount()?;
    for number in 0..4 {
        verify_with_kernel(&kernel.root().join(format!("dir/job.{number}")), 4096)?;
    }
    ensure!(
        fs::metadata(kernel.root().join("one"))?.len() == 8 << 20,
        "file one has the wrong size"
    );
    Ok(())
}

/// One request after the other, so their latencies together are the duration of the job, but for
/// what fio itself does. Requests through the page cache, and syncs, are executed by the call that
/// queues them.
fn latencies_are_of_whole_calls() -> Result<()> {
    let volume = FioVolume::new("")?;
    let number = |value: &Value| value.as_f64().with_context(|| format!("{value}: no number"));
    let sum = |of: &Value| -> Result<f64> {
        Ok(number(&of["lat_ns"]["mean"])? * number(&of["lat_ns"]["N"])?)
    };
    for mode in MODES {
        let words = "--rw=write --bs=1M --size=64M --fsync=1 --iodepth=1";
        let job = volume.run(&format!("--filename={mode} --mode={mode} {words}"))?;
        let (writes, syncs) = (sum(&job["write"])?, sum(&job["sync"])?);
        let duration = number(&job["job_runtime"])? * 1e6;
        ensure!(
            writes > 0.0 && writes + syncs > 0.5 * duration,
            "{mode}: {writes} ns of writes and {syncs} ns of syncs in {duration} ns"
        );
    }
    Ok(())
}

fn processes_are_refused() -> Result<()> {
    refused("--rw=read --size=1M --numjobs=2", "cannot share an open volume (set thread=1)")
}

fn options_that_make_no_sense_are_refused() -> Result<()> {
    let threads = "--rw=write --size=1M --thread=1";
    refused(&format!("{threads} --mount_options=warp=on"), "want KEY=VALUE with KEY one of")?;
    refused(&format!("{threads} --subvolume=nowhere"), "nowhere")?;
    refused(&format!("{threads} --volume=/no/such/device"), "/no/such/device")?;
    refused(&format!("{threads} --rw=read --allow_file_create=0"), "allow_file_create=0")
}

/// fio fails with this message, and the volume is unchanged.
fn refused(words: &str, why: &str) -> Result<()> {
    let volume = FioVolume::new("")?;
    let output = volume.output(words)?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "fio {words} succeeded");
    ensure!(printed.contains("butternut: ") && printed.contains(why), "fio {words}: {printed}");
    let kernel = volume.check_and_mount()?;
    ensure!(fs::read_dir(kernel.root())?.next().is_none(), "a file was created");
    Ok(())
}

fn a_second_fio_is_refused() -> Result<()> {
    let volume = FioVolume::new("")?;
    let long = "--filename=a --rw=randwrite --bs=4k --size=4M --time_based --runtime=30";
    let mut first = volume.start(long)?;
    sleep(Duration::from_secs(2));
    let second = volume.output("--thread=1 --filename=b --rw=write --size=1M");
    first.kill()?;
    first.wait()?;
    let second = second?;
    let printed = String::from_utf8_lossy(&second.stderr);
    ensure!(!second.status.success() && printed.contains("butternut: open"), "{printed}");
    Ok(())
}

fn a_missing_file_is_made_and_grown() -> Result<()> {
    let volume = FioVolume::new("")?;
    volume.run("--filename=/a/b/read --rw=randread --bs=4k --size=8M --io_size=1M")?;
    volume.run("--filename=a/written --rw=randwrite --bs=4k --size=8M --io_size=1M")?;
    volume.run("--filename=a/part --rw=write --bs=4k --size=8M --io_size=1M --fallocate=none")?;
    let grown = "--filename=a/b/read --rw=randread --bs=4k --size=12M --io_size=1M";
    volume.run(grown)?;
    let kernel = volume.check_and_mount()?;
    let at = |path: &str| kernel.root().join(path);
    ensure!(fs::metadata(at("a/written"))?.len() == 8 << 20, "the written file has the wrong size");
    ensure!(
        fs::metadata(at("a/part"))?.len() == 1 << 20,
        "space is preallocated without a request"
    );
    let laid_out = fs::read(at("a/b/read"))?;
    ensure!(laid_out.len() == 12 << 20, "{} bytes to read", laid_out.len());
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    ensure!(!laid_out.chunks(4096).any(is_zero), "the file that is read has a hole");
    Ok(())
}

fn fallocate_preallocates_space() -> Result<()> {
    let volume = FioVolume::new("")?;
    let make = "--rw=randwrite --bs=4k --size=8M --io_size=4k";
    for how in ["native", "keep", "truncate", "none"] {
        volume.run(&format!("--filename={how} --fallocate={how} {make}"))?;
    }
    let kernel = volume.check_and_mount()?;
    let blocks =
        |how: &str| -> Result<u64> { Ok(fs::metadata(kernel.root().join(how))?.blocks() * 512) };
    for (how, want) in [("native", 8 << 20), ("keep", 8 << 20), ("truncate", 4096), ("none", 4096)]
    {
        ensure!(blocks(how)? == want, "{how}: {} bytes", blocks(how)?);
    }
    Ok(())
}

fn trimmed_blocks_are_holes() -> Result<()> {
    let volume = FioVolume::new("")?;
    volume.run("--filename=f --rw=write --bs=1M --size=8M --end_fsync=1")?;
    volume.run("--filename=f --rw=trim --bs=64k --size=4M")?;
    let kernel = volume.check_and_mount()?;
    let file = kernel.root().join("f");
    ensure!(
        fs::metadata(&file)?.blocks() * 512 == 4 << 20,
        "trimming did not free half of the space"
    );
    let bytes = fs::read(&file)?;
    ensure!(bytes.len() == 8 << 20, "trimming changed the size");
    ensure!(bytes[..4 << 20].iter().all(|byte| *byte == 0), "trimmed blocks do not read as zeroes");
    Ok(())
}

fn every_sync_option_is_honoured() -> Result<()> {
    let volume = FioVolume::new("")?;
    let write = "--filename=f --rw=randwrite --bs=4k --size=256k --iodepth=4";
    for (words, syncs) in
        [("--fsync=8", 7), ("--fdatasync=16", 3), ("--sync_file_range=write:16", 3)]
    {
        let job = volume.run(&format!("{write} {words}"))?;
        let timed = job["sync"]["lat_ns"]["N"].as_u64().context("no count of syncs")?;
        ensure!(timed >= syncs, "{words}: {timed} syncs");
    }
    for words in ["--sync=1", "--sync=dsync", "--sync=sync --direct=1"] {
        volume.run(&format!("{write} {words} --verify=crc32c"))?;
    }
    volume.check_and_mount().map(drop)
}

fn files_written_in_place_are_marked() -> Result<()> {
    let volume = FioVolume::new("")?;
    volume.run("--filename=d/f --nodatacow=1 --rw=randwrite --bs=4k --size=1M --verify=crc32c")?;
    let kernel = volume.check_and_mount()?;
    let file = kernel.root().join("d/f");
    let flags = tool::text("lsattr", &[&file])?;
    ensure!(flags.split(' ').next().is_some_and(|flags| flags.contains('C')), "{flags}");
    verify_with_kernel(&file, 4096)
}

/// Runs the job files of the lab briefly: on a file as the device, on the kernel's mount, and
/// through the engine.
fn every_row_runs_on_every_target() -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let scratch = tempfile::tempdir()?;
    let raw = scratch.path().join("raw");
    fs::File::create(&raw)?.set_len(1 << 30)?;
    let kernel = FioVolume::new("")?;
    let mount = kernel.mount()?;
    let ours = FioVolume::new("")?;
    for job in fs::read_dir(repository.join("crates/fio/jobs"))? {
        let job = job?.path();
        let row = job.file_stem().context("a job without a name")?;
        let places = [("raw", &*raw), ("kernel", mount.root()), ("butternut", ours.image())];
        for (target, place) in places {
            // The kernel's btrfs has no uncached lane.
            if target == "kernel" && row == "neighbours-d" {
                continue;
            }
            let output = Command::new(repository.join("scripts/fio-row"))
                .current_dir(scratch.path())
                .args([row, target.as_ref(), place.as_os_str()])
                .envs([("SIZE", "4M"), ("READ_SIZE", "4M"), ("RUNTIME", "1"), ("RAMP", "0")])
                .envs([("WRITERS", "4"), ("MODE", "direct")])
                .env("ENGINE", engine().context("the engine is not built (make fio)")?)
                .output()?;
            ensure!(
                output.status.success(),
                "{} on {target}: {}{}",
                row.display(),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    mount.unmount()?;
    ours.check_and_mount().map(drop)
}

/// The process is killed while it writes to other blocks; the synced blocks survive.
fn what_was_synced_survives_a_kill() -> Result<()> {
    for mode in MODES {
        let volume = FioVolume::new("")?;
        let write = format!("--mode={mode} --rw=randwrite --bs=4k --size=4M --iodepth=16");
        let mut child = volume.start(&format!(
            "--filename=synced {write} --verify=crc32c --do_verify=0 --end_fsync=1 \
             --name=more {} --stonewall --filename=more {write} --time_based --runtime=60",
            volume.engine_words()?
        ))?;
        sleep(Duration::from_secs(4));
        child.kill()?;
        child.wait()?;
        let kernel = volume.check_and_mount()?;
        verify_synced(&kernel.root().join("synced"))?;
    }
    Ok(())
}

fn verify_synced(file: &Path) -> Result<()> {
    verify_with_kernel(file, 4096).context("data that was synced before the kill")
}

/// fio syncs after every few blocks, in order, until the process is killed. What fio reported as
/// synced is in the file, and every block is whole.
fn synced_blocks_survive_a_kill(mode: &str) -> Result<()> {
    const BLOCKS_PER_SYNC: u64 = 16;
    let volume = FioVolume::new("")?;
    let printed = volume.dir().join("printed");
    let words = format!(
        "--filename=f --mode={mode} --rw=write --bs=4k --size=1G --iodepth=1 --fallocate=none \
         --fsync={BLOCKS_PER_SYNC} --verify=crc32c --do_verify=0 --status-interval=1"
    );
    let mut child = volume.start_with_output(&words, fs::File::create(&printed)?.into())?;
    let syncs = |printed: &str| -> u64 {
        let starts = printed.find('{').unwrap_or(printed.len());
        let reports = serde_json::Deserializer::from_str(&printed[starts..]).into_iter::<Value>();
        let last = reports.map_while(Result::ok).last();
        last.and_then(|last| last["jobs"][0]["sync"]["total_ios"].as_u64()).unwrap_or(0)
    };
    let mut synced = 0;
    for _ in 0..200 {
        sleep(Duration::from_millis(100));
        synced = syncs(&fs::read_to_string(&printed)?);
        if synced >= 20 {
            break;
        }
    }
    // At any time between two reports.
    sleep(Duration::from_millis(u64::from(std::process::id()) % 300));
    child.kill()?;
    child.wait()?;
    ensure!(synced >= 20, "fio made only {synced} syncs");
    let kernel = volume.check_and_mount()?;
    let file = kernel.root().join("f");
    let bytes = fs::metadata(&file)?.len();
    let want = synced * BLOCKS_PER_SYNC * 4096;
    ensure!(bytes >= want, "{bytes} bytes of {want} that were synced");
    ensure!(bytes.is_multiple_of(4096), "{bytes} bytes are not whole blocks");
    verify_with_kernel(&file, 4096)?;
    drop(kernel);
    for lane in MODES {
        let read = format!("--mode={lane} --rw=read --bs=4k --size={bytes} --verify=crc32c");
        volume.run(&format!("--filename=f {read} --readonly"))?;
    }
    Ok(())
}

/// Writes random durable blocks. fio records which of them completed, kills itself, and verifies
/// them afterwards.
fn durable_writes_survive_a_kill(mode: &str) -> Result<()> {
    let volume = FioVolume::new("")?;
    let job = format!(
        "--filename=f --mode={mode} --rw=randwrite --bs=4k --size=512M --sync=dsync \
         --randseed=71 --verify=crc32c --verify_fatal=1"
    );
    let dies =
        "--do_verify=0 --verify_state_save=1 --trigger-timeout=2 --trigger=kill${IFS}-9${IFS}$PPID";
    let mut child = volume.start(&format!("{job} --iodepth=8 {dies}"))?;
    let ended = child.wait()?;
    ensure!(ended.signal() == Some(9), "fio was not killed: {ended}");
    let states = fs::read_dir(volume.dir())?.filter_map(Result::ok);
    let states =
        states.filter(|entry| entry.file_name().to_string_lossy().contains("verify.state"));
    ensure!(states.count() == 1, "fio kept no state");
    drop(volume.check_and_mount()?);
    // With one request at a time fio stops at the first incomplete block, after all complete ones.
    let verify = "--iodepth=1 --verify_only=1 --verify_state_load=1";
    let verified = volume.run(&format!("{job} {verify}"))?;
    let blocks = verified["read"]["total_ios"].as_u64().context("no count of reads")?;
    ensure!(blocks >= 50, "only {blocks} blocks were verified");
    volume.check_and_mount().map(drop)
}

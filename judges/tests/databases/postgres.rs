//! PostgreSQL: a server that listens on a unix socket outside the volume, and two clients.

use crate::transactions::{self, DUMP_SQL, Rows, parse};
use crate::workload::{Client, Database, Workload, run, wait_until};
use anyhow::{Context, Result, ensure};
use butternut_judges::{kept, tool};
use butternut_undo::Undo;
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The server refuses to run as root, and this user owns its files.
const USER: &str = "postgres";
const CLIENTS: usize = 2;
const INSTALLED: &str = "/usr/lib/postgresql";
const END_MAX: Duration = Duration::from_mins(1);

/// Stops the server `$1` without a checkpoint, and kills it if it does not exit.
const STOP: &str = r#"
    kill -QUIT "$1"
    n=0; while [ $n -lt 100 ] && kill -0 "$1"; do sleep 0.1; n=$((n+1)); done
    kill -KILL "$1""#;

pub(crate) struct Postgres {
    programs: PathBuf,
    user: (u32, u32),
    /// A cluster with empty tables, which is copied to each volume.
    cluster: tempfile::TempDir,
}

/// A running server. It is stopped without a checkpoint when this is dropped.
struct Server {
    process: Child,
    _undo: Undo,
}

impl Postgres {
    pub(crate) fn new() -> Result<Self> {
        let missing = "PostgreSQL is missing: `scripts/setup` installs it";
        let versions = std::fs::read_dir(INSTALLED).context(missing)?;
        let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
        let has_server = |programs: &PathBuf| programs.join("initdb").exists();
        let programs = programs.filter(has_server).max().context(missing)?;
        let id = |kind| -> Result<u32> { Ok(tool::text("id", &[kind, USER])?.parse()?) };
        let user = (id("-u")?, id("-g")?);
        let prefix = "butternut-judge-postgres-";
        let cluster = tempfile::Builder::new().prefix(prefix).tempdir_in(kept::scratch())?;
        std::fs::set_permissions(cluster.path(), PermissionsExt::from_mode(0o755))?;
        let postgres = Self { programs, user, cluster };
        postgres.make_cluster()?;
        Ok(postgres)
    }

    fn make_cluster(&self) -> Result<()> {
        let (root, outside) = (self.cluster.path(), tempfile::tempdir()?);
        std::fs::set_permissions(outside.path(), PermissionsExt::from_mode(0o755))?;
        self.own(&data(root))?;
        let mut command = self.as_user("initdb");
        command.arg("-D").arg(data(root)).args(["--no-sync", "--data-checksums"]);
        command.args(["--auth=trust", "--wal-segsize=1", "--locale=C", "-E", "SQL_ASCII"]);
        run(&mut command, outside.path(), "")?;
        let server = self.serve(root, outside.path())?;
        let script = format!("CREATE EXTENSION amcheck;\n{}", transactions::create_sql(CLIENTS));
        run(&mut self.psql(outside.path()), outside.path(), &script)?;
        server.stop()
    }

    /// Returns a command that runs as the user of the server.
    fn as_user(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]);
        command.arg(self.programs.join(program)).current_dir("/");
        command
    }

    /// Returns psql with lines "table|id|body" as its output, which fails at the first error.
    fn psql(&self, outside: &Path) -> Command {
        let mut command = Command::new("stdbuf");
        command.arg("-oL").arg(self.programs.join("psql")).arg("-h").arg(socket(outside));
        command.args(["-U", USER, "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-f", "-"]);
        command
    }

    fn own(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        chown(directory, Some(self.user.0), Some(self.user.1))?;
        Ok(std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700))?)
    }

    /// Starts the server, and waits until it accepts connections.
    fn serve(&self, root: &Path, outside: &Path) -> Result<Server> {
        self.own(&socket(outside))?;
        // The server does not start beside one whose process id, stored in this file, exists. In
        // a volume after a crash it is the id of another process.
        std::fs::remove_file(data(root).join("postmaster.pid")).ok();
        let log = outside.join("server.log");
        let sockets = format!("unix_socket_directories={}", socket(outside).display());
        let mut command = self.as_user("postgres");
        command.arg("-D").arg(data(root)).args(["-c", "listen_addresses=", "-c", &sockets]);
        // Many checkpoints, and many renamed WAL segments.
        command.args(["-c", "shared_buffers=8MB", "-c", "max_wal_size=4MB", "-c"]);
        command.args(["min_wal_size=2MB", "-c", "fsync=on", "-c", "synchronous_commit=on"]);
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("setpriv")?;
        let undo = Undo::at_death(STOP, &[process.id().to_string()])?;
        let mut server = Server { process, _undo: undo };
        wait_until("PostgreSQL", || {
            let ended = server.process.try_wait()?;
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            ensure!(ended.is_none(), "PostgreSQL has ended: {}", said());
            let ready = Command::new(self.programs.join("pg_isready"))
                .arg("-q")
                .arg("-h")
                .arg(socket(outside))
                .status()?;
            Ok(ready.success())
        })?;
        Ok(server)
    }
}

fn data(root: &Path) -> PathBuf {
    root.join("postgres")
}

fn socket(outside: &Path) -> PathBuf {
    outside.join("socket")
}

impl Server {
    fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let process = i32::try_from(self.process.id())?;
        let process = rustix::process::Pid::from_raw(process).context("a process")?;
        Ok(rustix::process::kill_process(process, signal)?)
    }

    /// Shuts the server down with a checkpoint.
    fn stop(mut self) -> Result<()> {
        self.signal(rustix::process::Signal::INT)?;
        let status = self.process.wait()?;
        ensure!(status.success(), "PostgreSQL: {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its children exit with it. It removes its shared memory.
        self.signal(rustix::process::Signal::QUIT).ok();
        let began = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if began.elapsed() > END_MAX {
                self.process.kill().ok();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Database for Postgres {
    fn create(&self, root: &Path, _: &Path) -> Result<()> {
        let words = ["-a".into(), data(self.cluster.path()), data(root)];
        tool::run("cp", &words).map(drop)
    }

    fn start(&self, root: &Path, outside: &Path, count: u64) -> Result<Workload> {
        let server = self.serve(root, outside)?;
        let mut workload = Workload { clients: Vec::new(), server: None };
        for client in 0..CLIENTS {
            let done = |number| format!("\\echo committed {number}");
            let script = transactions::sql(client, count, done);
            let (mut psql, name) = (self.psql(outside), format!("psql-{client}"));
            workload.clients.push(Client::start(&mut psql, outside, &name, &script)?);
        }
        workload.server = Some(Box::new(server));
        Ok(workload)
    }

    fn recover(&self, root: &Path, outside: &Path) -> Result<Rows> {
        let server = self.serve(root, outside)?;
        let mut check = Command::new(self.programs.join("pg_amcheck"));
        check.arg("-h").arg(socket(outside)).args(["-U", USER, "-d", "postgres"]);
        run(check.arg("--heapallindexed"), outside, "")?;
        let printed = run(&mut self.psql(outside), outside, DUMP_SQL)?;
        server.stop()?;
        run(self.as_user("pg_checksums").arg("-D").arg(data(root)).arg("--check"), outside, "")?;
        parse(&printed)
    }
}

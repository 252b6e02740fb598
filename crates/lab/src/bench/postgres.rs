//! A PostgreSQL server for a comparison, on loopback, with its data in a temporary folder and without syncs.
//! Dropping it stops the server and removes the folder.

use std::{
    env, fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};

pub(super) struct Postgres {
    programs: PathBuf,
    place: PathBuf,
    port: u16,
}

/// The user `nobody` of Debian, and its group.
const NOBODY: (u32, u32) = (65_534, 65_534);

impl Postgres {
    /// Starts a server with a database `quorate`. Returns `None` if PostgreSQL is not installed.
    pub(super) fn start() -> Result<Option<Postgres>> {
        let Some(programs) = programs() else { return Ok(None) };
        let place = env::temp_dir().join(format!("quorate-bench-postgres-{}", std::process::id()));
        fs::create_dir(&place)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Postgres { programs, place, port };
        if rustix::process::geteuid().is_root() {
            chown(&server.place, Some(NOBODY.0), Some(NOBODY.1))?;
        }
        let data = server.place.join("data");
        let initdb = ["--locale=C", "--encoding=UTF8", "-A", "trust", "-U", "quorate", "-D"];
        server.run("initdb", &initdb, &data)?;
        let options = format!(
            "-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='{}' -c fsync=off \
             -c max_connections=1000",
            server.place.display()
        );
        let log = server.place.join("log");
        let log = log.to_str().context("the temporary folder has a name in UTF-8")?;
        server.run("pg_ctl", &["-s", "-w", "-l", log, "-o", &options, "start", "-D"], &data)?;
        let socket = server.place.clone();
        server.run("createdb", &["-U", "quorate", "-p", &port.to_string(), "quorate", "-h"], &socket)?;
        Ok(Some(server))
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the version, such as `PostgreSQL 15.8`.
    pub(super) fn version(&self) -> Result<String> {
        let output = Command::new(self.programs.join("postgres")).arg("--version").output()?;
        let words = String::from_utf8_lossy(&output.stdout).trim().replace(['(', ')'], "");
        let number =
            words.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        Ok(format!("PostgreSQL {}", number.unwrap_or("of unknown version")))
    }

    /// Runs a program of PostgreSQL, whose last argument is a path. PostgreSQL refuses to run as root.
    fn run(&self, program: &str, arguments: &[&str], path: &Path) -> Result<()> {
        let output = self.command(program, arguments, path)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} of PostgreSQL failed: {}", error.trim());
        Ok(())
    }

    fn command(&self, program: &str, arguments: &[&str], path: &Path) -> Result<Output> {
        let program = self.programs.join(program);
        let mut command = match rustix::process::geteuid().is_root() {
            false => Command::new(program),
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(program);
                command
            }
        };
        Ok(command.args(arguments).arg(path).current_dir(&self.place).output()?)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.command("pg_ctl", &["-s", "-m", "immediate", "stop", "-D"], &self.place.join("data"));
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// Returns the folder with PostgreSQL's programs: that of `postgres` on the path, or Debian's.
fn programs() -> Option<PathBuf> {
    let on_path = env::var_os("PATH").and_then(|paths| {
        env::split_paths(&paths).map(|folder| folder.join("postgres")).find(|program| program.is_file())
    });
    if let Some(program) = on_path.and_then(|program| program.canonicalize().ok()) {
        return program.parent().map(Path::to_owned);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.flatten().map(|version| version.path().join("bin"));
    folders.filter(|folder| folder.join("postgres").is_file()).max()
}

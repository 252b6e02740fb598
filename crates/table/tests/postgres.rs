//! A PostgreSQL server to compare with, if the machine has one.
//!
//! The test starts the server in its own directory, on a Unix socket, with C collation and UTC. PostgreSQL
//! refuses to run as root, so root starts it as `postgres` or `nobody`. Without PostgreSQL, the tests report
//! that and pass.

use std::{
    io::{Seek as _, Write as _},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// A running server.
pub(crate) struct Postgres {
    programs: PathBuf,
    user: Option<&'static str>,
    home: TempDir,
}

impl Postgres {
    /// Starts a server. If this machine has no PostgreSQL, reports that on standard error and returns `None`.
    pub(crate) fn start() -> Option<Postgres> {
        let versions =
            ["18", "17", "16", "15", "14"].map(|version| format!("/usr/lib/postgresql/{version}/bin"));
        let installed = versions.iter().map(Path::new).find(|path| path.join("initdb").exists());
        let Some(programs) = installed else {
            eprintln!("skipped: there is no PostgreSQL in /usr/lib/postgresql");
            return None;
        };
        let home = tempfile::tempdir().expect("a directory");
        let root = output_of(Command::new("id").arg("-u")) == "0";
        let user =
            root.then(|| ["postgres", "nobody"].into_iter().find(|user| user_id(user).is_some())).flatten();
        if let Some(user) = user {
            chown(home.path(), user_id(user), None).expect("hand the directory over");
        }
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).expect("close the directory");
        let server = Postgres { programs: programs.to_path_buf(), user, home };
        let data = server.home.path().join("data");
        let data = data.to_str().expect("a readable path");
        server.run(
            "initdb",
            &["-D", data, "-A", "trust", "-U", "twin", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"],
        );
        let socket = server.home.path().to_str().expect("a readable path");
        let options = format!("-k {socket} -h '' -c fsync=off -c timezone=UTC -c lc_messages=C");
        let log = format!("{socket}/log");
        server.run("pg_ctl", &["-D", data, "-w", "-s", "-l", &log, "-o", &options, "start"]);
        Some(server)
    }

    /// Runs a script, and returns one line for each row of its results.
    pub(crate) fn query(&self, script: &str) -> Vec<String> {
        let socket = self.home.path().to_str().expect("a readable path");
        let arguments =
            ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", socket, "-U", "twin", "-d", "postgres"];
        // psql answers before it has read everything, so a pipe for the script could block both sides. A file
        // cannot.
        let mut input = tempfile::tempfile().expect("a file");
        input.write_all(script.as_bytes()).expect("a script");
        input.rewind().expect("a file");
        let output =
            self.command("psql", &arguments).stdin(input).stderr(Stdio::inherit()).output().expect("psql");
        assert!(output.status.success(), "psql failed");
        String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let path = self.programs.join(program);
        let mut command = match self.user {
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", user, "--"]).arg(path);
                command
            }
            None => Command::new(path),
        };
        command.args(arguments).current_dir(self.home.path());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status =
            self.command(program, arguments).stdout(Stdio::null()).status().expect("the program starts");
        assert!(status.success(), "{program} failed");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let data = self.home.path().join("data");
        let data = data.to_str().expect("a readable path");
        self.run("pg_ctl", &["-D", data, "-m", "immediate", "-s", "stop"]);
    }
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn user_id(user: &str) -> Option<u32> {
    output_of(Command::new("id").args(["-u", user])).parse().ok()
}

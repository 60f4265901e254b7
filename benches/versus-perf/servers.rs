//! redis, memcached and postgres on loopback, each with a client that counts what it did.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::cli::ServerName;
use crate::host::refused;
use crate::measure::end_with_parent;
use crate::tools::words;

/// Connections, keys, bytes of a value, and pairs of requests that are sent at once.
const CONNECTIONS: usize = 8;
const KEYS: u64 = 10_000;
const VALUE: usize = 512;
const PIPELINE: usize = 16;
const READY: Duration = Duration::from_secs(60);

/// A server; it is killed when this is dropped.
pub struct Server {
    child: Child,
    name: ServerName,
    port: u16,
    /// Of postgres: its files, and pgbench.
    postgres: Option<(tempfile::TempDir, PathBuf)>,
}

impl ServerName {
    pub fn text(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Memcached => "memcached",
            Self::Postgres => "postgres",
        }
    }

    /// What is asked of it.
    pub fn requests(self) -> &'static str {
        match self {
            Self::Redis | Self::Memcached => "sets and gets of 512 bytes by 8 connections",
            Self::Postgres => "`pgbench -S -M prepared -c 4 -j 2`, scale 5",
        }
    }
}

impl Server {
    /// Starts a server and fills it.
    ///
    /// # Errors
    /// It is not installed, which is refused; or does not get ready.
    pub fn start(name: ServerName) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let text = port.to_string();
        let (command, postgres) = match name {
            ServerName::Redis => {
                let mut command = Command::new(program("redis-server", "redis-server")?);
                command.args(["--port", &text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
                command.args(["--maxmemory", "256mb", "--dir", "/"]);
                (command, None)
            }
            ServerName::Memcached => {
                let mut command = Command::new(program("memcached", "memcached")?);
                command.args(["-l", "127.0.0.1", "-p", &text, "-U", "0", "-m", "64", "-t", "2", "-u", "nobody"]);
                (command, None)
            }
            ServerName::Postgres => {
                let (command, dir, pgbench) = postgres(&text)?;
                (command, Some((dir, pgbench)))
            }
        };
        let mut command = command;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        end_with_parent(&mut command);
        let child = command.spawn().with_context(|| name.text())?;
        let mut server = Self { child, name, port, postgres };
        drop(server.connect()?);
        if let Some((_, pgbench)) = &server.postgres {
            let begin = Instant::now();
            // It takes connections before it takes requests.
            while server.pgbench(pgbench, &["-i", "-q", "-s", "5"]).is_err() {
                if begin.elapsed() > READY {
                    server.pgbench(pgbench, &["-i", "-q", "-s", "5"])?;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        // All keys are there before anything is measured.
        server.throughput(1.0)?;
        Ok(server)
    }

    fn connect(&mut self) -> Result<TcpStream> {
        let begin = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", self.port)) {
                Ok(client) => return Ok(client),
                Err(_) if begin.elapsed() < READY && self.child.try_wait()?.is_none() => {}
                Err(error) => bail!("{} takes no connections: {error}", self.name.text()),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The CPU time in s of all its threads, and of its processes that have ended (proc_pid_stat(5)).
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_seconds(&self) -> Result<f64> {
        // Connections of postgres end a little later than pgbench.
        std::thread::sleep(Duration::from_millis(if self.postgres.is_some() { 300 } else { 0 }));
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).context(self.name.text())?;
        let (_, fields) = stat.rsplit_once(')').with_context(|| stat.clone())?;
        let ticks: u64 = fields.split_whitespace().skip(11).take(4).map_while(|field| field.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Requests a second, over this number of seconds.
    ///
    /// # Errors
    /// It answers something else.
    pub fn throughput(&mut self, seconds: f64) -> Result<f64> {
        if let Some((_, pgbench)) = &self.postgres {
            let seconds = seconds.ceil().to_string();
            let said = self.pgbench(pgbench, &["-S", "-M", "prepared", "-c", "4", "-j", "2", "-n", "-T", &seconds])?;
            let tps = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
            return tps.with_context(|| format!("pgbench said: {said}"));
        }
        let clients = (0..CONNECTIONS).map(|_| self.connect()).collect::<Result<Vec<_>>>()?;
        let name = self.name;
        let begin = Instant::now();
        let until = begin + Duration::from_secs_f64(seconds);
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (1..).zip(&clients).map(|(seed, client)| scope.spawn(move || ask(name, client, seed, until))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| bail!("a client panicked")))
                .collect::<Vec<_>>()
        });
        let sum = counts.into_iter().sum::<Result<u64>>()?;
        Ok(sum as f64 / begin.elapsed().as_secs_f64())
    }

    fn pgbench(&self, pgbench: &Path, options: &[&str]) -> Result<String> {
        let port = self.port.to_string();
        let mut command = Command::new(pgbench);
        command.args(options).args(["-h", "127.0.0.1", "-p", &port, "-U", "bench", "postgres"]);
        let said = command.stdin(Stdio::null()).output().context("pgbench")?;
        if !said.status.success() {
            bail!("pgbench failed: {}", String::from_utf8_lossy(&said.stderr));
        }
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.postgres.is_some() {
            // Its children end with it, and its shared memory, only if it is asked.
            // SAFETY: the child has not been waited for, so the id is its own.
            unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(10)
                && self.child.try_wait().is_ok_and(|status| status.is_none())
            {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends requests until the time has come; returns how many were answered.
fn ask(name: ServerName, mut client: &TcpStream, seed: u64, until: Instant) -> Result<u64> {
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(READY))?;
    let value = "v".repeat(VALUE);
    let mut rng = crate::statistics::Rng::new(seed);
    let (mut requests, mut expected, mut replies) = (String::new(), String::new(), Vec::new());
    let mut count = 0;
    while Instant::now() < until {
        requests.clear();
        expected.clear();
        for _ in 0..PIPELINE {
            let key = format!("key:{:06}", rng.bits() % KEYS);
            if name == ServerName::Redis {
                let _ = write!(requests, "SET {key} {value}\r\nGET {key}\r\n");
                let _ = write!(expected, "+OK\r\n${VALUE}\r\n{value}\r\n");
            } else {
                let _ = write!(requests, "set {key} 0 0 {VALUE}\r\n{value}\r\nget {key}\r\n");
                let _ = write!(expected, "STORED\r\nVALUE {key} 0 {VALUE}\r\n{value}\r\nEND\r\n");
            }
        }
        client.write_all(requests.as_bytes())?;
        replies.resize(expected.len(), 0);
        client.read_exact(&mut replies)?;
        if replies != expected.as_bytes() {
            bail!(
                "{} answered {}",
                name.text(),
                String::from_utf8_lossy(&replies).chars().take(100).collect::<String>()
            );
        }
        count += 2 * PIPELINE as u64;
    }
    Ok(count)
}

/// A new database cluster, and the command that serves it: postgres does not run as root.
fn postgres(port: &str) -> Result<(Command, tempfile::TempDir, PathBuf)> {
    let (postgres, initdb) = (program("postgres", "postgresql")?, program("initdb", "postgresql")?);
    let pgbench = program("pgbench", "postgresql-contrib")?;
    let (uid, gid) = user(&["postgres", "nobody"])?;
    let dir = tempfile::tempdir().context("a directory for postgres")?;
    std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).context("chown")?;
    let path = dir.path().display().to_string();
    let as_user = |program: &Path, arguments: &[String]| {
        let mut command = Command::new(program);
        command.args(arguments).uid(uid).gid(gid).current_dir("/").env("HOME", &path);
        command
    };
    let data = format!("{path}/data");
    let made =
        as_user(&initdb, &words(&["-D", &data, "-A", "trust", "-U", "bench", "--no-sync", "-E", "UTF8", "--locale=C"]))
            .stdin(Stdio::null())
            .output()
            .context("initdb")?;
    if !made.status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&made.stderr));
    }
    let options = ["-D", &data, "-p", port, "-k", &path, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"];
    let command = as_user(&postgres, &words(&[&options[..], &["-c", "shared_buffers=64MB"]].concat()));
    Ok((command, dir, pgbench))
}

/// A program in the PATH, or where Debian has those of postgres.
fn program(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut places: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    places.sort();
    // Debian's wrappers in the PATH lead to no other programs than these, whose versions then fit together.
    places.reverse();
    places.extend(std::env::split_paths(&path));
    let found = places.into_iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| refused(format!("{name} is not installed (Debian: apt-get install {package})")))
}

/// The ids of the first of these users that exists.
fn user(names: &[&str]) -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
    let of = |name: &&str| {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.first() == Some(name)).then_some(())?;
            Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
        })
    };
    names.iter().find_map(of).ok_or_else(|| refused("postgres needs a user postgres or nobody"))
}

//! Real servers with known sharing, under load, if they are installed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::score::Thread;

/// Connections at once, twice as many as redis needs to use its threads.
const CONNECTIONS: usize = 16;
/// Different keys.
const KEYS: u64 = 100_000;
/// Bytes of a value.
const VALUE: usize = 512;

/// A server under load; it is killed when this is dropped.
pub struct Server {
    child: Child,
    clients: Vec<TcpStream>,
    /// Its threads that do the work.
    pub threads: Vec<Thread>,
}

impl Server {
    pub const ALL: [&'static str; 2] = ["redis", "memcached"];

    /// Starts one of them.
    ///
    /// # Errors
    /// It is not installed, or does not become ready.
    pub fn start(name: &str) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let options = match name {
            // All of its threads read and write the clients' buffers, which are the main thread's.
            "redis" => format!("redis-server --port {port} --save  --io-threads 4 --io-threads-do-reads yes"),
            // All of its workers use one hash table.
            "memcached" => format!("memcached -l 127.0.0.1 -p {port} -t 4 -u nobody"),
            _ => bail!("there is no server {name}"),
        };
        let set: fn(u64) -> String = match name {
            "redis" => |key| format!("SET {key} "),
            _ => |key| format!("set {key} 0 0 {VALUE}\r\n"),
        };
        let mut words = options.split(' ');
        let program = words.next().unwrap_or_default();
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot run {program}"))?;
        let mut server = Self { child, clients: Vec::new(), threads: Vec::new() };
        for seed in 1..=CONNECTIONS as u64 {
            let client = server.connect(port)?;
            load(&client, seed, move |key, request| {
                request.extend(set(key).as_bytes());
                request.extend([b'v'; VALUE]);
                request.extend(b"\r\n");
                request.extend(format!("get {key}\r\n").as_bytes());
            })?;
            server.clients.push(client);
        }
        // Idle threads are distinguished from the others by their CPU time.
        std::thread::sleep(Duration::from_secs(2));
        server.threads = busy_threads(server.child.id())?;
        if server.threads.len() < 2 {
            bail!("{} of its threads is at work", server.threads.len());
        }
        Ok(server)
    }

    /// Connects, once it listens.
    fn connect(&mut self, port: u16) -> Result<TcpStream> {
        let begin = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(client) => return Ok(client),
                Err(_) if begin.elapsed() < Duration::from_secs(10) && self.child.try_wait()?.is_none() => {}
                Err(error) => return Err(error).context("it takes no connections"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for client in &self.clients {
            // Ends the threads that use it.
            let _ = client.shutdown(Shutdown::Both);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends requests as fast as possible, and drops the replies, until the connection ends.
fn load(client: &TcpStream, seed: u64, request: impl Fn(u64, &mut Vec<u8>) + Send + 'static) -> Result<()> {
    let (mut writer, mut reader) = (client.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut requests = Vec::new();
        loop {
            requests.clear();
            for _ in 0..16 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                request((random >> 11) % KEYS, &mut requests);
            }
            if writer.write_all(&requests).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        let mut replies = vec![0; 1 << 16];
        while reader.read(&mut replies).is_ok_and(|size| size > 0) {}
    });
    Ok(())
}

/// Clock ticks of CPU time (proc_pid_stat(5), fields 14 and 15) from which a thread counts.
const BUSY: u64 = 10;

/// The threads of a process that have used the CPU, as one group.
fn busy_threads(pid: u32) -> Result<Vec<Thread>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(task?.path().join("stat"))?;
        let parsed = || {
            let (before, after) = stat.rsplit_once(')')?;
            let (tid, name) = before.split_once(" (")?;
            let fields: Vec<&str> = after.split_whitespace().collect();
            let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
            Some((tid.parse().ok()?, name.to_owned(), ticks))
        };
        let (tid, name, ticks) = parsed().with_context(|| format!("what is {stat:?}"))?;
        if ticks >= BUSY {
            threads.push(Thread { group: Some("server".into()), name, pid, tid });
        }
    }
    Ok(threads)
}

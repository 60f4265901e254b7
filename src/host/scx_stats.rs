//! The sched_ext scheduler that runs, and the figures that it gives of itself: sysfs (Documentation/scheduler/sched-ext.rst), and the
//! socket of the crate scx_stats, over which all schedulers in Rust speak: a line of JSON each way, such as
//! `{"req":"stats","args":{"target":"top"}}` and `{"errno":0,"args":{"resp":...}}`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{aside, number, read_part, Roots};
use crate::sample::printable;

/// Bytes of a file of sysfs: a page.
const MAX_FILE: u64 = 4 << 10;
/// Bytes of an answer. scx_layered, which has the longest, writes less than 100 fields for each of its 16 layers.
const MAX_ANSWER: usize = 1 << 20;
/// Figures that are taken of an answer, and bytes of a name.
const MAX_NUMBERS: usize = 4096;
const MAX_NAME: usize = 256;
/// How deep tables in an answer are followed; serde_json itself stops at 128.
const MAX_DEPTH: usize = 16;
/// Counters of the kernel about the scheduler; there are about 20.
const MAX_EVENTS: usize = 64;

/// The kernel's state of sched_ext.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedExt {
    /// The name of the scheduler that is loaded, escaped for a terminal: `layered_1.1.4_x86_64_unknown_linux_gnu`.
    pub name: Option<String>,
    /// `enabled`, `disabled`, or on the way there `enabling` or `disabling`.
    pub state: String,
    /// It runs all tasks, not only those of the policy SCHED_EXT.
    pub switches_all: Option<bool>,
    /// Schedulers that were loaded since boot: another number is another scheduler, or the same begun anew.
    pub enable_seq: Option<u64>,
    /// Times that a CPU came or went.
    pub hotplug_seq: Option<u64>,
    /// Tasks that the scheduler did not take.
    pub nr_rejected: Option<u64>,
    /// Counters of the kernel, since the scheduler was loaded: `SCX_EV_SELECT_CPU_FALLBACK`. Since Linux 6.15.
    pub events: BTreeMap<String, u64>,
}

impl SchedExt {
    /// The state in sysfs; `None` if the kernel has no sched_ext.
    #[must_use]
    pub fn read(roots: &Roots) -> Option<Self> {
        let dir = roots.sys.join("kernel/sched_ext");
        let bytes = |name: &str| Some(read_part(&dir.join(name), MAX_FILE).ok()?.trim_ascii().to_vec());
        let figure = |name: &str| number(&bytes(name)?, 10);
        let events = bytes("root/events").unwrap_or_default();
        let events = events.split(|&byte| byte == b'\n').filter_map(|line| {
            let mut words = line.split(|&byte| byte == b' ');
            Some((printable(words.next()?), number(words.next()?, 10)?))
        });
        Some(Self {
            state: printable(&bytes("state")?),
            name: bytes("root/ops").filter(|name| !name.is_empty()).map(|name| printable(&name)),
            switches_all: figure("switch_all").map(|value| value != 0),
            enable_seq: figure("enable_seq"),
            hotplug_seq: figure("hotplug_seq"),
            nr_rejected: figure("nr_rejected"),
            events: events.take(MAX_EVENTS).collect(),
        })
    }
}

/// Why a scheduler gives no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoStats {
    /// No process listens there: no scheduler is loaded, or one without figures.
    #[error("no scheduler gives figures at {}", .0.display())]
    NotThere(PathBuf),
    /// The right to connect is missing.
    #[error("cannot connect to {}; run as root", .0.display())]
    Denied(PathBuf),
    /// No whole answer came in time. The connection is closed, as a late answer would be taken for the next one.
    #[error("the scheduler did not answer within {} ms", .0.as_millis())]
    NoAnswer(Duration),
    /// The scheduler closed the connection, or this side did after an error: connect again.
    #[error("the connection to the scheduler is closed")]
    Closed,
    /// The answer is longer than 1 MiB.
    #[error("the scheduler's answer is longer than {MAX_ANSWER} bytes")]
    TooLong,
    /// The answer is not of the protocol.
    #[error("the scheduler's answer is not understood: {0}")]
    NotUnderstood(String),
    /// The scheduler refuses, as for a target that it does not have.
    #[error("the scheduler refuses: {reason} (errno {errno})")]
    Refused {
        /// Its errno.
        errno: i64,
        /// Its words, escaped for a terminal.
        reason: String,
    },
    /// Any other error of the connection.
    #[error("{}: {source}", path.display())]
    Failed {
        /// The socket.
        path: PathBuf,
        /// The errno and its text.
        source: io::Error,
    },
}

/// The socket of the scheduler that runs.
#[must_use]
pub fn socket(roots: &Roots) -> PathBuf {
    roots.files.join("var/run/scx/root/stats")
}

/// A connection. Schedulers give what has changed since the last request of the same connection, so it is kept.
///
/// A scheduler answers in its main loop, after what it does there: ask from a thread that may wait.
#[derive(Debug)]
pub struct StatsClient {
    path: PathBuf,
    limit: Duration,
    stream: Option<UnixStream>,
}

impl StatsClient {
    /// Connects to a socket. Each call waits for `limit` at most.
    ///
    /// # Errors
    /// No process listens there, or the right to connect is missing.
    pub fn connect(path: &Path, limit: Duration) -> Result<Self, NoStats> {
        // connect(2) waits while the other side does not accept.
        let to = path.to_owned();
        let stream = aside::within(aside::about(path), limit, move || UnixStream::connect(to));
        let stream = stream.map_err(|_| NoStats::NoAnswer(limit))?.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                NoStats::NotThere(path.to_owned())
            }
            io::ErrorKind::PermissionDenied => NoStats::Denied(path.to_owned()),
            _ => NoStats::Failed { path: path.to_owned(), source },
        })?;
        Ok(Self { path: path.to_owned(), limit, stream: Some(stream) })
    }

    /// The figures of the target `top`, which all have, by the connection that is kept in `client`; by a new one if there is none, or if
    /// another scheduler was loaded.
    ///
    /// # Errors
    /// See [`NoStats`].
    pub fn ask(client: &mut Option<Self>, path: &Path, limit: Duration) -> Result<Numbers, NoStats> {
        let mut answer = client.as_mut().map_or(Err(NoStats::Closed), |client| client.stats("top"));
        if matches!(answer, Err(NoStats::Closed)) {
            answer = client.insert(Self::connect(path, limit)?).stats("top");
        }
        Ok(numbers(&answer?))
    }

    /// The figures of a target; all have `top`.
    ///
    /// # Errors
    /// See [`NoStats`].
    pub fn stats(&mut self, target: &str) -> Result<Value, NoStats> {
        self.request(&serde_json::json!({ "req": "stats", "args": { "target": target } }))
    }

    /// What figures there are: a table of structs with the name, type and meaning of each field.
    ///
    /// # Errors
    /// See [`NoStats`].
    pub fn meta(&mut self) -> Result<Value, NoStats> {
        self.request(&serde_json::json!({ "req": "stats_meta" }))
    }

    fn request(&mut self, request: &Value) -> Result<Value, NoStats> {
        // It is put back only where the next line will be the answer to the next request.
        let mut stream = self.stream.take().ok_or(NoStats::Closed)?;
        let line = self.exchange(&mut stream, &format!("{request}\n"))?;
        self.stream = Some(stream);
        let not_understood = |error: serde_json::Error| NoStats::NotUnderstood(error.to_string());
        let mut answer: Answer = serde_json::from_slice(&line).map_err(not_understood)?;
        let resp = answer.args.remove("resp").unwrap_or(Value::Null);
        if answer.errno == 0 {
            return Ok(resp);
        }
        let reason = resp.as_str().unwrap_or_default().lines().next().unwrap_or_default();
        let reason: String = reason.chars().take(MAX_NAME).collect();
        Err(NoStats::Refused { errno: answer.errno, reason: printable(reason.as_bytes()) })
    }

    fn exchange(&self, stream: &mut UnixStream, request: &str) -> Result<Vec<u8>, NoStats> {
        let begin = Instant::now();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NoStats::NoAnswer(self.limit),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => NoStats::Closed,
            _ => NoStats::Failed { path: self.path.clone(), source },
        };
        stream.set_write_timeout(Some(self.limit)).map_err(failed)?;
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let (mut line, mut part) = (Vec::new(), [0; 16 << 10]);
        loop {
            let left = self.limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(NoStats::NoAnswer(self.limit));
            }
            stream.set_read_timeout(Some(left)).map_err(failed)?;
            let count = match stream.read(&mut part) {
                Ok(0) => return Err(NoStats::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            let part = part.get(..count).unwrap_or_default();
            line.extend_from_slice(part);
            if line.len() > MAX_ANSWER {
                return Err(NoStats::TooLong);
            }
            // One answer follows one request, so nothing is behind the end of the line.
            match memchr::memchr(b'\n', part) {
                Some(at) if at + 1 == part.len() => return Ok(line),
                Some(_) => return Err(NoStats::NotUnderstood("more than one line".to_owned())),
                None => {}
            }
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    errno: i64,
    #[serde(default)]
    args: BTreeMap<String, Value>,
}

/// The numbers in an answer, by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// In the order of the answer; the names of nested tables are joined: `layers.batch.util`. They are the scheduler's, not escaped.
    pub values: Vec<(String, f64)>,
    /// Values that are not in it: beyond 4,096, too deep, or with too long a name.
    pub left_out: usize,
}

/// Takes the numbers of an answer; texts are left away.
#[must_use]
pub fn numbers(answer: &Value) -> Numbers {
    let mut numbers = Numbers::default();
    add(&mut numbers, &mut String::new(), answer, 0);
    numbers
}

fn add(numbers: &mut Numbers, name: &mut String, value: &Value, depth: usize) {
    let mut inner = |key: &str, value: &Value| {
        let size = name.len();
        if size > 0 {
            name.push('.');
        }
        name.push_str(key);
        add(numbers, name, value, depth + 1);
        name.truncate(size);
    };
    match value {
        Value::Object(_) | Value::Array(_) if depth >= MAX_DEPTH => numbers.left_out += 1,
        Value::Object(fields) => fields.iter().for_each(|(key, value)| inner(key, value)),
        Value::Array(values) => values.iter().enumerate().for_each(|(at, value)| inner(&at.to_string(), value)),
        Value::Number(number) => match number.as_f64() {
            Some(number) if numbers.values.len() < MAX_NUMBERS && name.len() <= MAX_NAME => {
                numbers.values.push((name.clone(), number));
            }
            _ => numbers.left_out += 1,
        },
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Long enough for a busy machine.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    /// A scheduler that gives these answers to the requests of one connection, one each, and then closes it. Returns the requests.
    fn serve(listener: UnixListener, answers: Vec<Vec<u8>>) -> thread::JoinHandle<Vec<String>> {
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut requests = Vec::new();
            for answer in answers {
                let mut request = Vec::new();
                let mut byte = [0];
                while byte != *b"\n" && stream.read(&mut byte).unwrap() == 1 {
                    request.push(byte[0]);
                }
                requests.push(String::from_utf8(request).unwrap());
                // The other side may have had enough.
                let _ = stream.write_all(&answer);
            }
            requests
        })
    }

    /// What a client gets for these answers.
    fn ask(answers: &[&str]) -> Vec<Result<Value, NoStats>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let server =
            serve(UnixListener::bind(&path).unwrap(), answers.iter().map(|it| it.as_bytes().to_vec()).collect());
        let mut client = StatsClient::connect(&path, LONG).unwrap();
        let found = answers.iter().map(|_| client.stats("top")).collect();
        drop(client);
        server.join().unwrap();
        found
    }

    #[test]
    fn figures_come_over_the_socket_that_is_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { files: dir.path().into(), ..Roots::default() };
        assert!(matches!(StatsClient::connect(&socket(&roots), LONG), Err(NoStats::NotThere(_))));
        fs::create_dir_all(socket(&roots).parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket(&roots)).unwrap();
        let answer = |resp: Value| format!("{}\n", json!({ "errno": 0, "args": { "resp": resp } })).into_bytes();
        let layers =
            json!({ "at": 5, "layers": { "a b": { "util": 1.5, "name": "x" }, "c": { "util": 2 } }, "bits": [7, 8] });
        let server = serve(listener, vec![answer(layers.clone()), answer(json!({ "top": {} })), answer(json!(-1))]);
        let mut client = StatsClient::connect(&socket(&roots), LONG).unwrap();
        assert_eq!(client.stats("top").unwrap(), layers);
        assert_eq!(client.meta().unwrap(), json!({ "top": {} }));
        assert_eq!(numbers(&client.stats("other").unwrap()).values, [(String::new(), -1.0)]);
        let requests = server.join().unwrap();
        let parsed: Vec<Value> = requests.iter().map(|it| serde_json::from_str(it).unwrap()).collect();
        assert_eq!(parsed[0], json!({ "req": "stats", "args": { "target": "top" } }));
        assert_eq!((&parsed[1], &parsed[2]["args"]["target"]), (&json!({ "req": "stats_meta" }), &json!("other")));
        let found = numbers(&layers);
        let expected =
            [("at", 5.0), ("bits.0", 7.0), ("bits.1", 8.0), ("layers.a b.util", 1.5), ("layers.c.util", 2.0)];
        assert_eq!(found.values, expected.map(|(name, value)| (name.to_owned(), value)));
        assert!(matches!(client.stats("top"), Err(NoStats::Closed)));
        // A scheduler that has ended leaves its socket.
        assert!(matches!(StatsClient::connect(&socket(&roots), LONG), Err(NoStats::NotThere(_))));
    }

    #[test]
    fn a_refusal_leaves_the_connection_and_anything_else_closes_it() {
        let refusal = r#"{"errno":22,"args":{"resp":"unknown stat target \u001b[2J\nCaused by"}}"#;
        let good = "{\"errno\":0,\"args\":{\"resp\":{}}}\n";
        let found = ask(&[&format!("{refusal}\n"), good]);
        assert!(
            matches!(&found[0], Err(NoStats::Refused { errno: 22, reason }) if reason == r"unknown stat target \x1b[2J"),
            "{found:?}"
        );
        assert!(found[1].is_ok());
        assert!(matches!(
            ask(&[&format!("{good}{good}"), good])[..],
            [Err(NoStats::NotUnderstood(_)), Err(NoStats::Closed)]
        ));
        for text in ["\n", "[]\n", "{\"args\":{}}\n", &format!("{{\"errno\":0,\"args\":{}\n", "[".repeat(100_000))] {
            assert!(matches!(ask(&[text])[..], [Err(NoStats::NotUnderstood(_))]), "{text:.40}");
        }
        assert!(matches!(ask(&["{\"errno\":0"])[..], [Err(NoStats::Closed)]), "half a line");
        assert!(matches!(ask(&[&"x".repeat(2 * MAX_ANSWER), good])[..], [Err(NoStats::TooLong), Err(NoStats::Closed)]));
    }

    #[test]
    fn a_scheduler_that_does_not_answer_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let listener = UnixListener::bind(&path).unwrap();
        let connect = || StatsClient { limit: SHORT, ..StatsClient::connect(&path, LONG).unwrap() };
        let mut client = connect();
        assert!(matches!(client.stats("top"), Err(NoStats::NoAnswer(SHORT))));
        assert!(matches!(client.stats("top"), Err(NoStats::Closed)));
        // It drips: each byte comes in time, and the line does not.
        drop((client, listener.accept().unwrap()));
        let drips = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut client = connect();
        assert!(matches!(client.stats("top"), Err(NoStats::NoAnswer(_))));
        drop(client);
        drips.join().unwrap();
    }

    #[test]
    fn a_socket_that_accepts_nobody_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let _listener = UnixListener::bind(&path).unwrap();
        // The queue of std has room for 128 and, on some systems, more; then connect(2) waits.
        let mut waiting = Vec::new();
        let refused = (0..10_000).find_map(|_| match StatsClient::connect(&path, SHORT) {
            Ok(client) => {
                waiting.push(client);
                None
            }
            Err(error) => Some(error),
        });
        assert!(matches!(refused, Some(NoStats::NoAnswer(_))), "{refused:?}");
    }

    #[test]
    fn numbers_are_bounded() {
        let many = json!((0..MAX_NUMBERS + 10).collect::<Vec<_>>());
        let found = numbers(&many);
        assert_eq!((found.values.len(), found.left_out), (MAX_NUMBERS, 10));
        let deep = (0..40).fold(json!(1), |inner, _| json!({ "x": inner, "y": 2 }));
        let found = numbers(&deep);
        assert_eq!((found.values.len(), found.left_out), (MAX_DEPTH, 1));
        let name = "n".repeat(MAX_NAME + 1);
        assert_eq!(numbers(&json!({ name: 1, "short": null })), Numbers { values: Vec::new(), left_out: 1 });
    }

    #[test]
    fn the_kernel_names_the_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sys: dir.path().into(), ..Roots::default() };
        assert_eq!(SchedExt::read(&roots), None);
        let own = dir.path().join("kernel/sched_ext");
        fs::create_dir_all(&own).unwrap();
        for (name, text) in [("state", "disabled"), ("switch_all", "0"), ("enable_seq", "4"), ("nr_rejected", "0")] {
            fs::write(own.join(name), format!("{text}\n")).unwrap();
        }
        let found = SchedExt::read(&roots).unwrap();
        assert_eq!((found.state.as_str(), &found.name, found.switches_all), ("disabled", &None, Some(false)));
        assert_eq!((found.enable_seq, found.hotplug_seq, found.events.len()), (Some(4), None, 0));
        fs::create_dir(own.join("root")).unwrap();
        fs::write(own.join("state"), "enabled\n").unwrap();
        fs::write(own.join("root/ops"), "lay\x1bered_1.1.4\n").unwrap();
        fs::write(own.join("root/events"), "SCX_EV_SELECT_CPU_FALLBACK 12\nodd\nSCX_EV_X -1\nSCX_EV_Y 0\n").unwrap();
        let found = SchedExt::read(&roots).unwrap();
        assert_eq!(found.name.as_deref(), Some(r"lay\x1bered_1.1.4"));
        assert_eq!(found.events, [("SCX_EV_SELECT_CPU_FALLBACK".to_owned(), 12), ("SCX_EV_Y".to_owned(), 0)].into());
    }

    proptest! {
        #[test]
        fn any_answer_is_bounded(text in "[\\[\\]{}:,\"0-9a-z.-]{0,60}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                prop_assert!(numbers(&value).values.len() <= text.len());
            }
        }
    }
}

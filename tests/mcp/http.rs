//! `scxprof mcp --listen`: several clients at once, each with the token.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{json, Value};

use super::client::{hello, PATIENCE};
use super::made::Made;
use super::{is_unsupported, scxprof, text, SCXPROF};

const TOKEN: &str = "0123456789abcdef-of-a-test";

/// A file that only its owner can read.
fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(root: &Path) -> Self {
        let file = root.join("token");
        secret(&file, TOKEN);
        let mut child = Command::new(SCXPROF)
            .args(["mcp", "--listen", "127.0.0.1:0", "--root", text(root), "--token-file", text(&file)])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        let address = said.trim().strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix("/mcp"));
        let address = address.unwrap_or_else(|| panic!("{said}")).to_owned();
        Self { child, address }
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            let _ = write!(head, "Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        stream
    }

    /// An answer to a request: its status, its head and its body.
    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        let mut stream = self.send(method, path, headers, body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), body.to_owned())
    }

    /// Ends it; it must end well.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A session with the server.
struct Session<'a> {
    server: &'a Server,
    id: String,
    requests: u64,
}

#[allow(clippy::needless_pass_by_value)] // Messages are made where they are sent.
impl<'a> Session<'a> {
    fn start(server: &'a Server) -> Self {
        let mut session = Self { server, id: String::new(), requests: 0 };
        let (status, head, body) =
            session.post(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello() }));
        assert_eq!(status, 200, "{body}");
        let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
        id.trim().clone_into(&mut session.id);
        session.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        session
    }

    /// Sends it; `send` is how.
    fn with<T>(&self, send: impl FnOnce(&[(&str, &str)]) -> T) -> T {
        let authorization = format!("Bearer {TOKEN}");
        let mut headers = vec![
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ];
        if !self.id.is_empty() {
            headers.extend([("Mcp-Session-Id", self.id.as_str()), ("MCP-Protocol-Version", "2025-11-25")]);
        }
        send(&headers)
    }

    fn post(&self, message: &Value) -> (u16, String, String) {
        self.with(|headers| self.server.request("POST", "/mcp", headers, &message.to_string()))
    }

    /// Begins a call whose progress is told; returns its id and its messages.
    fn begin(&mut self, tool: &str, arguments: Value) -> (u64, Events) {
        self.requests += 1;
        let token = format!("told {}", self.requests);
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": token } });
        let message = json!({ "jsonrpc": "2.0", "id": self.requests, "method": "tools/call", "params": params });
        let stream = self.with(|headers| self.server.send("POST", "/mcp", headers, &message.to_string()));
        (self.requests, Events(BufReader::new(stream)))
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.requests += 1;
        let params = json!({ "name": tool, "arguments": arguments });
        let message = json!({ "jsonrpc": "2.0", "id": self.requests, "method": "tools/call", "params": params });
        let (status, _, body) = self.post(&message);
        assert_eq!(status, 200, "{body}");
        // An event may be cut into chunks, whose sizes stand on lines of their own.
        let answers = body.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let answer = answers.into_iter().find(|answer| answer["id"] == self.requests);
        answer.unwrap_or_else(|| panic!("{body}"))["result"]["structuredContent"].clone()
    }

    fn end(self) {
        let (status, _, body) = self.with(|headers| self.server.request("DELETE", "/mcp", headers, ""));
        assert!((200..300).contains(&status), "{status} {body}");
    }
}

/// The messages of an answer, as they come.
struct Events(BufReader<TcpStream>);

impl Events {
    /// The next; `None` at the end.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let message = line.strip_prefix("data: ").and_then(|text| serde_json::from_str(text).ok());
            if message.is_some() {
                return message;
            }
        }
    }
}

#[test]
fn two_clients_work_at_once() {
    let made = Made::new();
    let server = Server::start(made.root());
    let (mut one, mut two) = (Session::start(&server), Session::start(&server));
    assert_ne!(one.id, two.id);
    let a = one.call("open_recording", json!({ "path": "samples.jsonl" }))["result"]["recording"].clone();
    let b = two.call("open_recording", json!({ "path": "sched.data" }))["result"]["recording"].clone();
    std::thread::scope(|scope| {
        let one = &mut one;
        scope.spawn(move || assert!(one.call("find_sharing", json!({ "source": a }))["result"]["cells"].is_array()));
        for _ in 0..3 {
            let found = two.call("bottlenecks", json!({ "recording": b }));
            assert!(found["result"]["bottlenecks"].is_array(), "{found}");
        }
    });
    one.end();
    assert!(two.call("topology", json!({}))["result"]["cpus"].is_array());
    server.end();
}

#[test]
fn what_a_client_started_ends_with_its_session() {
    let made = Made::new();
    let server = Server::start(made.root());
    let (mut one, mut two) = (Session::start(&server), Session::start(&server));
    let pid = std::process::id();
    let start = json!({ "event": "cpu-clock", "pid": [pid], "duration_s": 600 });
    let started = one.call("profile_start", start.clone());
    if is_unsupported("what_a_client_started_ends_with_its_session", &started) {
        return;
    }
    assert_eq!(two.call("profile_start", start)["error"]["kind"], "busy");
    assert_eq!(two.call("profile_stop", json!({}))["error"]["kind"], "busy");
    one.end();
    let until = std::time::Instant::now() + PATIENCE;
    while two.call("profile_status", json!({}))["result"]["state"] != "stopped" {
        assert!(std::time::Instant::now() < until, "it runs without its client");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    server.end();
}

/// As many calls as work at a time, which do not end by themselves: another one works only if these have ended.
fn endless_calls(session: &mut Session) -> [(u64, Events); 2] {
    let endless = session.call("open_recording", json!({ "path": "endless.jsonl" }))["result"]["recording"].clone();
    let slow = json!({ "source": endless, "time_limit_s": 1800 });
    let mut calls = [session.begin("find_sharing", slow.clone()), session.begin("find_sharing", slow)];
    for (id, events) in &mut calls {
        let told = events.next().unwrap();
        assert_eq!(told["method"], "notifications/progress", "{told}");
        assert_eq!(told["params"]["progressToken"], format!("told {id}"), "{told}");
        let more = events.next().unwrap();
        assert!(more["params"]["progress"].as_f64() > told["params"]["progress"].as_f64(), "{more}");
    }
    calls
}

#[test]
fn calls_tell_their_progress_and_end_when_they_are_cancelled() {
    let made = Made::new();
    made.endless("endless.jsonl");
    let server = Server::start(made.root());
    let mut one = Session::start(&server);
    for (id, _) in &endless_calls(&mut one) {
        let params = json!({ "requestId": id, "reason": "enough" });
        let (status, _, body) =
            one.post(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
        assert_eq!(status, 202, "{body}");
    }
    let answer = one.call("topology", json!({}));
    assert!(answer["result"]["cpus"].is_array(), "{answer}");
    server.end();
}

#[test]
fn calls_end_with_their_session() {
    let made = Made::new();
    made.endless("endless.jsonl");
    let server = Server::start(made.root());
    let (mut one, mut two) = (Session::start(&server), Session::start(&server));
    let _calls = endless_calls(&mut one);
    one.end();
    let answer = two.call("topology", json!({}));
    assert!(answer["result"]["cpus"].is_array(), "{answer}");
    server.end();
}

#[test]
fn sessions_are_bounded() {
    let made = Made::new();
    let server = Server::start(made.root());
    let mut sessions: Vec<Session> = (0..16).map(|_| Session::start(&server)).collect();
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello() });
    let nobody = Session { server: &server, id: String::new(), requests: 0 };
    assert_eq!(nobody.post(&hello).0, 503);
    sessions.pop().unwrap().end();
    sessions.push(Session::start(&server));
    assert!(sessions[0].call("topology", json!({}))["result"]["cpus"].is_array());
    server.end();
}

#[test]
fn others_are_not_served() {
    let made = Made::new();
    let server = Server::start(made.root());
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello() }).to_string();
    let good = format!("Bearer {TOKEN}");
    let types = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    let status = |path: &str, headers: &[(&str, &str)]| {
        let headers = [&types[..], headers].concat();
        server.request("POST", path, &headers, &hello).0
    };
    assert_eq!(status("/mcp", &[]), 401);
    assert_eq!(status("/mcp", &[("Authorization", "Bearer wrong-token-of-some-length")]), 401);
    assert_eq!(status("/mcp", &[("Authorization", TOKEN)]), 401);
    let with = |more: &[(&'static str, &'static str)]| {
        let mut headers = vec![("Authorization", good.as_str())];
        headers.extend(more);
        status("/mcp", &headers)
    };
    assert_eq!(with(&[]), 200);
    // A page of another site, and a name that was made to point here.
    assert_eq!(with(&[("Origin", "http://evil.example")]), 403);
    assert_eq!(with(&[("Origin", "null")]), 403);
    assert_eq!(with(&[("Origin", "http://localhost:6274")]), 200);
    assert_eq!(with(&[("Origin", "http://[::1]:6274")]), 200);
    assert_eq!(with(&[("Host", "evil.example")]), 403);
    assert_eq!(status("/other", &[("Authorization", &good)]), 404);
    let large = format!("{hello}{}", " ".repeat(2 << 20));
    let headers = [&types[..], &[("Authorization", good.as_str())]].concat();
    assert_eq!(server.request("POST", "/mcp", &headers, &large).0, 413);
    server.end();
}

#[test]
fn it_listens_only_with_a_token_and_on_this_host() {
    let made = Made::new();
    let token = made.path("token");
    secret(&token, TOKEN);
    let open = made.path("open");
    std::fs::write(&open, TOKEN).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let short = made.path("short");
    secret(&short, "short");
    for (args, said) in [
        (&["--listen", "127.0.0.1:0"][..], "--listen needs a token"),
        (&["--listen", "0.0.0.0:0", "--token-file", text(&token)], "other hosts could reach it"),
        (&["--listen", "127.0.0.1:0", "--token-file", text(&short)], "the token must have 16"),
        (&["--listen", "127.0.0.2:0", "--token-file", text(&token)], "only 127.0.0.1"),
        (&["--listen", "127.0.0.1:0", "--token-file", text(&open)], "any user can read it"),
        (&["--listen", "127.0.0.1:0", "--token-file", "/none"], "--token-file /none"),
        (&["--token-file", text(&token)], "--listen"),
        (&["--root", "/none"], "--root /none"),
        (&["--allow-write", text(&token)], "--allow-write"),
    ] {
        let output = scxprof(&[&["mcp"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(said), "{args:?}: {error}");
    }
}

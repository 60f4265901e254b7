//! A client of the protocol on stdin and stdout of the server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::schema::check;
use super::SCXPROF;

/// More than any answer takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Client {
    pub child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Value>,
    requests: u64,
    /// Notifications that came.
    pub notified: Vec<Value>,
    /// The schemas of tools.
    schemas: BTreeMap<String, (Value, Value)>,
}

#[allow(clippy::needless_pass_by_value)] // Messages are made where they are sent.
impl Client {
    /// Starts a server and greets it.
    pub fn start(root: &Path, args: &[&str]) -> Self {
        let mut client = Self::silent(root, args);
        let answer = client.request("initialize", hello());
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        assert_eq!(answer["result"]["serverInfo"]["name"], "scxprof");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    /// Starts a server.
    pub fn silent(root: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(SCXPROF);
        command.arg("mcp").arg("--root").arg(root).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (send, messages) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Nothing but messages of the protocol is written there.
                let message =
                    serde_json::from_str(&line).unwrap_or_else(|error| json!({ "wrong": format!("{error}: {line}") }));
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, messages, requests: 0, notified: Vec::new(), schemas: BTreeMap::new() }
    }

    pub fn write(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub fn send(&mut self, message: &Value) {
        self.write(&format!("{message}\n"));
    }

    /// The next message.
    #[track_caller]
    pub fn receive(&mut self) -> Value {
        let message = self.messages.recv_timeout(PATIENCE).expect("no message came");
        assert!(message.get("wrong").is_none(), "{message}");
        message
    }

    /// Sends a request; returns its id.
    pub fn ask(&mut self, method: &str, params: &Value) -> u64 {
        self.requests += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.requests, "method": method, "params": params }));
        self.requests
    }

    /// The answer to a request.
    #[track_caller]
    pub fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.receive();
            if message["id"] == id {
                return message;
            }
            assert!(message.get("method").is_some(), "an answer to what was not asked: {message}");
            self.notified.push(message);
        }
    }

    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, &params);
        self.answer(id)
    }

    /// The names of tools.
    pub fn tools(&mut self) -> Vec<String> {
        let answer = self.request("tools/list", json!({}));
        for tool in answer["result"]["tools"].as_array().unwrap() {
            let schemas = (tool["inputSchema"].clone(), tool["outputSchema"].clone());
            self.schemas.insert(tool["name"].as_str().unwrap().to_owned(), schemas);
        }
        self.schemas.keys().cloned().collect()
    }

    /// Calls a tool: the answer has the form that the tool declares, and its text says the same. Arguments are checked too, unless
    /// they are wrong on purpose.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        if self.schemas.is_empty() {
            self.tools();
        }
        let answer = self.request("tools/call", json!({ "name": tool, "arguments": arguments }));
        let result = &answer["result"];
        let structured = result["structuredContent"].clone();
        let (input, output) = &self.schemas[tool];
        check(&structured, output, tool);
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{tool}: {answer}"));
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), structured, "{tool}");
        let is_error = result["isError"] == true;
        assert_eq!(is_error, structured.get("error").is_some(), "{tool}: {structured}");
        if !is_error {
            check(&arguments, input, tool);
        }
        assert!(text.len() <= 64 << 10, "{tool}: {} bytes", text.len());
        structured
    }

    /// The result of a call, whole: all pages of all of its lists.
    #[track_caller]
    pub fn whole(&mut self, tool: &str, arguments: &Value) -> Value {
        let first = self.call(tool, arguments.clone());
        assert!(first.get("error").is_none(), "{tool} {arguments}: {first}");
        assert!(first.get("more_cut").is_none(), "{tool}: too many lists are cut to ask for each");
        let mut whole = first["result"].clone();
        let mut open: Vec<Value> = first["cut"].as_array().cloned().unwrap_or_default();
        while let Some(cut) = open.pop() {
            let list = cut["list"].as_str().unwrap().to_owned();
            let mut next = cut["next_cursor"].as_str().map(str::to_owned);
            while let Some(cursor) = next {
                let mut arguments = arguments.clone();
                arguments["cursor"] = cursor.into();
                let answer = self.call(tool, arguments);
                let page = &answer["page"];
                let rows = whole.pointer_mut(&list).unwrap().as_array_mut().unwrap();
                assert_eq!((&page["list"], &page["from"]), (&json!(list), &json!(rows.len())), "{tool}");
                assert_eq!(page["total"], cut["total"], "{tool}");
                rows.extend(page["rows"].as_array().unwrap().clone());
                open.extend(answer["cut"].as_array().cloned().unwrap_or_default());
                next = page["next_cursor"].as_str().map(str::to_owned);
            }
            assert_eq!(whole.pointer(&list).unwrap().as_array().unwrap().len() as u64, cut["total"], "{tool} {list}");
        }
        whole
    }

    /// The kind of the error of a call.
    #[track_caller]
    pub fn refused(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments.clone());
        let error = &answer["error"];
        for part in ["message", "do"] {
            assert!(error[part].as_str().is_some_and(|text| text.len() > 5), "{tool} {arguments}: {answer}");
        }
        error["kind"].as_str().unwrap().to_owned()
    }

    /// Opens a recording; returns its id.
    #[track_caller]
    pub fn open(&mut self, path: &str) -> String {
        let answer = self.call("open_recording", json!({ "path": path }));
        answer["result"]["recording"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Resident memory of the server, KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Goes away; returns the exit code of the server.
    #[track_caller]
    pub fn leave(mut self) -> Option<i32> {
        self.stdin = None;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "the server goes on without its client");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The parameters of `initialize`.
pub fn hello() -> Value {
    json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } })
}

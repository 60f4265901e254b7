//! The client of the official SDK: it reads every message by the types of the protocol, and greets, lists, calls and cancels as the
//! programs do that are built on it.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, GetPromptRequestParams, ProgressNotificationParam,
    ProgressToken, ReadResourceRequestParams, Request, ResourceContents, ResourceUpdatedNotificationParam,
    SubscribeRequestParams, Tool,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RequestHandle, RunningService};
use rmcp::{ClientHandler, RoleClient, ServiceError, ServiceExt};
use serde_json::{json, Value};
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};

use super::client::PATIENCE;
use super::made::Made;
use super::schema::check;
use super::{is_unsupported, text, SCXPROF};

/// What the server says unasked.
#[derive(Debug)]
enum Said {
    Progress(ProgressNotificationParam),
    Updated(String),
}

struct Listener(UnboundedSender<Said>);

impl ClientHandler for Listener {
    async fn on_progress(&self, told: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let _ = self.0.send(Said::Progress(told));
    }

    async fn on_resource_updated(&self, told: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        let _ = self.0.send(Said::Updated(told.uri));
    }
}

/// A server and the client that started it.
struct Agent {
    child: Child,
    service: RunningService<RoleClient, Listener>,
    said: UnboundedReceiver<Said>,
    tools: Vec<Tool>,
}

/// What comes within the time that anything takes.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("nothing came")
}

fn in_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

impl Agent {
    async fn start(root: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(SCXPROF);
        command.args(["mcp", "--root", text(root)]).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let from = pipe::Receiver::from_owned_fd(child.stdout.take().unwrap().into()).unwrap();
        let to = pipe::Sender::from_owned_fd(child.stdin.take().unwrap().into()).unwrap();
        let (send, said) = unbounded_channel();
        let service = soon(Listener(send).serve((from, to))).await.unwrap();
        let tools = soon(service.list_all_tools()).await.unwrap();
        Self { child, service, said, tools }
    }

    fn params(tool: &str, arguments: &Value) -> CallToolRequestParams {
        CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments.as_object().unwrap().clone())
    }

    /// The structured answer of a tool, which is as the tool declares it.
    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let result = soon(self.service.call_tool(Self::params(tool, &arguments))).await;
        let result = result.unwrap_or_else(|error| panic!("{tool} {arguments}: {error}"));
        let answer = result.structured_content.unwrap();
        let declared = self.tools.iter().find(|it| it.name == tool).unwrap();
        check(&arguments, &Value::Object((*declared.input_schema).clone()), tool);
        check(&answer, &Value::Object((**declared.output_schema.as_ref().unwrap()).clone()), tool);
        assert_eq!(result.is_error == Some(true), answer.get("error").is_some(), "{tool}: {answer}");
        let copy = result.content[0].as_text().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&copy.text).unwrap(), answer, "{tool}");
        answer
    }

    /// Begins a call that can be cancelled; the client gives each a token for its progress.
    async fn begin(&self, tool: &str, arguments: Value) -> RequestHandle<RoleClient> {
        let request: CallToolRequest = Request::new(Self::params(tool, &arguments));
        let request = ClientRequest::CallToolRequest(request);
        self.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap()
    }

    async fn open(&self, path: &str) -> Value {
        self.call("open_recording", json!({ "path": path })).await["result"]["recording"].clone()
    }

    /// Waits for a message that the server sends unasked.
    async fn until<T>(&mut self, is_it: impl Fn(&Said) -> Option<T>) -> T {
        loop {
            let said = soon(self.said.recv()).await.expect("the server has gone");
            if let Some(found) = is_it(&said) {
                return found;
            }
        }
    }

    /// Goes away; the server ends well then.
    async fn leave(mut self) {
        soon(self.service.close()).await.unwrap();
        let child = &mut self.child;
        let ended = soon(async {
            loop {
                match child.try_wait().unwrap() {
                    Some(ended) => break ended,
                    None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
                }
            }
        });
        assert_eq!(ended.await.code(), Some(0));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_calls_every_tool() {
    in_runtime(async {
        let made = Made::new();
        let out = made.path("out");
        std::fs::create_dir(&out).unwrap();
        let agent = Agent::start(made.root(), &["--allow-write", text(&out)]).await;
        let server = agent.service.peer_info().unwrap();
        assert_eq!(server.server_info.as_ref().unwrap().name, "scxprof");
        assert!(server.instructions.as_deref().is_some_and(|it| it.contains("open_recording")));
        let mut unseen: BTreeSet<&str> = agent.tools.iter().map(|tool| &*tool.name).collect();
        let (samples, other) = (agent.open("samples.jsonl").await, agent.open("other.jsonl").await);
        let (sched, trace) = (agent.open("sched.data").await, agent.open("trace.pb").await);
        unseen.remove("open_recording");
        let found = agent.call("find_sharing", json!({ "source": samples })).await;
        let cell = &found["result"]["cells"][0];
        let group = format!("{}/{}", cell["name"].as_str().unwrap(), cell["subcells"][0]["name"].as_str().unwrap());
        let of_process = json!({ "pid": [std::process::id()], "duration_s": 600 });
        let with = |more: Value| {
            let mut arguments = of_process.clone();
            arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            arguments
        };
        let calls = [
            ("find_sharing", json!({ "source": samples })),
            ("explain_group", json!({ "source": samples, "group": group })),
            ("hot_lines", json!({ "source": samples })),
            ("score_configuration", json!({ "source": samples, "paths": ["cells.json"] })),
            ("make_configuration", json!({ "source": samples, "write_to": "cells.json" })),
            ("diff", json!({ "before": samples, "after": other })),
            ("scheduling_stats", json!({ "source": sched, "by": "thread" })),
            ("wakers", json!({ "source": sched })),
            ("latency_outliers", json!({ "source": sched })),
            ("recording_info", json!({ "recording": trace })),
            ("analyze", json!({ "recording": trace })),
            ("query_events", json!({ "recording": sched, "types": ["sched_wak*"] })),
            ("timeline", json!({ "recording": sched, "cpu": 0 })),
            ("detect_outliers", json!({ "recording": sched })),
            ("bottlenecks", json!({ "recording": sched })),
            ("correlate_wakeup", json!({ "recording": sched })),
            ("export", json!({ "recording": samples, "form": "report", "path": "report.json" })),
            ("doctor", json!({})),
            ("topology", json!({})),
            ("list_events", json!({ "contains": "cache" })),
        ];
        for (tool, arguments) in calls {
            let answer = agent.call(tool, arguments).await;
            assert!(answer.get("result").is_some(), "{tool}: {answer}");
            unseen.remove(tool);
        }
        for (begin, rest, end, arguments) in [
            ("capture_start", &["capture_status"][..], "capture_stop", with(json!({ "from": "timer" }))),
            (
                "profile_start",
                &["profile_status", "profile_results"],
                "profile_stop",
                with(json!({ "event": "cpu-clock" })),
            ),
        ] {
            let started = agent.call(begin, arguments).await;
            let is_there = !is_unsupported("it_calls_every_tool", &started);
            for tool in rest.iter().chain([&end]) {
                let answer = agent.call(tool, json!({})).await;
                let kind = &answer["error"]["kind"];
                assert!(if is_there { kind.is_null() } else { kind == "not_running" }, "{tool}: {answer}");
                unseen.remove(tool);
            }
            unseen.remove(begin);
        }
        assert!(unseen.is_empty(), "{unseen:?}");
        // A tool that does not exist is an error of the protocol.
        let none = agent.service.call_tool(CallToolRequestParams::new("none")).await;
        assert!(matches!(none, Err(ServiceError::McpError(error)) if error.code.0 == -32602));
        agent.leave().await;
    });
}

#[test]
fn it_follows_the_pages_of_a_list() {
    in_runtime(async {
        let made = Made::new();
        let agent = Agent::start(made.root(), &[]).await;
        let sched = agent.open("sched.data").await;
        let mut arguments = json!({ "recording": sched, "cpu": 0, "limit": 50 });
        let first = agent.call("timeline", arguments.clone()).await;
        let total = first["cut"][0]["total"].as_u64().unwrap();
        let mut rows = first["result"]["spans"].as_array().unwrap().len() as u64;
        let mut next = first["cut"][0]["next_cursor"].clone();
        while next.is_string() {
            arguments["cursor"] = next;
            let page = agent.call("timeline", arguments.clone()).await["page"].clone();
            rows += page["rows"].as_array().unwrap().len() as u64;
            next = page["next_cursor"].clone();
        }
        assert_eq!(rows, total);
        agent.leave().await;
    });
}

#[test]
#[allow(deprecated)] // Subscriptions are those of the version of the protocol that the server speaks.
fn it_reads_resources_and_prompts_and_hears_of_changes() {
    in_runtime(async {
        let made = Made::new();
        let mut agent = Agent::start(made.root(), &[]).await;
        let resources = soon(agent.service.list_all_resources()).await.unwrap();
        assert_eq!(resources.len(), 13);
        for resource in &resources {
            let read = soon(agent.service.read_resource(ReadResourceRequestParams::new(resource.uri.clone()))).await;
            let read = read.unwrap();
            let ResourceContents::TextResourceContents { text, uri, .. } = &read.contents[0] else {
                panic!("{read:?}");
            };
            assert_eq!(uri, &resource.uri);
            assert!(serde_json::from_str::<Value>(text).unwrap()["result"].is_object(), "{text}");
        }
        assert!(soon(agent.service.list_all_resource_templates()).await.unwrap().is_empty());
        for prompt in soon(agent.service.list_all_prompts()).await.unwrap() {
            let arguments =
                prompt.arguments.iter().flatten().map(|it| (it.name.clone(), json!("web.tar.gz"))).collect();
            let params = GetPromptRequestParams::new(prompt.name.clone()).with_arguments(arguments);
            assert!(!soon(agent.service.get_prompt(params)).await.unwrap().messages.is_empty(), "{}", prompt.name);
        }
        let uri = "scxprof://profile/status";
        soon(agent.service.subscribe(SubscribeRequestParams::new(uri))).await.unwrap();
        let start = json!({ "event": "cpu-clock", "pid": [std::process::id()], "duration_s": 600 });
        let started = agent.call("profile_start", start).await;
        if is_unsupported("it_reads_resources_and_prompts_and_hears_of_changes", &started) {
            return;
        }
        agent.until(|said| matches!(said, Said::Updated(updated) if updated == uri).then_some(())).await;
        agent.call("profile_stop", json!({})).await;
        agent.leave().await;
    });
}

#[test]
fn it_hears_of_progress_and_cancels() {
    in_runtime(async {
        let made = Made::new();
        made.endless("endless.jsonl");
        let mut agent = Agent::start(made.root(), &[]).await;
        let endless = agent.open("endless.jsonl").await;
        let slow = json!({ "source": endless, "time_limit_s": 1800 });
        // As many as work at a time: another one works only if these have ended.
        let calls = [agent.begin("find_sharing", slow.clone()).await, agent.begin("find_sharing", slow).await];
        let mut open: HashSet<ProgressToken> = calls.iter().map(|it| it.progress_token.clone()).collect();
        while !open.is_empty() {
            let told = agent.until(|said| if let Said::Progress(it) = said { Some(it.clone()) } else { None }).await;
            // Calls that are over had a token too.
            if open.remove(&told.progress_token) {
                assert!(told.message.is_some_and(|it| it.starts_with("find_sharing: ")) && told.progress >= 0.0);
            }
        }
        for call in calls {
            call.cancel(Some("enough".to_owned())).await.unwrap();
        }
        assert!(agent.call("topology", json!({})).await["result"]["cpus"].is_array());
        agent.leave().await;
    });
}

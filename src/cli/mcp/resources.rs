//! Resources: what is known now of this host, of its capture and of profiling, each by a URI that a client can subscribe to.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{json, Map, Value};

use super::context::{Context, Shared};
use super::error::{Kind, ToolError};
use super::page::{value_of, Document};
use super::tools::{capture_status, profile_results, topology};
use crate::host::scx_stats::{socket, Numbers, SchedExt, StatsClient};
use crate::host::Roots;
use crate::session::Around;
use crate::stacks::By as StackBy;
use scxprof_sched::report::By;

/// A resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resource {
    pub(super) uri: &'static str,
    pub(super) name: &'static str,
    pub(super) says: &'static str,
    kind: ResourceKind,
}

/// Where it comes from.
#[derive(Debug, Clone, Copy)]
enum ResourceKind {
    Topology,
    Scheduler,
    Capture,
    ProfileStatus,
    ProfileResults,
    /// Statistics of the capture.
    Stats(By),
    Dsqs,
}

/// All resources.
pub(super) const RESOURCES: [Resource; 13] = [
    resource(
        "scxprof://topology",
        "topology",
        "CPUs, last-level caches and nodes of this host",
        ResourceKind::Topology,
    ),
    resource(
        "scxprof://scheduler",
        "scheduler",
        "The sched_ext scheduler that is loaded, if any, and its own figures",
        ResourceKind::Scheduler,
    ),
    resource("scxprof://capture", "capture", "What the capture of this host does", ResourceKind::Capture),
    resource(
        "scxprof://profile/status",
        "profile status",
        "Whether call stacks are profiled",
        ResourceKind::ProfileStatus,
    ),
    resource(
        "scxprof://profile/results",
        "profile results",
        "Functions and call stacks with the most samples",
        ResourceKind::ProfileResults,
    ),
    resource("scxprof://stats/cpu", "CPUs", "Accesses and scheduling of each CPU", ResourceKind::Stats(By::Cpu)),
    resource(
        "scxprof://stats/llc",
        "caches",
        "The same of each last-level cache, and its memory bandwidth and occupancy where resctrl has them",
        ResourceKind::Stats(By::Llc),
    ),
    resource("scxprof://stats/node", "nodes", "The same of each NUMA node", ResourceKind::Stats(By::Node)),
    resource("scxprof://stats/process", "processes", "The same of each process", ResourceKind::Stats(By::Process)),
    resource("scxprof://stats/thread", "threads", "The same of each thread", ResourceKind::Stats(By::Thread)),
    resource("scxprof://stats/cgroup", "cgroups", "The same of each cgroup", ResourceKind::Stats(By::Cgroup)),
    resource(
        "scxprof://stats/cell",
        "cells",
        "The same of each cell of a configuration",
        ResourceKind::Stats(By::Cell),
    ),
    resource(
        "scxprof://stats/dsq",
        "dispatch queues",
        "The dispatch queues of a sched_ext scheduler",
        ResourceKind::Dsqs,
    ),
];

const fn resource(uri: &'static str, name: &'static str, says: &'static str, kind: ResourceKind) -> Resource {
    Resource { uri, name, says, kind }
}

/// The resource of this URI.
pub(super) fn find(uri: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|resource| resource.uri == uri)
}

/// How long a scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Functions and stacks of a profile.
const MAX_LINES: usize = 1_000;

impl Resource {
    /// What it says now. Without a capture, its state says so.
    ///
    /// # Errors
    /// As the tools that say the same.
    pub(super) fn read(&self, context: &Context) -> Result<Document, ToolError> {
        let capturing = &context.shared.capturing;
        let of = |value: Value| Ok(Document { value, ..Document::default() });
        let read = match self.kind {
            ResourceKind::Topology => topology(),
            ResourceKind::Scheduler => of(scheduler(&Roots::default(), &context.shared.stats_client)?),
            ResourceKind::Capture => capturing.snapshot(&[]).map(|snapshot| capture_status(&snapshot)),
            ResourceKind::ProfileStatus => of(value_of(&context.shared.profiling.status())?),
            ResourceKind::ProfileResults => profile_results(context, (StackBy::Symbol, MAX_LINES)),
            ResourceKind::Stats(by) => capturing.snapshot(&[by]).and_then(|snapshot| {
                let scheduling = snapshot.scheduling.as_ref().and_then(|it| it.lines.first());
                let (caches, no_caches) = match by {
                    By::Llc => caches(&context.shared.around)?,
                    _ => (Value::Null, None),
                };
                of(json!({
                    "caches": caches,
                    "no_caches": no_caches,
                    "state": snapshot.state,
                    "at_unix": snapshot.at_unix,
                    "elapsed_s": snapshot.elapsed_s,
                    "window_s": snapshot.window_s,
                    "accesses": snapshot.accesses.first().map(|it| value_of(&it.lines)).transpose()?,
                    "scheduling": scheduling.map(value_of).transpose()?,
                }))
            }),
            ResourceKind::Dsqs => capturing.snapshot(&[]).and_then(|snapshot| {
                let scheduling = snapshot.scheduling.as_ref();
                of(json!({
                    "state": snapshot.state,
                    "at_unix": snapshot.at_unix,
                    "dsqs": scheduling.map(|it| value_of(&it.dsqs)).transpose()?,
                    "dsqs_window": scheduling.map(|it| value_of(&it.dsqs_window)).transpose()?,
                }))
            }),
        };
        match read {
            Err(error) if error.kind == Kind::NotRunning => of(json!({ "state": "idle", "message": error.message() })),
            read => read,
        }
    }

    /// A number that changes when it says something else.
    pub(super) fn version(&self, shared: &Shared) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self.kind {
            ResourceKind::Topology => topology().map(|document| document.value.to_string()).ok().hash(&mut hasher),
            ResourceKind::Scheduler => format!("{:?}", SchedExt::read(&Roots::default())).hash(&mut hasher),
            ResourceKind::ProfileStatus | ResourceKind::ProfileResults => {
                let status = shared.profiling.status();
                (status.samples, status.elapsed_s.to_bits(), format!("{:?}", status.state)).hash(&mut hasher);
            }
            ResourceKind::Capture | ResourceKind::Stats(_) | ResourceKind::Dsqs => {
                let snapshot = shared.capturing.snapshot(&[]).ok();
                let facts = snapshot
                    .map(|it| (it.losses.samples, it.scheduling.map(|it| it.events), format!("{:?}", it.state)));
                facts.hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// The kernel's state of sched_ext, and the scheduler's own figures.
fn scheduler(roots: &Roots, client: &Mutex<Option<StatsClient>>) -> Result<Value, ToolError> {
    let Some(kernel) = SchedExt::read(roots) else { return Ok(json!({ "is_supported": false })) };
    let mut found = value_of(&kernel)?;
    found["is_supported"] = true.into();
    if kernel.name.is_some() {
        let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
        match StatsClient::ask(&mut client, &socket(roots), PATIENCE) {
            Ok(Numbers { values, left_out }) => {
                let figures: Map<String, Value> = values.into_iter().map(|(name, it)| (name, it.into())).collect();
                (found["figures"], found["figures_left_out"]) = (figures.into(), left_out.into());
            }
            Err(why) => found["no_figures"] = why.to_string().into(),
        }
    }
    Ok(found)
}

/// Memory bandwidth and occupancy of each last-level cache, by its lowest CPU.
fn caches(around: &Mutex<Option<Around>>) -> Result<(Value, Option<String>), ToolError> {
    let mut around = around.lock().unwrap_or_else(PoisonError::into_inner);
    let now = around.get_or_insert_with(|| Around::new(&Roots::default())).look(std::iter::empty());
    Ok((value_of(&now.caches)?, now.no_caches))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_scheduler_is_read_below_its_root() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sys: dir.path().into(), files: dir.path().into(), ..Roots::default() };
        assert_eq!(scheduler(&roots, &Mutex::default()).unwrap()["is_supported"], false);
        std::fs::create_dir_all(dir.path().join("kernel/sched_ext/root")).unwrap();
        std::fs::write(dir.path().join("kernel/sched_ext/state"), "enabled\n").unwrap();
        std::fs::write(dir.path().join("kernel/sched_ext/root/ops"), "mitosis\n").unwrap();
        let now = scheduler(&roots, &Mutex::default()).unwrap();
        assert_eq!((&now["state"], &now["name"]), (&json!("enabled"), &json!("mitosis")));
        assert!(now["no_figures"].is_string(), "nobody listens: {now}");
        std::fs::create_dir_all(socket(&roots).parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket(&roots)).unwrap();
        let answers = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream);
            for turn in 1..3 {
                lines.read_line(&mut String::new()).unwrap();
                let answer = json!({ "errno": 0, "args": { "resp": { "turns": turn } } });
                writeln!(&stream, "{answer}").unwrap();
            }
        });
        // By one connection, as a scheduler gives what is new on it.
        let client = Mutex::default();
        for turn in [1.0, 2.0] {
            assert_eq!(scheduler(&roots, &client).unwrap()["figures"], json!({ "turns": turn }));
        }
        answers.join().unwrap();
    }

    #[test]
    fn each_resource_is_found_by_its_uri() {
        for resource in &RESOURCES {
            assert_eq!(find(resource.uri).unwrap().name, resource.name);
        }
        assert!(find("scxprof://none").is_none());
    }
}

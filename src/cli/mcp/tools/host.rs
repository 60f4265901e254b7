//! Tools about this host: what it allows, its CPUs and its events.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::super::context::{Context, Line};
use super::super::error::{Kind, ToolError};
use super::super::page::Document;
use super::{tool, Effect, Nothing, Tool};
use crate::host::{topology, Roots};
use crate::sampler::event_list;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Events {
    /// Only events whose name contains this text, such as "sched:".
    contains: Option<String>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "doctor",
            "What this host allows",
            "Checks what this host and the rights of the server allow: which sources of memory samples work and why others do not, \
             the kernel, CPUs, BPF and limits, each with what to do. Use it before starting a capture and when one fails.",
            Effect::Reads,
            |context: &Context, _: &Nothing| context.json(&Line::new(&["doctor", "--json"])),
        )
        .live(|_| true),
        tool(
            "topology",
            "CPUs, caches and nodes of this host",
            "Lists the online CPUs of this host with their core, last-level cache and NUMA node, each by the lowest CPU or the \
             number of it, and the CPUs of each cache and node. Of a recording, recording_info and scheduling_stats by llc tell.",
            Effect::Reads,
            |_: &Context, _: &Nothing| topology(),
        )
        .live(|_| true),
        tool(
            "list_events",
            "Events that can be profiled",
            "Lists the events that profile_start takes, by kind: hardware, software, cache, events of PMUs, and tracepoints as \
             subsystem:event. There are thousands of tracepoints: select by a part of the name.",
            Effect::Reads,
            |_: &Context, asked: &Events| Ok(events(asked)),
        )
        .live(|_| true),
    ]
}

/// The CPUs of this host.
pub(in super::super) fn topology() -> Result<Document, ToolError> {
    let roots = Roots::default();
    let online = topology::online_cpus(&roots).map_err(|error| ToolError::new(Kind::Unsupported, error.to_string()))?;
    let places = topology::places(&roots, &online);
    let mut llcs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut cpus = Vec::new();
    for cpu in online {
        let place = places.get(cpu);
        if let Some(place) = place {
            llcs.entry(place.llc).or_default().push(cpu);
            nodes.entry(place.node).or_default().push(cpu);
        }
        cpus.push(json!({
            "cpu": cpu,
            "core": place.map(|place| place.core),
            "llc": place.map(|place| place.llc),
            "node": place.map(|place| place.node),
        }));
    }
    let of = |name: &str, all: BTreeMap<u32, Vec<u32>>| {
        all.into_iter().map(|(number, cpus)| json!({ name: number, "cpus": cpus })).collect::<Vec<_>>()
    };
    let value = json!({ "cpus": cpus, "llcs": of("llc", llcs), "nodes": of("node", nodes) });
    Ok(Document { value, ..Document::default() })
}

fn events(Events { contains }: &Events) -> Document {
    let listed = event_list::list(&Roots::default());
    let mut value = json!({});
    for (kind, names) in listed.events {
        let is_wanted = |name: &String| contains.as_ref().is_none_or(|part| name.contains(part.as_str()));
        value[kind] = names.into_iter().filter(is_wanted).collect();
    }
    Document { value, notes: listed.notes, warnings: Vec::new() }
}

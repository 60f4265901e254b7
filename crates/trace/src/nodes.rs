//! The NUMA nodes of CPUs, which wprof says in the annotations of its events.

use std::collections::BTreeMap;

use super::event::{Event, TraceEvent, TraceWhat};
use super::names::{self as known, Names};
use super::raw::{Raw, MAX_CPUS};

/// The node of each CPU, as far as wprof said it.
#[derive(Debug, Default)]
pub(super) struct Nodes(Vec<Option<u32>>);

impl Nodes {
    /// Gives the nodes that these events of one time say for the first time, before the events themselves.
    pub(super) fn see(&mut self, raws: &[Raw], time: u64, names: &Names, out: &mut Vec<Event>) {
        for raw in raws {
            let Raw::Track(event) = raw else { continue };
            for (cpu, node) in [(known::CPU, known::NUMA_NODE), (known::WAKER_CPU, known::WAKER_NUMA_NODE)] {
                let Some((node, cpu)) = event.args.id(node, names).zip(event.args.id(cpu, names)) else { continue };
                if cpu >= MAX_CPUS {
                    continue;
                }
                let at = cpu as usize;
                if self.0.len() <= at {
                    self.0.resize(at + 1, None);
                }
                let Some(known) = self.0.get_mut(at).filter(|known| **known != Some(node)) else { continue };
                *known = Some(node);
                let (pid, tid) = (TraceEvent::UNKNOWN, TraceEvent::UNKNOWN);
                let what = TraceWhat::Node { cpu, node };
                out.push(Event::Trace(TraceEvent { time, cpu, pid, tid, what }));
            }
        }
    }

    /// The CPUs of each node.
    pub(super) fn by_node(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut nodes = BTreeMap::<u32, Vec<u32>>::new();
        for (cpu, node) in (0..).zip(&self.0).filter_map(|(cpu, node)| Some((cpu, (*node)?))) {
            nodes.entry(node).or_default().push(cpu);
        }
        nodes
    }
}

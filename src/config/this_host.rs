//! Layers for one host: communities that names cannot tell apart are matched by their processes, cgroups and threads.

use std::collections::{BTreeMap, BTreeSet};

use super::layered::{Consumer, Layer, LayerKind, LayerMatch, MAX_LAYERS, MAX_ORS};
use super::layers::{free_name, Layers};
use super::members::CommunityIndex;
use super::note::Note;
use super::prefixes::base_of;
use crate::host::facts::Tasks;
use crate::sample::{Comm, Task};

/// A thread of the host.
#[derive(Debug, Clone)]
pub(crate) struct HostThread {
    pub pid: u32,
    pub tid: u32,
    pub comm: Comm,
    /// The name of its process, if it is known.
    pub process: Option<Comm>,
    /// The path of its cgroup below `/sys/fs/cgroup`.
    pub cgroup: Vec<u8>,
    pub community: Option<CommunityIndex>,
    /// It is known with which threads it shares memory, or that it shares none.
    pub is_known: bool,
    pub samples: f64,
}

/// The properties that tell threads of one name apart, the most durable first: the process's name, the cgroup, the process id, and
/// the thread id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Process,
    Cgroup,
    Pid,
    Tid,
}

/// The last component of a path, as the suffix of a cgroup's path in the scheduler.
fn suffix(path: &[u8]) -> Option<Vec<u8>> {
    let last = path.rsplit(|&byte| byte == b'/').find(|part| !part.is_empty())?;
    Some([b"/", last, b"/"].concat())
}

impl By {
    /// A thread's value of the property; `None` if it is not known, or not text.
    fn key(self, thread: &HostThread) -> Option<Vec<u8>> {
        let key = match self {
            Self::Process => thread.process?.as_bytes().to_vec(),
            Self::Cgroup => suffix(&thread.cgroup)?,
            Self::Pid => thread.pid.to_string().into_bytes(),
            Self::Tid => thread.tid.to_string().into_bytes(),
        };
        let is_text = std::str::from_utf8(&key).is_ok_and(|key| !key.is_empty() && !key.contains('\0'));
        is_text.then_some(key)
    }

    /// True if the condition for `key` takes a thread. A thread of an unknown process may match any.
    fn takes(self, key: &[u8], thread: &HostThread) -> bool {
        match self {
            Self::Process => thread.process.is_none_or(|name| name.as_bytes().starts_with(key)),
            Self::Cgroup => [b"/", thread.cgroup.as_slice(), b"/"].concat().ends_with(key),
            Self::Pid => thread.pid.to_string().as_bytes() == key,
            Self::Tid => thread.tid.to_string().as_bytes() == key,
        }
    }

    fn condition(self, key: &[u8]) -> Option<LayerMatch> {
        let text = std::str::from_utf8(key).ok()?.to_owned();
        Some(match self {
            Self::Process => LayerMatch::PcommPrefix(text),
            Self::Cgroup => LayerMatch::CgroupSuffix(text),
            Self::Pid => LayerMatch::TGIDEquals(text.parse().ok()?),
            // scx_layered compares it with the id of the thread (`MATCH_PID_EQUALS` in main.bpf.c).
            Self::Tid => LayerMatch::PIDEquals(text.parse().ok()?),
        })
    }
}

/// Adds layers for communities that `layers` do not keep together and apart from others, before all others. They are for the host of
/// `threads`, as the ids of processes and threads are.
pub(crate) fn add(layers: &mut Layers, threads: &[HostThread]) {
    let mut found = apart(layers, threads);
    // The most valuable first, while there is room.
    found.sort_by(|a, b| b.samples.total_cmp(&a.samples));
    let room = MAX_LAYERS.saturating_sub(layers.layers.len());
    let left_out: Vec<String> = found.iter().skip(room).map(|it| it.name.clone()).rev().collect();
    found.truncate(room);
    let (mut names, mut of_processes, mut of_threads) = (Vec::new(), Vec::new(), Vec::new());
    let mut own = Vec::new();
    for OwnLayer { name, matches, by, .. } in found {
        let taken: Vec<Layer> = own.iter().chain(&layers.layers).cloned().collect();
        let name = free_name(&name, &taken);
        match by {
            By::Process | By::Cgroup => {}
            By::Pid => of_processes.push(name.clone()),
            By::Tid => of_threads.push(name.clone()),
        }
        names.push(name.clone());
        own.push(Layer { name, template: None, matches, kind: LayerKind::community() });
    }
    layers.of.splice(0..0, own.iter().map(|_| (None, None)));
    layers.layers.splice(0..0, own);
    if !left_out.is_empty() {
        layers.notes.push(Note::TooManyLayers { left_out });
    }
    if !names.is_empty() {
        layers.notes.push(Note::ThisHost { layers: names, of_processes, of_threads });
    }
}

/// A layer of one community.
struct OwnLayer {
    name: String,
    matches: Vec<Vec<LayerMatch>>,
    by: By,
    samples: f64,
}

/// The communities that need a separate layer, and can be matched.
fn apart(layers: &Layers, threads: &[HostThread]) -> Vec<OwnLayer> {
    let Ok(consumer) = Consumer::new(&layers.layers) else { return Vec::new() };
    let none = Tasks::default();
    // Layers for hints match facts that are not known here; names decide for the others.
    let place =
        |it: &HostThread| consumer.takers(&Task::new(&it.cgroup, it.comm.as_bytes()).hinted(None), &none).otherwise;
    let places: Vec<Option<usize>> = threads.iter().map(place).collect();
    let mut own: BTreeMap<CommunityIndex, Vec<usize>> = BTreeMap::new();
    let mut in_layer: BTreeMap<usize, BTreeSet<CommunityIndex>> = BTreeMap::new();
    for ((at, thread), place) in threads.iter().enumerate().zip(&places) {
        let Some(community) = thread.community else { continue };
        own.entry(community).or_default().push(at);
        if let Some(place) = place {
            in_layer.entry(*place).or_default().insert(community);
        }
    }
    let last = layers.layers.len().saturating_sub(1);
    let is_kept = |of: &[usize]| {
        let of: BTreeSet<Option<usize>> = of.iter().filter_map(|&at| places.get(at).copied()).collect();
        match of.first() {
            Some(Some(layer)) if of.len() == 1 => *layer != last && in_layer.get(layer).is_some_and(|it| it.len() == 1),
            _ => false,
        }
    };
    let mut found = Vec::new();
    for (&community, of) in own.iter().filter(|(_, of)| of.len() > 1 && !is_kept(of)) {
        let of: Vec<&HostThread> = of.iter().filter_map(|&at| threads.get(at)).collect();
        let others = || threads.iter().filter(|it| it.is_known && it.community != Some(community));
        let told = [By::Process, By::Cgroup, By::Pid, By::Tid]
            .into_iter()
            .find_map(|by| Some((by, blocks(by, &of, &others)?)));
        let Some((by, matches)) = told else { continue };
        let samples = of.iter().map(|it| it.samples).sum();
        found.push(OwnLayer { name: name(by, &of), matches, by, samples });
    }
    found
}

/// The name of its threads with most samples: `redis:worker`.
fn name(by: By, of: &[&HostThread]) -> String {
    // The id of one of its threads would not name the others.
    let by = if by == By::Tid { By::Process } else { by };
    let mut samples: BTreeMap<(Vec<u8>, &[u8]), f64> = BTreeMap::new();
    for thread in of {
        let key = by.key(thread).unwrap_or_default();
        *samples.entry((key, base_of(thread.comm.as_bytes()))).or_default() += thread.samples;
    }
    let most = samples.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|it| it.0).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_matches('/').to_owned();
    match text(&most.0) {
        // The name of the process is not known.
        process if process.is_empty() => text(most.1),
        process => format!("{process}:{}", text(most.1)),
    }
}

/// The alternatives that take all these threads and none of the others; `None` if there are none, or too many.
fn blocks<'a, I: Iterator<Item = &'a HostThread>>(
    by: By,
    of: &[&HostThread],
    others: &dyn Fn() -> I,
) -> Option<Vec<Vec<LayerMatch>>> {
    let keys: BTreeSet<Vec<u8>> = of.iter().map(|it| by.key(it)).collect::<Option<_>>()?;
    let mut blocks = Vec::new();
    for key in &keys {
        if blocks.len() > MAX_ORS {
            return None;
        }
        let condition = by.condition(key)?;
        let beside: BTreeSet<Comm> = others().filter(|it| by.takes(key, it)).map(|it| it.comm).collect();
        if beside.is_empty() {
            blocks.push(vec![condition]);
            continue;
        }
        // Their names within that, without numbers where that takes no other.
        let is_free = |prefix: &[u8]| !beside.iter().any(|comm| comm.as_bytes().starts_with(prefix));
        let mut prefixes: BTreeSet<&[u8]> = BTreeSet::new();
        for thread in of.iter().filter(|it| by.takes(key, it)) {
            let whole = thread.comm.as_bytes();
            prefixes.insert([base_of(whole), whole].into_iter().find(|prefix| is_free(prefix))?);
        }
        for prefix in prefixes {
            let prefix = std::str::from_utf8(prefix).ok().filter(|prefix| !prefix.is_empty())?;
            blocks.push(vec![condition.clone(), LayerMatch::CommPrefix(prefix.to_owned())]);
        }
    }
    (blocks.len() <= MAX_ORS).then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layered;

    fn thread(pid: u32, comm: &str, process: &str, cgroup: &str, community: Option<u32>) -> HostThread {
        let process = (!process.is_empty()).then(|| Comm::from(process));
        let (comm, cgroup) = (Comm::from(comm), cgroup.as_bytes().to_vec());
        HostThread { pid, tid: pid, comm, process, cgroup, community, is_known: true, samples: 1.0 }
    }

    /// The layers that are added to one of all threads, by name.
    fn added(threads: &[HostThread]) -> (Vec<(String, String)>, Vec<Note>) {
        let rest = Layer { name: "rest".into(), template: None, matches: vec![vec![]], kind: LayerKind::rest(8) };
        let mut layers = Layers { layers: vec![rest], of: vec![(None, None)], notes: Vec::new() };
        add(&mut layers, threads);
        layered::check(&layers.layers).unwrap();
        assert_eq!(layers.layers.len(), layers.of.len());
        let matches = |layer: &Layer| serde_json::to_string(&layer.matches).unwrap();
        layers.layers.pop();
        (layers.layers.iter().map(|layer| (layer.name.clone(), matches(layer))).collect(), layers.notes)
    }

    #[test]
    fn groups_of_one_name_are_told_by_what_holds_longest() {
        let pair = |pid, process: &str, cgroup: &str, community| {
            [1, 2].map(|number| thread(pid, &format!("worker{number}"), process, cgroup, Some(community)))
        };
        let (layers, notes) = added(&[pair(10, "redis", "/a", 0), pair(20, "nginx", "/a", 1)].concat());
        let expected = [
            ("nginx:worker".to_owned(), r#"[[{"PcommPrefix":"nginx"}]]"#.to_owned()),
            ("redis:worker".to_owned(), r#"[[{"PcommPrefix":"redis"}]]"#.to_owned()),
        ];
        let sorted = |mut layers: Vec<(String, String)>| {
            layers.sort();
            layers
        };
        assert_eq!(sorted(layers), expected);
        assert!(
            matches!(&notes[..], [Note::ThisHost { layers, of_processes, .. }] if layers.len() == 2 && of_processes.is_empty())
        );
        // A process whose name is not known, or the beginning of another's.
        let (layers, _) = added(&[pair(10, "web", "/a/one", 0), pair(20, "webserver", "/a/two", 1)].concat());
        let (names, matches): (Vec<String>, Vec<String>) = sorted(layers).into_iter().unzip();
        assert_eq!(names, ["one:worker", "webserver:worker"]);
        assert_eq!(matches, [r#"[[{"CgroupSuffix":"/one/"}]]"#, r#"[[{"PcommPrefix":"webserver"}]]"#]);
        let (layers, notes) = added(&[pair(10, "", "/a", 0), pair(20, "", "/a", 1)].concat());
        assert_eq!(
            sorted(layers).into_iter().map(|it| it.1).collect::<Vec<_>>(),
            [r#"[[{"TGIDEquals":10}]]"#, r#"[[{"TGIDEquals":20}]]"#]
        );
        assert!(matches!(&notes[..], [Note::ThisHost { of_processes, .. }] if of_processes.len() == 2));
    }

    #[test]
    fn threads_of_one_name_in_one_process_are_told_by_their_ids() {
        let group = |first, size, community| {
            (first..first + size).map(move |tid| HostThread { tid, ..thread(10, "app", "app", "/a", Some(community)) })
        };
        let (mut layers, notes) = added(&group(10, 2, 0).chain(group(20, 3, 1)).collect::<Vec<_>>());
        layers.sort();
        let ids = |ids: &[u32]| {
            let ids: Vec<String> = ids.iter().map(|id| format!(r#"[{{"PIDEquals":{id}}}]"#)).collect();
            format!("[{}]", ids.join(","))
        };
        let expected = [("app:app".to_owned(), ids(&[20, 21, 22])), ("app:app-2".to_owned(), ids(&[10, 11]))];
        assert_eq!(layers, expected);
        let said = notes.first().map(ToString::to_string).unwrap_or_default();
        assert!(said.ends_with("; those with thread ids hold until the threads end: app:app, app:app-2"), "{said}");
        // A layer has room for this number of ids; a group with more has no layer.
        let sizes = |sizes: [usize; 2]| {
            let threads = (0..).zip(sizes).flat_map(|(at, size)| group(100 + 100 * at, size as u32, at));
            added(&threads.collect::<Vec<_>>()).0.len()
        };
        assert_eq!((sizes([MAX_ORS, MAX_ORS]), sizes([MAX_ORS + 1, 2]), sizes([MAX_ORS + 1; 2])), (2, 1, 0));
    }

    #[test]
    fn names_count_within_a_process() {
        // Two groups in each of two processes.
        let group = |pid, comm: &str, community| {
            [1, 2].map(|number| thread(pid, &format!("{comm}{number}"), "srv", "/a", Some(community)))
        };
        let threads = [group(10, "io", 0), group(10, "cpu", 1), group(20, "io", 2), group(20, "cpu", 3)].concat();
        let (layers, _) = added(&threads);
        let matches: BTreeSet<String> = layers.into_iter().map(|it| it.1).collect();
        let of = |pid: u32, comm: &str| format!(r#"[[{{"TGIDEquals":{pid}}},{{"CommPrefix":"{comm}"}}]]"#);
        assert_eq!(matches, BTreeSet::from([of(10, "cpu"), of(10, "io"), of(20, "cpu"), of(20, "io")]));
        // More than there are layers.
        let many: Vec<HostThread> = (0..20).flat_map(|number| group(100 + number, "io", number)).collect();
        let (layers, notes) = added(&many);
        assert_eq!(layers.len(), MAX_LAYERS - 1);
        assert!(
            notes.iter().any(|note| matches!(note, Note::TooManyLayers { left_out } if left_out.len() == 5)),
            "{notes:?}"
        );
    }
}

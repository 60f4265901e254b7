//! The key of a row: its kind, its scope (where it comes from), and the classes of threads.

use std::cmp::Ordering;
use std::sync::Arc;

/// The kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RowKind {
    /// A run as a whole.
    Run,
    /// A cell spec of the run.
    Spec,
    /// Cells of one cell spec and one folded cgroup.
    Cell,
    /// A class of threads.
    Class,
    /// Two classes, or the threads of one.
    Pair,
    /// A part of the pairs of a host, to compare hosts.
    Host,
}

impl RowKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Run, Self::Spec, Self::Cell, Self::Class, Self::Pair, Self::Host];

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Spec => "spec",
            Self::Cell => "cell",
            Self::Class => "class",
            Self::Pair => "pair",
            Self::Host => "host",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Where a row comes from: facts about the run and its host, by which a fleet can be split.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The user's label of the host: its service, for example.
    pub label: String,
    /// The source of the samples.
    pub source: String,
    /// The kernel's release.
    pub kernel: String,
    /// The model of the CPUs.
    pub cpu: String,
    /// The number of CPUs.
    pub cpus: String,
}

/// A class of threads: all of one folded name, in cgroups of one folded path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Class {
    /// The name of the cell spec.
    pub cell: String,
    /// The folded path of the cgroup that is the cell; empty for the root's cell.
    pub cgroup: String,
    /// The name of the threads without a number at its end.
    pub comm: String,
    /// The task hint in decimal; empty without one.
    pub hint: String,
}

impl Scope {
    pub(super) fn texts(&self) -> [&str; 5] {
        let Self { label, source, kernel, cpu, cpus } = self;
        [label, source, kernel, cpu, cpus]
    }

    #[cfg(feature = "parquet")]
    pub(super) fn slots(&mut self) -> [&mut String; 5] {
        let Self { label, source, kernel, cpu, cpus } = self;
        [label, source, kernel, cpu, cpus]
    }
}

impl Class {
    pub(super) fn texts(&self) -> [&str; 4] {
        let Self { cell, cgroup, comm, hint } = self;
        [cell, cgroup, comm, hint]
    }

    #[cfg(feature = "parquet")]
    pub(super) fn slots(&mut self) -> [&mut String; 4] {
        let Self { cell, cgroup, comm, hint } = self;
        [cell, cgroup, comm, hint]
    }
}

/// The order of texts, one after the other. Many are empty, and these are not compared by memcmp(): glibc's one with AVX-512 loads
/// even no bytes, from where an empty text has no memory, which takes the processor hundreds of cycles.
pub(super) fn order<const N: usize>(ours: [&str; N], others: [&str; N]) -> Ordering {
    let pair = |(one, other): (&str, &str)| {
        if one.is_empty() || other.is_empty() {
            one.len().cmp(&other.len())
        } else {
            one.cmp(other)
        }
    };
    ours.into_iter().zip(others).map(pair).find(|it| it.is_ne()).unwrap_or(Ordering::Equal)
}

impl Ord for Scope {
    fn cmp(&self, other: &Self) -> Ordering {
        order(self.texts(), other.texts())
    }
}

impl PartialOrd for Scope {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Class {
    fn cmp(&self, other: &Self) -> Ordering {
        order(self.texts(), other.texts())
    }
}

impl PartialOrd for Class {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The order of what rows share: most often it is the same one.
fn order_shared<T: Ord>(ours: &Arc<T>, other: &Arc<T>) -> Ordering {
    if Arc::ptr_eq(ours, other) {
        Ordering::Equal
    } else {
        ours.cmp(other)
    }
}

/// The columns that say what a row is about. Unused ones are empty, or 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// What it is about.
    pub kind: RowKind,
    /// Where it comes from.
    pub scope: Arc<Scope>,
    /// The class, or the first of two; its cell alone of a cell. Of a spec, `cell` is the name and `cgroup` what it matches.
    pub a: Arc<Class>,
    /// The second class of a pair; its cell is empty if both are in the same cell of a run.
    pub b: Arc<Class>,
    /// The host.
    pub host: String,
    /// Of a spec its place; of a host the part of the pairs.
    pub part: i64,
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let kinds = self.kind.cmp(&other.kind);
        let scopes = || order_shared(&self.scope, &other.scope);
        let firsts = || order_shared(&self.a, &other.a);
        let seconds = || order_shared(&self.b, &other.b);
        let hosts = || order([&self.host], [&other.host]);
        let parts = || self.part.cmp(&other.part);
        kinds.then_with(scopes).then_with(firsts).then_with(seconds).then_with(hosts).then_with(parts)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The columns of a key with text, in their order in [`Key::texts`].
pub const KEY_TEXTS: [&str; 15] = [
    "kind", "label", "source", "kernel", "cpu", "cpus", "cell", "cgroup", "comm", "hint", "cell_b", "cgroup_b",
    "comm_b", "hint_b", "host",
];
/// The columns of a key with numbers: [`VERSION`](super::VERSION), and [`Key::part`].
pub const KEY_NUMBERS: [&str; 2] = ["version", "part"];

impl Key {
    /// A key of a kind and a scope, and nothing else.
    #[must_use]
    pub fn new(kind: RowKind, scope: &Scope) -> Self {
        let (a, b) = (Arc::default(), Arc::default());
        Self { kind, scope: Arc::new(scope.clone()), a, b, host: String::new(), part: 0 }
    }

    /// Of a class.
    #[must_use]
    pub fn of(kind: RowKind, scope: &Scope, class: &Class) -> Self {
        Self { a: Arc::new(class.clone()), ..Self::new(kind, scope) }
    }

    /// Of two classes in the same cell of a run, in any order.
    #[must_use]
    pub fn pair(scope: &Scope, a: &Class, b: &Class) -> Self {
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        let second = Class { cell: String::new(), cgroup: String::new(), ..b.clone() };
        Self { b: Arc::new(second), ..Self::of(RowKind::Pair, scope, a) }
    }

    /// Of two classes in different cells.
    #[must_use]
    pub fn across(scope: &Scope, a: &Class, b: &Class) -> Self {
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        Self { b: Arc::new(b.clone()), ..Self::of(RowKind::Pair, scope, a) }
    }

    /// With the lower one of two classes first, as it may not be after their cgroups have changed.
    #[must_use]
    pub fn ordered(self) -> Self {
        if self.kind != RowKind::Pair || self.is_ordered() {
            return self;
        }
        let (a, b) = (self.a.clone(), self.second());
        let pair = if self.b.cell.is_empty() { Self::pair } else { Self::across };
        pair(&self.scope, &a, &b)
    }

    /// True if it is the same key.
    #[cfg(feature = "parquet")]
    pub(super) fn is(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }

    /// The first class of a pair is not after the second one.
    fn is_ordered(&self) -> bool {
        let (a, b) = (&*self.a, &*self.b);
        if b.cell.is_empty() {
            // The second one has the cell of the first.
            order([&a.comm, &a.hint], [&b.comm, &b.hint]).is_le()
        } else {
            a <= b
        }
    }

    /// The second class with its cell.
    #[must_use]
    pub fn second(&self) -> Class {
        if self.b.cell.is_empty() {
            Class { cell: self.a.cell.clone(), cgroup: self.a.cgroup.clone(), ..Class::clone(&self.b) }
        } else {
            Class::clone(&self.b)
        }
    }

    /// The values of [`KEY_TEXTS`].
    #[must_use]
    pub fn texts(&self) -> [&str; 15] {
        let [label, source, kernel, cpu, cpus] = self.scope.texts();
        let [cell, cgroup, comm, hint] = self.a.texts();
        let [cell_b, cgroup_b, comm_b, hint_b] = self.b.texts();
        let (kind, host) = (self.kind.name(), self.host.as_str());
        [kind, label, source, kernel, cpu, cpus, cell, cgroup, comm, hint, cell_b, cgroup_b, comm_b, hint_b, host]
    }

    /// From the values of [`KEY_TEXTS`] and the part; `None` if the kind is not known.
    #[cfg(test)]
    #[must_use]
    pub fn from_texts(texts: [String; 15], part: i64) -> Option<Self> {
        let [kind, label, source, kernel, cpu, cpus, cell, cgroup, comm, hint, cell_b, cgroup_b, comm_b, hint_b, host] =
            texts;
        Some(Self {
            kind: RowKind::parse(&kind)?,
            scope: Arc::new(Scope { label, source, kernel, cpu, cpus }),
            a: Arc::new(Class { cell, cgroup, comm, hint }),
            b: Arc::new(Class { cell: cell_b, cgroup: cgroup_b, comm: comm_b, hint: hint_b }),
            host,
            part,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_order_of_arrays() {
        let texts = ["", "a", "ab", "b"];
        let pairs: Vec<_> = texts.iter().flat_map(|one| texts.map(|other| [*one, other])).collect();
        for (one, other) in pairs.iter().flat_map(|one| pairs.iter().map(move |other| (one, other))) {
            assert_eq!(order(*one, *other), one.cmp(other), "{one:?} {other:?}");
        }
    }
}

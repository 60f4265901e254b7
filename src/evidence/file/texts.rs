//! The texts of one row after another: most are those of the row before, and classes and scopes those of rows that are known.

use std::sync::Arc;

use super::super::key::{order, Class, Key, RowKind, Scope, KEY_TEXTS};
use super::super::rows::Evidence;

/// Bytes of a text: a path in a cgroup hierarchy is not longer.
pub(super) const MAX_TEXT: usize = 4096;

/// Classes that are found again without hashing all of their texts.
const RECENT: usize = 256;

/// The texts of a row.
#[derive(Debug, Default)]
pub(super) struct Texts {
    kind: String,
    scope: Scope,
    a: Class,
    b: Class,
    host: String,
    /// The values, as rows share them; `None` if the texts have changed.
    found: Found,
    recent: Recent,
}

#[derive(Debug, Default)]
struct Found {
    kind: Option<RowKind>,
    scope: Option<Arc<Scope>>,
    a: Option<Arc<Class>>,
    b: Option<Arc<Class>>,
}

/// The classes that were found last, by a few of their bytes.
#[derive(Debug, Default)]
struct Recent(Vec<Option<Arc<Class>>>);

impl Recent {
    /// The class that is equal, as the rows have it.
    fn find(&mut self, known: &Evidence, class: &Class) -> Arc<Class> {
        self.0.resize(RECENT, None);
        let end = class.comm.bytes().rev().take(4).fold(0, |hash, byte| hash * 31 + usize::from(byte));
        let at = end + class.cgroup.len() * 7 + class.hint.len();
        let Some(slot) = self.0.get_mut(at % RECENT) else { return Arc::new(class.clone()) };
        match slot {
            Some(found) if order(found.texts(), class.texts()).is_eq() => Arc::clone(found),
            _ => {
                let found = known.class(class).map_or_else(|| Arc::new(class.clone()), Arc::clone);
                Arc::clone(slot.insert(found))
            }
        }
    }
}

impl Texts {
    /// Takes the texts of the next row, and gives their bytes. An error says what is wrong with one of them.
    pub(super) fn take<'a>(&mut self, row: impl Iterator<Item = &'a [u8]>) -> Result<usize, &'static str> {
        let Self { kind, scope, a, b, host, found, .. } = self;
        let [label, source, kernel, cpu, cpus] = scope.slots();
        let [cell, cgroup, comm, hint] = a.slots();
        let [cell_b, cgroup_b, comm_b, hint_b] = b.slots();
        let slots: [&mut String; KEY_TEXTS.len()] =
            [kind, label, source, kernel, cpu, cpus, cell, cgroup, comm, hint, cell_b, cgroup_b, comm_b, hint_b, host];
        let mut len = 0;
        for ((at, slot), value) in slots.into_iter().enumerate().zip(row) {
            len += value.len();
            // Empty ones are not compared by memcmp(), see `order()` of keys.
            if value.len() == slot.len() && (value.is_empty() || value == slot.as_bytes()) {
                continue;
            }
            if value.len() > MAX_TEXT {
                return Err("a text is longer than a path");
            }
            let value = std::str::from_utf8(value).map_err(|_| "a text is not UTF-8")?;
            slot.clear();
            slot.push_str(value);
            match at {
                0 => found.kind = None,
                1..=5 => found.scope = None,
                6..=9 => found.a = None,
                10..=13 => found.b = None,
                _ => (),
            }
        }
        Ok(len)
    }

    /// The key of a row with these texts, which shares what rows of the evidence have; `None` if the kind is not known.
    pub(super) fn key(&mut self, known: &Evidence, part: i64) -> Option<Key> {
        let recent = &mut self.recent;
        let scope = |scope| known.scope(scope).map_or_else(|| Arc::new(Scope::clone(scope)), Arc::clone);
        let kind = match self.found.kind {
            Some(kind) => kind,
            None => *self.found.kind.insert(RowKind::parse(&self.kind)?),
        };
        Some(Key {
            kind,
            scope: Arc::clone(self.found.scope.get_or_insert_with(|| scope(&self.scope))),
            a: Arc::clone(self.found.a.get_or_insert_with(|| recent.find(known, &self.a))),
            b: Arc::clone(self.found.b.get_or_insert_with(|| recent.find(known, &self.b))),
            host: self.host.clone(),
            part,
        })
    }
}

//! The sizes of the tables that live as long as a capture or a profile.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The size of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TableSize {
    /// What it holds.
    pub name: String,
    /// The number of entries.
    pub entries: u64,
    /// Bytes of memory, approximately.
    pub bytes: u64,
    /// The most bytes so far; the tables of a capture are measured once a second.
    pub peak_bytes: u64,
}

/// The sizes of all tables, each as it was when it was last measured.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tables(Vec<TableSize>);

impl Tables {
    /// Sets the size of the table `name`.
    pub fn set(&mut self, name: &str, entries: usize, bytes: usize) {
        let (entries, bytes) = (entries as u64, bytes as u64);
        match self.0.iter_mut().find(|table| table.name == name) {
            Some(table) => {
                (table.entries, table.bytes) = (entries, bytes);
                table.peak_bytes = table.peak_bytes.max(bytes);
            }
            None => self.0.push(TableSize { name: name.to_owned(), entries, bytes, peak_bytes: bytes }),
        }
    }

    /// Sets the size of the table `name`, which is a hash table with room for `capacity` values of type `T`; they own `more` bytes.
    pub fn set_map<T>(&mut self, name: &str, entries: usize, capacity: usize, more: usize) {
        // A byte of each slot is its tag, and a seventh of the slots is always free.
        self.set(name, entries, capacity.saturating_mul(size_of::<T>() + 1) / 7 * 8 + more);
    }

    /// All tables.
    pub fn iter(&self) -> impl Iterator<Item = &TableSize> {
        self.0.iter()
    }

    /// Bytes of all tables.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|table| table.bytes).sum()
    }
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB in all", self.bytes().div_ceil(1024))?;
        for TableSize { name, entries, bytes, .. } in &self.0 {
            write!(f, ", {name} {entries} ({} KiB)", bytes.div_ceil(1024))?;
        }
        Ok(())
    }
}

/// Shows the tables of a running capture to any thread.
#[derive(Debug, Clone, Default)]
pub struct TablesHandle(Arc<Mutex<Tables>>);

impl TablesHandle {
    /// The tables as they were last measured; none before the first second of a capture.
    #[must_use]
    pub fn now(&self) -> Tables {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Measures them.
    pub fn measure(&self, measure: impl FnOnce(&mut Tables)) {
        measure(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_each_table_is_kept() {
        let handle = TablesHandle::default();
        for (entries, bytes) in [(10, 2000), (30, 5000), (20, 1025)] {
            handle.measure(|tables| {
                tables.set("threads", entries, bytes);
                tables.set("cgroups", 1, 1);
            });
        }
        let tables = handle.now();
        let sizes: Vec<_> = tables.iter().map(|table| (table.entries, table.bytes, table.peak_bytes)).collect();
        assert_eq!(sizes, [(20, 1025, 5000), (1, 1, 1)]);
        assert_eq!(tables.to_string(), "2 KiB in all, threads 20 (2 KiB), cgroups 1 (1 KiB)");
    }
}

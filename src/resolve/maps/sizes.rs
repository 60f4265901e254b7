//! The sizes of the tables of mappings at a moment.

use std::sync::Arc;

use super::Maps;
use scxprof_base::tables::Tables;

impl Maps {
    /// [`Maps::generation`] if the process is known.
    pub(crate) fn known_generation(&self, pid: u32) -> Option<u32> {
        self.processes.get(&pid).map(|process| process.generation)
    }

    /// Their sizes.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        tables.set("mappings of processes", self.processes.len(), self.bytes() - self.path_bytes);
        // A table that a living process shares counts there.
        let ended = self.ended.iter().filter(|(_, _, table)| Arc::strong_count(table) == 1);
        let bytes = ended.map(|(_, _, table)| table.bytes()).sum();
        tables.set("mappings of ended processes", self.ended.len(), bytes);
        tables.set("paths of mappings", self.paths.len(), self.path_bytes);
        self.identities.measure(tables);
        self.kernel_names.measure(tables);
    }
}

//! Names for samples: the thread, the cgroup and the memory of each, from the kernel's records, and from procfs if they have
//! none.
//!
//! Records arrive in time order and take precedence; procfs and cgroupfs give what existed before the first record, and replace
//! lost records. All of it is read under [`Roots`](crate::host::Roots).

pub(crate) mod cgroups;
pub(crate) mod code;
pub(crate) mod frames;
pub(crate) mod identity;
mod kernel_names;
pub(crate) mod mapping;
pub(crate) mod mappings;
pub(crate) mod maps;
pub(crate) mod memory_name;
pub(crate) mod stacks;
pub(crate) mod symbols;
pub(crate) mod threads;
mod unwind;

pub use cgroups::Cgroups;
pub(crate) use kernel_names::KernelNames;
pub(crate) use mapping::Mapping;
pub(crate) use maps::Maps;
pub use memory_name::AddressSpaces;
pub(crate) use memory_name::Located;
pub use stacks::Stacks;
pub(crate) use symbols::{answer_source_lines, SOURCE_LINES};
pub use symbols::{symbolize, Modules, Symbol, SymbolOptions, Symbols};
pub(crate) use threads::Threads;
pub use unwind::UnwindCounts;
pub(crate) use unwind::{Unwinder, UNWIND_LIMIT};

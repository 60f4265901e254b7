//! The tables and their columns. docs/queries.md says what each means; a test compares both.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::errors::Result;
use parquet::schema::types::{Type, TypePtr};

/// Grows when a column changes its meaning, or goes.
pub const VERSION: u32 = 1;

/// What a column has. Each may be NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// INT64: times and durations in ns, counts, ids of slices.
    Int,
    /// INT32: ids of threads, processes and CPUs.
    Id,
    /// INT64 that is unsigned: addresses, and numbers with 64 significant bits.
    Address,
    /// DOUBLE.
    Float,
    /// BOOLEAN.
    Bool,
    /// UTF8: bytes of names that are none are `\xNN`.
    Text,
}

impl ColumnType {
    /// Its name in the documentation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Int => "INT64",
            Self::Id => "INT32",
            Self::Address => "UINT64",
            Self::Float => "DOUBLE",
            Self::Bool => "BOOLEAN",
            Self::Text => "UTF8",
        }
    }
}

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParquetTable {
    /// Runs of threads on CPUs.
    Sched,
    /// What threads did, without gaps as far as it is known.
    ThreadState,
    /// Wakeups.
    Wakeup,
    /// What has a beginning and an end, and instants of tracks.
    Slice,
    /// Events without a duration.
    Event,
    /// Values that hold until the next one.
    Counter,
    /// Threads.
    Thread,
    /// Processes.
    Process,
    /// Memory samples.
    Sample,
}

impl ParquetTable {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Sched,
        Self::ThreadState,
        Self::Wakeup,
        Self::Slice,
        Self::Event,
        Self::Counter,
        Self::Thread,
        Self::Process,
        Self::Sample,
    ];

    /// Its name, which is that of its file without `.parquet`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sched => "sched",
            Self::ThreadState => "thread_state",
            Self::Wakeup => "wakeup",
            Self::Slice => "slice",
            Self::Event => "event",
            Self::Counter => "counter",
            Self::Thread => "thread",
            Self::Process => "process",
            Self::Sample => "sample",
        }
    }

    /// Its columns.
    #[must_use]
    pub fn columns(self) -> &'static [(&'static str, ColumnType)] {
        use ColumnType::{Address, Bool, Float, Id, Int, Text};
        match self {
            Self::Sched => &[
                ("ts", Int),
                ("dur", Int),
                ("cpu", Id),
                ("tid", Id),
                ("pid", Id),
                ("end_state", Text),
                ("priority", Id),
            ],
            Self::ThreadState => &[
                ("ts", Int),
                ("dur", Int),
                ("tid", Id),
                ("pid", Id),
                ("cpu", Id),
                ("state", Text),
                ("io_wait", Bool),
                ("waker_tid", Id),
            ],
            Self::Wakeup => &[
                ("ts", Int),
                ("tid", Id),
                ("waker_tid", Id),
                ("waker_cpu", Id),
                ("target_cpu", Id),
                ("in_interrupt", Bool),
                ("is_new", Bool),
                ("latency_ns", Int),
            ],
            Self::Slice => &[
                ("id", Int),
                ("ts", Int),
                ("dur", Int),
                ("track_id", Int),
                ("track", Text),
                ("parent_id", Int),
                ("depth", Id),
                ("category", Text),
                ("name", Text),
                ("cpu", Id),
                ("tid", Id),
                ("pid", Id),
                ("args", Text),
            ],
            Self::Event => &[("ts", Int), ("cpu", Id), ("tid", Id), ("pid", Id), ("name", Text), ("args", Text)],
            Self::Counter => &[
                ("ts", Int),
                ("track_id", Int),
                ("name", Text),
                ("unit", Text),
                ("value", Float),
                ("cpu", Id),
                ("tid", Id),
                ("pid", Id),
            ],
            Self::Thread => &[
                ("tid", Id),
                ("pid", Id),
                ("comm", Text),
                ("is_main", Bool),
                ("cgroup", Text),
                ("hint", Address),
                ("cell", Text),
                ("subcell", Text),
            ],
            Self::Process => &[("pid", Id), ("name", Text), ("cgroup", Text), ("threads", Int)],
            Self::Sample => &[
                ("ts", Int),
                ("cpu", Id),
                ("tid", Id),
                ("pid", Id),
                ("kind", Text),
                ("size", Id),
                ("address", Address),
                ("phys_address", Address),
                ("page_size", Int),
                ("memory", Text),
                ("memory_offset", Address),
                ("latency", Int),
                ("period", Int),
                ("share", Float),
                ("ip", Address),
                ("mode", Text),
                ("data_src", Address),
                ("cgroup_id", Int),
                ("hint", Address),
            ],
        }
    }

    /// In the words of the format.
    pub(super) fn schema(self) -> Result<TypePtr> {
        let field = |&(name, kind): &(&str, ColumnType)| {
            let (physical, logical) = match kind {
                ColumnType::Int => (Physical::INT64, None),
                ColumnType::Id => (Physical::INT32, None),
                ColumnType::Address => {
                    (Physical::INT64, Some(LogicalType::Integer { bit_width: 64, is_signed: false }))
                }
                ColumnType::Float => (Physical::DOUBLE, None),
                ColumnType::Bool => (Physical::BOOLEAN, None),
                ColumnType::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            };
            let builder = Type::primitive_type_builder(name, physical);
            builder.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build().map(Arc::new)
        };
        let fields = self.columns().iter().map(field).collect::<Result<Vec<_>>>()?;
        Type::group_type_builder(self.name()).with_fields(fields).build().map(Arc::new)
    }
}

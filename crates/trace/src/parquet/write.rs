//! Rows to files: rows are collected and written in groups of bounded size.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use super::schema::{ColumnType, ParquetTable};

/// Rows of a group, whichever comes first.
const GROUP_ROWS: usize = 1 << 16;
/// Bytes of text of a group.
const GROUP_BYTES: usize = 8 << 20;

/// A value of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cell<'a> {
    /// Not known, or there is none.
    Null,
    /// For columns of whole numbers.
    Int(i64),
    /// For columns of numbers.
    Float(f64),
    /// For columns of truth.
    Bool(bool),
    /// For columns of text.
    Text(&'a str),
}

impl<'a> Cell<'a> {
    /// The id of a thread or a process, or a CPU: what stands for an unknown one is beyond those that exist.
    pub(super) fn id(id: u32) -> Self {
        i32::try_from(id).map_or(Self::Null, |id| Self::Int(id.into()))
    }

    /// ns, or a count.
    pub(super) fn uint(value: u64) -> Self {
        i64::try_from(value).map_or(Self::Null, Self::Int)
    }

    /// A value of which all 64 bits are significant.
    pub(super) fn bits(value: u64) -> Self {
        Self::Int(value as i64)
    }

    /// Text; an empty one is not known.
    pub(super) fn text(text: &'a str) -> Self {
        if text.is_empty() {
            Self::Null
        } else {
            Self::Text(text)
        }
    }

    pub(super) fn or_null(cell: Option<Self>) -> Self {
        cell.unwrap_or(Self::Null)
    }
}

/// The values of a column that are not written yet.
#[derive(Debug)]
enum Values {
    Int64(Vec<i64>),
    Int32(Vec<i32>),
    Double(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<ByteArray>),
}

#[derive(Debug)]
struct Column {
    values: Values,
    /// 1 for a value, 0 for NULL.
    levels: Vec<i16>,
}

impl Column {
    fn new(kind: ColumnType) -> Self {
        let values = match kind {
            ColumnType::Int | ColumnType::Address => Values::Int64(Vec::new()),
            ColumnType::Id => Values::Int32(Vec::new()),
            ColumnType::Float => Values::Double(Vec::new()),
            ColumnType::Bool => Values::Bool(Vec::new()),
            ColumnType::Text => Values::Text(Vec::new()),
        };
        Self { values, levels: Vec::new() }
    }

    /// Returns bytes of text.
    fn push(&mut self, cell: Cell<'_>) -> usize {
        let (mut bytes, mut level) = (0, 1);
        match (&mut self.values, cell) {
            (Values::Int64(values), Cell::Int(value)) => values.push(value),
            (Values::Int32(values), Cell::Int(value)) => match i32::try_from(value) {
                Ok(value) => values.push(value),
                Err(_) => level = 0,
            },
            (Values::Double(values), Cell::Float(value)) => values.push(value),
            (Values::Bool(values), Cell::Bool(value)) => values.push(value),
            (Values::Text(values), Cell::Text(text)) => {
                bytes = text.len();
                values.push(ByteArray::from(text));
            }
            (_, cell) => {
                debug_assert_eq!(cell, Cell::Null, "a cell of another kind than its column");
                level = 0;
            }
        }
        self.levels.push(level);
        bytes
    }

    fn write(&mut self, writer: &mut ColumnWriter<'_>) -> Result<(), ParquetError> {
        fn all<T: DataType>(
            writer: &mut ColumnWriterImpl<'_, T>,
            values: &mut Vec<T::T>,
            levels: &[i16],
        ) -> Result<(), ParquetError> {
            writer.write_batch(values, Some(levels), None)?;
            values.clear();
            Ok(())
        }
        let levels = &self.levels;
        match (writer, &mut self.values) {
            (ColumnWriter::Int64ColumnWriter(writer), Values::Int64(values)) => all(writer, values, levels)?,
            (ColumnWriter::Int32ColumnWriter(writer), Values::Int32(values)) => all(writer, values, levels)?,
            (ColumnWriter::DoubleColumnWriter(writer), Values::Double(values)) => all(writer, values, levels)?,
            (ColumnWriter::BoolColumnWriter(writer), Values::Bool(values)) => all(writer, values, levels)?,
            (ColumnWriter::ByteArrayColumnWriter(writer), Values::Text(values)) => all(writer, values, levels)?,
            _ => return Err(ParquetError::General("a column has another type than its schema".to_owned())),
        }
        self.levels.clear();
        Ok(())
    }
}

/// Writes one table.
struct TableWriter<W: Write + Send> {
    table: ParquetTable,
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    /// Rows and bytes of text of this group.
    rows: usize,
    bytes: usize,
    /// Rows of all groups.
    total: u64,
}

impl<W: Write + Send> TableWriter<W> {
    fn new(table: ParquetTable, file: W) -> Result<Self, ParquetError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("scxprof ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = SerializedFileWriter::new(file, table.schema()?, Arc::new(properties))?;
        let columns = table.columns().iter().map(|(_, kind)| Column::new(*kind)).collect();
        Ok(Self { table, writer, columns, rows: 0, bytes: 0, total: 0 })
    }

    fn push(&mut self, row: &[Cell<'_>]) -> Result<(), ParquetError> {
        debug_assert_eq!(row.len(), self.columns.len(), "{:?}", self.table);
        for (column, cell) in self.columns.iter_mut().zip(row) {
            self.bytes += column.push(*cell);
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let Some(mut writer) = group.next_column()? else { break };
            column.write(writer.untyped())?;
            writer.close()?;
        }
        group.close()?;
        self.total += self.rows as u64;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    fn finish(mut self, facts: &[(String, String)]) -> Result<Written<W>, ParquetError> {
        self.flush()?;
        for (key, value) in facts {
            self.writer.append_key_value_metadata(KeyValue::new(key.clone(), value.clone()));
        }
        Ok(Written { table: self.table, rows: self.total, file: self.writer.into_inner()? })
    }
}

/// A table that is complete.
#[derive(Debug)]
pub struct Written<W> {
    /// Which one.
    pub table: ParquetTable,
    /// Its rows.
    pub rows: u64,
    /// What it was written to.
    pub file: W,
}

/// All tables. The first error is kept, and nothing is written after it.
pub(super) struct Out<W: Write + Send> {
    tables: Vec<TableWriter<W>>,
    failed: Option<ParquetError>,
}

/// The error in the words of std: most are those of the file.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

impl<W: Write + Send> Out<W> {
    /// Begins all tables in the files that `create` gives.
    pub(super) fn new(create: &mut dyn FnMut(ParquetTable) -> io::Result<W>) -> io::Result<Self> {
        let tables =
            ParquetTable::ALL.into_iter().map(|table| TableWriter::new(table, create(table)?).map_err(io_error));
        Ok(Self { tables: tables.collect::<io::Result<_>>()?, failed: None })
    }

    pub(super) fn row(&mut self, table: ParquetTable, row: &[Cell<'_>]) {
        if self.failed.is_some() {
            return;
        }
        // The tables stand in the order of `ParquetTable::ALL`, which is that of the enum.
        if let Some(writer) = self.tables.get_mut(table as usize) {
            self.failed = writer.push(row).err();
        }
    }

    /// The error that ended the writing.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), |error| Err(io_error(error)))
    }

    pub(super) fn finish(mut self, facts: &[(String, String)]) -> io::Result<Vec<Written<W>>> {
        self.check()?;
        self.tables.into_iter().map(|table| table.finish(facts).map_err(io_error)).collect()
    }
}

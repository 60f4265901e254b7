//! The table as a file in Parquet, which DuckDB, Polars and Spark read and write too.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use thiserror::Error;

use super::key::{Key, KEY_NUMBERS, KEY_TEXTS};
use super::rows::{Evidence, EvidenceError, Sum, Sums, VERSION};
use super::{footer, pages};
use texts::Texts;

mod texts;

/// Bytes of the texts of rows that are read before these are added.
const WAITING: u64 = 256 << 10;
/// Rows that are read at a time. Each may hold a page of a text's length for each of its columns.
const BATCH: usize = 512;
/// Rows of a file.
const MAX_ROWS: i64 = 1 << 24;
/// Parts of a host, and cell specs.
const MAX_PART: i64 = 1024;
/// Bytes of the largest file.
const MAX_BYTES: u64 = 4 << 30;
/// Rows of the smallest file; a larger one has as many as bytes, as no two of evidence are the same.
const FEW_ROWS: u64 = 1 << 16;
/// Bytes of the texts of all rows for each byte of the file, and those of the smallest one.
const TEXT_PER_BYTE: u64 = 1024;
const LITTLE_TEXT: u64 = 64 << 20;
/// Bytes that the pages and dictionaries of a row group need at a time: those of scxprof and Spark have a MiB of each.
const MAX_HELD: u64 = 160 << 20;

/// Why a file could not be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file could not be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not a regular file.
    #[error("{}: it is no regular file", path.display())]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// It is larger than any evidence.
    #[error("{}: it is larger than {} GiB: no evidence of scxprof is", path.display(), MAX_BYTES >> 30)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is no Parquet, or is damaged.
    #[error("{}: not a file of evidence, or damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It is Parquet, but no evidence.
    #[error("{}: not a file of evidence: it has no column {column}", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
    },
    /// It is of another version.
    #[error("{}: it is evidence of version {found}, and this scxprof reads version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// Its rows cannot be added.
    #[error("{}: {source}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// Why.
        source: EvidenceError,
    },
    /// Reading was given up, as the caller asked for.
    #[error("{}: it was not read to its end", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// It could not be written.
    #[error("{0}")]
    Write(#[from] ParquetError),
}

/// Adds the rows of a file to `evidence`; `key` may change a row's key.
///
/// Memory does not depend on the file: what it claims is checked before any room is made for it, and some pages are held at a time.
/// What its rows take is bounded by [`Evidence::add`].
///
/// # Errors
/// [`FileError`]. Some rows may have been added then.
pub fn read(path: &Path, evidence: &mut Evidence, key: &mut dyn FnMut(Key) -> Key) -> Result<(), FileError> {
    read_until(path, evidence, key, &|| false)
}

/// The same; once `stop` says so, the rest is not read.
///
/// # Errors
/// [`FileError`], [`FileError::Stopped`] too. Some rows may have been added then.
pub fn read_until(
    path: &Path,
    evidence: &mut Evidence,
    key: &mut dyn FnMut(Key) -> Key,
    stop: &dyn Fn() -> bool,
) -> Result<(), FileError> {
    let open = |source| FileError::Open { path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(open)?;
    if !found.is_file() {
        return Err(FileError::NotRegular { path: path.to_owned() });
    }
    if found.len() > MAX_BYTES {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    let file = File::open(path).map_err(open)?;
    let reader = Reader { path, len: found.len(), stop };
    // The crate is well tested with files that real writers wrote, but not with hostile bytes.
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reader.read(file, evidence, key)));
    read.unwrap_or_else(|_| Err(reader.damaged("its parts contradict each other")))
}

/// The checksum of all rows, in their order. Who adds files writes none.
#[derive(Default)]
struct Checksum {
    of_rows: crc32fast::Hasher,
    /// Bytes that are not yet in it: it is quick for many.
    rest: Vec<u8>,
}

/// Its key among the file's facts.
const CHECKSUM: &str = "scxprof.crc32";
/// Bytes that are added to it at a time.
const CHECKED: usize = 4096;

impl Checksum {
    fn add(&mut self, key: &Key, sums: &Sums) {
        for text in key.texts() {
            self.rest.extend_from_slice(text.as_bytes());
            self.rest.push(0);
        }
        self.rest.extend_from_slice(&key.part.to_le_bytes());
        sums.0.iter().for_each(|sum| self.rest.extend_from_slice(&sum.to_le_bytes()));
        if self.rest.len() >= CHECKED {
            self.of_rows.update(&self.rest);
            self.rest.clear();
        }
    }

    fn text(mut self) -> String {
        self.of_rows.update(&self.rest);
        format!("{:08x}", self.of_rows.finalize())
    }
}

/// A column's values of a batch.
enum Values {
    Text(Vec<ByteArray>),
    Number(Vec<i64>),
}

impl Values {
    fn clear(&mut self) {
        match self {
            Self::Text(values) => values.clear(),
            Self::Number(values) => values.clear(),
        }
    }
}

struct Reader<'a> {
    path: &'a Path,
    /// The file's bytes.
    len: u64,
    stop: &'a dyn Fn() -> bool,
}

impl Reader<'_> {
    fn damaged(&self, reason: &(impl ToString + ?Sized)) -> FileError {
        FileError::Damaged { path: self.path.to_owned(), reason: reason.to_string() }
    }

    fn go_on(&self) -> Result<(), FileError> {
        if (self.stop)() {
            return Err(FileError::Stopped { path: self.path.to_owned() });
        }
        Ok(())
    }

    /// Checks what the columns at these places claim.
    fn check(&self, file: &File, group: &RowGroupMetaData, places: &[usize]) -> Result<(), FileError> {
        let mut held = 0u64;
        for column in places.iter().filter_map(|place| group.columns().get(*place)) {
            self.go_on()?;
            let least = match column.column_type() {
                Physical::BYTE_ARRAY => 4,
                Physical::INT64 => 8,
                _ => return Err(self.damaged("a column has another type")),
            };
            // Rows of lists have any number of values.
            let descr = column.column_descr();
            if descr.max_rep_level() > 0 || descr.max_def_level() > 1 {
                return Err(self.damaged("a column has another type"));
            }
            if !matches!(column.compression(), Compression::SNAPPY | Compression::UNCOMPRESSED) {
                let found = column.compression();
                return Err(self.damaged(&format!("it is compressed with {found}; write it with SNAPPY, or without")));
            }
            let begin = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let numbers = [begin, column.compressed_size(), group.num_rows()].map(u64::try_from);
            let [Ok(begin), Ok(bytes), Ok(rows)] = numbers else {
                return Err(self.damaged("a column begins nowhere"));
            };
            let chunk = pages::Chunk { begin, bytes, rows, least };
            let needed = pages::check(file, chunk).map_err(|reason| self.damaged(reason))?;
            held = held.saturating_add(needed);
        }
        if held > MAX_HELD {
            let most = MAX_HELD >> 20;
            return Err(self.damaged(&format!(
                "a row group needs more than {most} MiB at a time; write it with fewer rows in each"
            )));
        }
        Ok(())
    }

    fn read(&self, file: File, evidence: &mut Evidence, key: &mut dyn FnMut(Key) -> Key) -> Result<(), FileError> {
        let bytes = file.try_clone().map_err(|error| self.damaged(&error))?;
        footer::check(&bytes, self.len).map_err(|reason| self.damaged(reason))?;
        let reader = SerializedFileReader::new(file).map_err(|error| self.damaged(&error))?;
        let metadata = reader.metadata();
        let columns = metadata.file_metadata().schema_descr();
        let place = |column: &'static str| {
            let is_it = |it: &usize| columns.column(*it).path().string() == column;
            (0..columns.num_columns()).find(is_it).ok_or(FileError::NoColumn { path: self.path.to_owned(), column })
        };
        let groups = metadata.row_groups();
        // No two columns are the same bytes.
        let sizes = groups.iter().flat_map(RowGroupMetaData::columns).map(ColumnChunkMetaData::compressed_size);
        if sizes.fold(0u64, |sum, size| sum.saturating_add(u64::try_from(size).unwrap_or(u64::MAX))) > self.len {
            return Err(self.damaged("its columns have more bytes than the file"));
        }
        let rows = metadata.file_metadata().num_rows();
        if rows > MAX_ROWS || u64::try_from(rows).is_ok_and(|rows| rows > self.len.max(FEW_ROWS)) {
            return Err(self.damaged("it has too many rows"));
        }
        let counts = groups.iter().map(RowGroupMetaData::num_rows);
        if counts.clone().any(|rows| rows < 0) || counts.fold(0, i64::saturating_add) != rows {
            return Err(self.damaged("its numbers of rows contradict each other"));
        }
        let version = place("version")?;
        groups.first().map_or(Ok(()), |group| self.check(&bytes, group, &[version]))?;
        self.check_version(&reader, version)?;
        let sums = Sum::ALL.iter().map(|sum| sum.name());
        let names = KEY_TEXTS.into_iter().chain(KEY_NUMBERS).chain(sums);
        let places: Vec<usize> = names.map(place).collect::<Result<_, _>>()?;
        groups.iter().try_for_each(|group| self.check(&bytes, group, &places))?;
        let mut text = TEXT_PER_BYTE.saturating_mul(self.len).max(LITTLE_TEXT);
        let mut sum = Checksum::default();
        let (mut texts, mut rows) = (Texts::default(), Vec::with_capacity(BATCH));
        let (mut values, mut levels): (Vec<Values>, Vec<i16>) = (Vec::new(), Vec::new());
        for group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(group).map_err(|error| self.damaged(&error))?;
            let mut columns: Vec<ColumnReader> = Vec::with_capacity(places.len());
            for &place in &places {
                columns.push(group.get_column_reader(place).map_err(|error| self.damaged(&error))?);
            }
            let mut left = group.metadata().num_rows();
            while left > 0 {
                self.go_on()?;
                let wanted = BATCH.min(usize::try_from(left).unwrap_or(BATCH));
                values.resize_with(columns.len(), || Values::Number(Vec::new()));
                for (column, values) in columns.iter_mut().zip(&mut values) {
                    self.column(column, wanted, &mut levels, values)?;
                }
                let refused = |source| FileError::Rows { path: self.path.to_owned(), source };
                let mut waiting = 0;
                let taken = (0..wanted).try_for_each(|row| -> Result<(), FileError> {
                    let (found, sums, len) = self.row(&values, row, &mut texts, evidence)?;
                    text = text.checked_sub(len).ok_or_else(|| self.damaged("it repeats texts too often"))?;
                    sum.add(&found, &sums);
                    rows.push((key(found), sums));
                    waiting += len;
                    if waiting > WAITING {
                        waiting = 0;
                        evidence.add_all(&mut rows).map_err(refused)?;
                    }
                    Ok(())
                });
                evidence.add_all(&mut rows).map_err(refused)?;
                taken?;
                // Its texts hold the pages that they are in.
                values.iter_mut().for_each(Values::clear);
                left -= wanted as i64;
            }
        }
        let known = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let known = known.filter(|it| it.key == CHECKSUM).find_map(|it| it.value.as_deref());
        if known.is_some_and(|known| known != sum.text()) {
            return Err(self.damaged("its checksum is wrong"));
        }
        Ok(())
    }

    /// The first row's version: if it is another one, columns may be missing too.
    fn check_version(&self, reader: &SerializedFileReader<File>, place: usize) -> Result<(), FileError> {
        let metadata = reader.metadata();
        if metadata.row_groups().first().is_none_or(|group| group.num_rows() < 1) {
            return Ok(());
        }
        let group = reader.get_row_group(0).map_err(|error| self.damaged(&error))?;
        let mut column = group.get_column_reader(place).map_err(|error| self.damaged(&error))?;
        let mut values = Values::Number(Vec::new());
        self.column(&mut column, 1, &mut Vec::new(), &mut values)?;
        match values {
            Values::Number(values) => match values.first() {
                Some(&found) if found != VERSION => Err(FileError::Version { path: self.path.to_owned(), found }),
                _ => Ok(()),
            },
            Values::Text(_) => Err(self.damaged("a column has another type")),
        }
    }

    /// This number of values of a column, instead of the existing ones.
    fn column(
        &self,
        column: &mut ColumnReader,
        wanted: usize,
        levels: &mut Vec<i16>,
        values: &mut Values,
    ) -> Result<(), FileError> {
        match column {
            ColumnReader::ByteArrayColumnReader(reader) => {
                if let Values::Number(_) = values {
                    *values = Values::Text(Vec::new());
                }
                if let Values::Text(values) = values {
                    self.values(reader, wanted, levels, values)?;
                }
            }
            ColumnReader::Int64ColumnReader(reader) => {
                if let Values::Text(_) = values {
                    *values = Values::Number(Vec::new());
                }
                if let Values::Number(values) = values {
                    self.values(reader, wanted, levels, values)?;
                }
            }
            _ => return Err(self.damaged("a column has another type")),
        }
        Ok(())
    }

    fn values<T: DataType>(
        &self,
        reader: &mut parquet::column::reader::ColumnReaderImpl<T>,
        wanted: usize,
        levels: &mut Vec<i16>,
        values: &mut Vec<T::T>,
    ) -> Result<(), FileError> {
        levels.clear();
        values.clear();
        let read = reader.read_records(wanted, Some(levels), None, values);
        let (records, _, _) = read.map_err(|error| self.damaged(&error))?;
        if records != wanted || values.len() != wanted {
            return Err(self.damaged("a column has no value in some rows"));
        }
        Ok(())
    }

    /// The key and the numbers of a row of a batch, and the bytes of its texts.
    fn row(
        &self,
        values: &[Values],
        row: usize,
        texts: &mut Texts,
        known: &Evidence,
    ) -> Result<(Key, Sums, u64), FileError> {
        let number = |at: usize| match values.get(at) {
            Some(Values::Number(values)) => values.get(row).copied().ok_or_else(|| self.damaged("a row is short")),
            _ => Err(self.damaged("a column has another type")),
        };
        let version = number(KEY_TEXTS.len())?;
        if version != VERSION {
            return Err(FileError::Version { path: self.path.to_owned(), found: version });
        }
        let of_texts = values.get(..KEY_TEXTS.len()).unwrap_or_default();
        if of_texts.iter().any(|values| matches!(values, Values::Number(_))) {
            return Err(self.damaged("a column has another type"));
        }
        let of_row = of_texts.iter().map(|values| match values {
            Values::Text(values) => values.get(row).map(ByteArray::data).unwrap_or_default(),
            Values::Number(_) => &[],
        });
        let len = texts.take(of_row).map_err(|reason| self.damaged(reason))?;
        let part = number(KEY_TEXTS.len() + 1)?;
        if !(0..MAX_PART).contains(&part) {
            return Err(self.damaged("a part is out of bounds"));
        }
        let Some(found) = texts.key(known, part) else {
            return Err(self.damaged("it has rows of an unknown kind"));
        };
        let mut sums = Sums::default();
        for (at, sum) in sums.0.iter_mut().enumerate() {
            *sum = number(KEY_TEXTS.len() + KEY_NUMBERS.len() + at)?;
        }
        Ok((found, sums, len as u64))
    }
}

/// The columns.
fn schema() -> Result<TypePtr, ParquetError> {
    let column = |name: &str, physical, logical| {
        let column = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
        column.with_logical_type(logical).build().map(Arc::new)
    };
    let texts = KEY_TEXTS.iter().map(|name| column(name, Physical::BYTE_ARRAY, Some(LogicalType::String)));
    let sums = Sum::ALL.iter().map(|sum| sum.name());
    let numbers = KEY_NUMBERS.into_iter().chain(sums).map(|name| column(name, Physical::INT64, None));
    let columns = texts.chain(numbers).collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder("evidence").with_fields(columns).build().map(Arc::new)
}

/// Writes all rows, in the order of their keys.
///
/// # Errors
/// [`FileError::Write`].
pub fn write(evidence: &Evidence, file: impl Write + Send) -> Result<(), FileError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        // They are larger than the columns of a small file.
        .set_statistics_enabled(EnabledStatistics::None)
        .set_created_by(concat!("scxprof ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let mut writer = SerializedFileWriter::new(file, schema()?, Arc::new(properties))?;
    let rows: Vec<(&Key, &Sums)> = evidence.rows().collect();
    for rows in rows.chunks(1 << 16) {
        let mut group = writer.next_row_group()?;
        let mut at = 0;
        while let Some(mut column) = group.next_column()? {
            match column.untyped() {
                ColumnWriter::ByteArrayColumnWriter(writer) => {
                    let values =
                        rows.iter().map(|it| ByteArray::from(it.0.texts().get(at).copied().unwrap_or_default()));
                    writer.write_batch(&values.collect::<Vec<_>>(), None, None)?;
                }
                ColumnWriter::Int64ColumnWriter(writer) => {
                    let of = |(key, sums): &(&Key, &Sums)| match at - KEY_TEXTS.len() {
                        0 => VERSION,
                        1 => key.part,
                        sum => sums.0.get(sum - KEY_NUMBERS.len()).copied().unwrap_or_default(),
                    };
                    writer.write_batch(&rows.iter().map(of).collect::<Vec<i64>>(), None, None)?;
                }
                _ => return Err(ParquetError::General("a column has another type than its schema".to_owned()).into()),
            }
            column.close()?;
            at += 1;
        }
        group.close()?;
    }
    let mut sum = Checksum::default();
    for (key, sums) in rows {
        sum.add(key, sums);
    }
    writer.append_key_value_metadata(KeyValue::new(CHECKSUM.to_owned(), sum.text()));
    writer.close()?;
    Ok(())
}

#[cfg(test)]
mod tests;

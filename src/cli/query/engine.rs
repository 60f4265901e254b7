//! The engine: DataFusion on the tables, which are in memory or in a directory. It only reads.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::memory::InMemory;
use datafusion::object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast;
use serde_json::{Number, Value};

use super::Failure;
use crate::trace::parquet::Table;

/// Where the tables are.
pub(super) enum Tables {
    /// Files of Parquet.
    Memory(Vec<(Table, Vec<u8>)>),
    /// A directory of such files.
    Directory(PathBuf),
}

/// A result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rows {
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Value>>,
    /// There are more than were asked for.
    pub(super) has_more: bool,
}

/// One line of what the engine says, without its own introduction.
fn sentence(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    let text = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let intros = ["SQL error: ", "Error during planning: ", "Schema error: ", "Execution error: ", "Arrow error: "];
    let intro = intros.into_iter().find(|intro| text.starts_with(intro)).map_or(0, str::len);
    let text = text.get(intro..).unwrap_or(&text).replace("datafusion.public.", "");
    // The parser's own errors are printed as Rust writes values.
    let parsed = text.strip_prefix("ParserError(\"").and_then(|text| text.strip_suffix("\")"));
    parsed.map_or(text.clone(), |text| text.replace("\\\"", "\"").replace("\\'", "'"))
}

/// Mistakes of the query are told from those of files.
fn failure(error: &DataFusionError) -> Failure {
    let said = sentence(error);
    match error.find_root() {
        DataFusionError::IoError(_)
        | DataFusionError::ObjectStore(_)
        | DataFusionError::ParquetError(_)
        | DataFusionError::ResourcesExhausted(_)
        | DataFusionError::Internal(_)
        | DataFusionError::External(_) => Failure::NoResult(anyhow!("the query failed: {said}")),
        _ => Failure::Usage(anyhow!("the query cannot be run: {said}")),
    }
}

/// Looks whether the text is one statement that only reads.
pub(super) fn check(sql: &str) -> Result<(), Failure> {
    let statements = DFParser::parse_sql(sql).map_err(|error| failure(&error))?;
    if statements.len() != 1 {
        return Err(Failure::Usage(anyhow!(
            "a query is one SELECT, and this text has {} statements",
            statements.len()
        )));
    }
    let reads = |statement: &Statement| match statement {
        Statement::Statement(statement) => matches!(
            **statement,
            ast::Statement::Query(_) | ast::Statement::ExplainTable { .. } | ast::Statement::ShowTables { .. }
        ),
        Statement::Explain(explain) => {
            matches!(&*explain.statement, Statement::Statement(it) if matches!(**it, ast::Statement::Query(_)))
        }
        _ => false,
    };
    if !statements.iter().all(reads) {
        return Err(Failure::Usage(anyhow!(
            "queries only read: begin with SELECT, WITH, EXPLAIN, DESCRIBE or SHOW TABLES"
        )));
    }
    Ok(())
}

/// Runs one query, and returns at most `limit` rows, all of them for 0.
pub(super) fn run(tables: Tables, sql: &str, limit: usize) -> Result<Rows, Failure> {
    check(sql)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| Failure::NoResult(anyhow!("the engine cannot start: {error}")))?;
    runtime.block_on(ask(tables, sql, limit)).map_err(|error| failure(&error))
}

async fn ask(tables: Tables, sql: &str, limit: usize) -> Result<Rows, DataFusionError> {
    // One partition: the order of rows of equal keys is always the same, and so are sums of fractions.
    let config = SessionConfig::new().with_target_partitions(1).with_information_schema(true);
    let context = SessionContext::new_with_config(config);
    let url = ObjectStoreUrl::parse("tables://all")?;
    let store: Arc<dyn ObjectStore> = match tables {
        Tables::Memory(files) => {
            let store = InMemory::new();
            for (table, file) in files {
                store.put(&name(table).into(), PutPayload::from(file)).await?;
            }
            Arc::new(store)
        }
        Tables::Directory(path) => Arc::new(LocalFileSystem::new_with_prefix(path)?),
    };
    context.register_object_store(url.as_ref(), store);
    for table in Table::ALL {
        let file = format!("{}{}", url.as_str(), name(table));
        context.register_parquet(table.name(), file, ParquetReadOptions::default()).await?;
    }
    let plan = context.state().create_logical_plan(sql).await?;
    let options = datafusion::execution::context::SQLOptions::new();
    // What `check` has not told.
    options.with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false).verify_plan(&plan)?;
    let frame = context.execute_logical_plan(plan).await?;
    let columns = frame.schema().fields().iter().map(|field| field.name().clone()).collect();
    let frame = if limit == 0 { frame } else { frame.limit(0, Some(limit.saturating_add(1)))? };
    let mut rows = Vec::new();
    for batch in frame.collect().await? {
        push(&batch, &mut rows)?;
    }
    let has_more = limit > 0 && rows.len() > limit;
    if has_more {
        rows.truncate(limit);
    }
    Ok(Rows { columns, rows, has_more })
}

fn name(table: Table) -> String {
    format!("{}.parquet", table.name())
}

/// A number; one that JSON has no word for is text.
fn number(value: f64) -> Value {
    Number::from_f64(value).map_or_else(|| Value::String(value.to_string()), Value::Number)
}

fn push(batch: &RecordBatch, rows: &mut Vec<Vec<Value>>) -> Result<(), DataFusionError> {
    let first = rows.len();
    rows.resize_with(first + batch.num_rows(), Vec::new);
    for column in batch.columns() {
        let kind = column.data_type();
        let values: Box<dyn Fn(usize) -> Value> = match kind {
            kind if kind.is_unsigned_integer() => {
                let values = cast(column, &DataType::UInt64)?.as_primitive::<UInt64Type>().clone();
                Box::new(move |at| values.value(at).into())
            }
            kind if kind.is_signed_integer() => {
                let values = cast(column, &DataType::Int64)?.as_primitive::<Int64Type>().clone();
                Box::new(move |at| values.value(at).into())
            }
            kind if kind.is_floating() || matches!(kind, DataType::Decimal128(..)) => {
                let values = cast(column, &DataType::Float64)?.as_primitive::<Float64Type>().clone();
                Box::new(move |at| number(values.value(at)))
            }
            DataType::Boolean => {
                let values = column.as_boolean().clone();
                Box::new(move |at| values.value(at).into())
            }
            _ => {
                let options = FormatOptions::default();
                let texts = ArrayFormatter::try_new(column, &options)?;
                let texts = (0..column.len()).map(|at| texts.value(at).try_to_string());
                let texts = texts.collect::<Result<Vec<_>, _>>()?;
                Box::new(move |at| texts.get(at).cloned().map_or(Value::Null, Value::String))
            }
        };
        for (at, row) in rows.iter_mut().skip(first).enumerate() {
            row.push(if column.is_null(at) { Value::Null } else { values(at) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(sql: &str) -> String {
        match check(sql) {
            Err(Failure::Usage(error)) => error.to_string(),
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn what_writes_is_refused() {
        for sql in [
            "COPY sched TO 'x.csv'",
            "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'",
            "CREATE TABLE x AS SELECT 1",
            "INSERT INTO thread VALUES (1)",
            "DROP TABLE sched",
            "SET datafusion.execution.batch_size = 1",
            "EXPLAIN ANALYZE INSERT INTO thread VALUES (1)",
        ] {
            assert!(refused(sql).starts_with("queries only read"), "{sql}: {}", refused(sql));
        }
        assert!(refused("SELECT 1; SELECT 2").contains("has 2 statements"));
        assert!(refused("").contains("has 0 statements"));
        assert!(refused("SELEKT 1").starts_with("the query cannot be run: "), "{}", refused("SELEKT 1"));
        for sql in
            ["SELECT 1", "WITH x AS (SELECT 1) SELECT * FROM x", "EXPLAIN SELECT 1", "DESCRIBE sched", "SHOW TABLES"]
        {
            assert!(check(sql).is_ok(), "{sql}");
        }
    }
}

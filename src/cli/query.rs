//! `scxprof trace query`: SQL on the tables of a trace or a profile.

#[cfg(feature = "query")]
mod engine;

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;

use super::capture::{INPUT, RESULT, TUNING};
use super::{percent, Failure};

const EXAMPLES: &str = "\
Examples:
  scxprof trace query trace.pb 'SELECT tid, SUM(dur) AS ns FROM sched GROUP BY tid ORDER BY ns DESC'
  scxprof trace query web.tar.gz 'SELECT page_size, COUNT(*) FROM sample GROUP BY page_size' --csv
  scxprof export -f trace.pb --parquet tables    tables once, for many queries
  scxprof trace query tables 'SELECT * FROM thread' --json | jq '.[0]'
docs/queries.md has the tables and twenty worked queries. A build without the feature `query` has no engine: write tables
with `scxprof export --parquet`, and use DuckDB.
Exit codes:
  0  the result was written
  1  there are no events, or the result could not be written
  2  wrong usage, also a mistake in the query, and a file that cannot be opened
  3  this build has no engine
  4  the result was written, but a part of the file could not be read, or too much was lost";

/// Query a trace or a profile with SQL
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct QueryArgs {
    /// A trace, a profile, or a directory that `export --parquet` wrote
    #[arg(help_heading = INPUT)]
    file: PathBuf,
    /// One SELECT; docs/queries.md has the tables
    #[arg(value_name = "SQL", help_heading = INPUT)]
    sql: String,
    /// The configuration whose cells and subcells the table `thread` has
    #[arg(long, value_name = "FILE", help_heading = INPUT)]
    config: Option<PathBuf>,
    /// Memory for the queues and mappings of a profile; the tables take more
    #[arg(
        long,
        value_name = "MIB",
        default_value = "64",
        value_parser = clap::value_parser!(u32).range(8..),
        help_heading = TUNING
    )]
    memory: u32,
    /// Exit with 4 if more samples than this were lost
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent, help_heading = TUNING)]
    max_loss: f64,
    /// Print an array of objects as JSON
    #[arg(long, conflicts_with = "csv", help_heading = RESULT)]
    json: bool,
    /// Print CSV with a line of names; NULL is empty
    #[arg(long, help_heading = RESULT)]
    csv: bool,
    /// Rows to print; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = RESULT)]
    limit: usize,
    /// Write the result to FILE instead of stdout
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = RESULT)]
    output: Option<PathBuf>,
}

/// Runs `scxprof trace query`.
pub(super) fn run(args: &QueryArgs, stdout_is_open: bool) -> Result<(), Failure> {
    let to_stdout = args.output.as_deref().is_none_or(|path| path == Path::new("-"));
    if to_stdout && !stdout_is_open {
        return Err(Failure::Usage(anyhow!("stdout is closed, so there is nowhere to print to; use -o FILE")));
    }
    #[cfg(feature = "query")]
    return answer::run(args);
    #[cfg(not(feature = "query"))]
    Err(Failure::Unsupported(anyhow!(
        "this scxprof has no engine for queries: build it with `cargo build --release --features query`, or write tables with \
         `scxprof export -f {} --parquet DIR` and query them with DuckDB (docs/queries.md)",
        args.file.display()
    )))
}

#[cfg(feature = "query")]
mod answer {
    use std::sync::mpsc::{channel, RecvTimeoutError};
    use std::thread;
    use std::time::Duration;

    use anyhow::Context;
    use serde_json::Value;

    use super::engine::{self, Rows, Tables};
    use super::{anyhow, Failure, QueryArgs};
    use crate::cli::output::{Output, Readers};
    use crate::cli::signals::Signals;
    use crate::cli::tables::{self, Request};
    use crate::cli::{process, sched};
    use crate::config::aligned;
    use crate::escape;
    use crate::trace::parquet::Table;

    /// How often it is looked whether a signal came.
    const TICK: Duration = Duration::from_millis(50);

    pub(super) fn run(args: &QueryArgs) -> Result<(), Failure> {
        let placement = args.config.as_deref().map(sched::read_config).transpose()?;
        let output = Output::open(args.output.as_deref(), Readers::Owner).map_err(Failure::Usage)?;
        let signals = Signals::handle().map_err(Failure::Unsupported)?;
        let (found, end) = if args.file.join("sched.parquet").is_file() {
            if placement.is_some() {
                return Err(Failure::Usage(anyhow!("--config is of no use here: the tables are written already")));
            }
            (Tables::Directory(args.file.clone()), Ok(()))
        } else {
            let request = Request {
                path: &args.file,
                placement: placement.as_ref(),
                memory: (args.memory as usize).saturating_mul(1 << 20),
                max_loss: args.max_loss,
                stop: &|| signals.seen(),
            };
            // A mistake is told before a large trace is read.
            engine::check(&args.sql)?;
            let read = tables::read(&request, &mut |_: Table| Ok(Vec::new()))?;
            let files = read.finished.tables.into_iter().map(|table| (table.table, table.file));
            (Tables::Memory(files.collect()), read.end)
        };
        let (sql, limit) = (args.sql.clone(), args.limit);
        let (send, receive) = channel();
        // A query may compute for long between two looks at anything; the end of the process ends its thread.
        thread::Builder::new()
            .name("query".to_owned())
            .spawn(move || send.send(engine::run(found, &sql, limit)))
            .context("cannot start a thread")
            .map_err(Failure::NoResult)?;
        let rows = loop {
            match receive.recv_timeout(TICK) {
                Ok(rows) => break rows?,
                Err(RecvTimeoutError::Timeout) if !signals.seen() => {}
                Err(RecvTimeoutError::Timeout) => return Err(process::interrupted()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::NoResult(anyhow!("the engine failed at this query")));
                }
            }
        };
        if rows.has_more {
            say!("note: there are more rows than --limit {limit}");
        }
        let text = if args.json {
            json(&rows).context("cannot write the result").map_err(Failure::NoResult)?
        } else if args.csv {
            csv(&rows)
        } else {
            table(&rows)
        };
        output.write(text.as_bytes(), true).map_err(Failure::NoResult)?;
        end
    }

    /// The columns stay in their order, which a map of serde_json does not keep.
    fn json(rows: &Rows) -> anyhow::Result<String> {
        let mut lines = Vec::new();
        for row in &rows.rows {
            let members = rows.columns.iter().zip(row);
            let members = members.map(|(name, value)| Ok(format!("{}: {value}", serde_json::to_string(name)?)));
            lines.push(format!("  {{{}}}", members.collect::<anyhow::Result<Vec<_>>>()?.join(", ")));
        }
        let lines = if lines.is_empty() { String::new() } else { format!("\n{}\n", lines.join(",\n")) };
        Ok(escape::json(format!("[{lines}]\n")))
    }

    fn text(value: &Value, null: &str) -> String {
        match value {
            Value::Null => null.to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    fn csv(rows: &Rows) -> String {
        let cell = |text: &str| {
            let text = escape::line(text);
            if text.contains([',', '"']) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.into_owned()
            }
        };
        let mut lines = rows.columns.iter().map(|name| cell(name)).collect::<Vec<_>>().join(",") + "\n";
        for row in &rows.rows {
            lines += &row.iter().map(|value| cell(&text(value, ""))).collect::<Vec<_>>().join(",");
            lines.push('\n');
        }
        lines
    }

    fn table(rows: &Rows) -> String {
        let mut lines = vec![rows.columns.clone()];
        let cell = |value: &Value| escape::line(&text(value, "-")).into_owned();
        lines.extend(rows.rows.iter().map(|row| row.iter().map(cell).collect()));
        escape::lines(&aligned(&lines))
    }

    #[cfg(test)]
    mod tests {
        use serde_json::json;

        use super::*;

        #[test]
        fn what_a_terminal_would_obey_is_escaped() {
            let rows = Rows {
                columns: vec!["name".to_owned(), "ns".to_owned()],
                rows: vec![vec![json!("a\u{1b}[m,\"b\""), json!(12)], vec![Value::Null, json!(1.5)]],
                has_more: false,
            };
            assert_eq!(csv(&rows), "name,ns\n\"a\\x1b[m,\"\"b\"\"\",12\n,1.5\n");
            assert_eq!(table(&rows), "name             ns\na\\x1b[m,\"b\"   12\n-             1.5\n");
            assert!(json(&rows).unwrap().contains("\"name\": \"a\\u001b[m,\\\"b\\\"\""), "{}", json(&rows).unwrap());
        }
    }
}

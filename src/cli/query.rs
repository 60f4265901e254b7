//! `scxprof trace query`: prints the command line with which DuckDB runs a query on a trace or a profile.

use super::args::INPUT;
use super::failure::Failure;
use super::output::Stdout;
use std::path::{Path, PathBuf};

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  scxprof trace query trace.pb 'SELECT tid, SUM(dur) AS ns FROM sched GROUP BY tid ORDER BY ns DESC' | sh
docs/queries.md has the tables and twenty worked queries.
Exit codes:
  0  the line was printed
  1  it could not be printed
  2  wrong usage";

/// Print the command line with which DuckDB runs a query on a trace or a profile
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct QueryArgs {
    /// A trace, a profile, or a directory that `export --parquet` wrote
    #[arg(help_heading = INPUT)]
    file: PathBuf,
    /// One SELECT; docs/queries.md has the tables
    #[arg(value_name = "SQL", help_heading = INPUT)]
    sql: String,
}

/// Runs `scxprof trace query`.
pub(super) fn run(args: &QueryArgs, stdout: Stdout) -> Result<(), Failure> {
    let text = format!("{}\n", line(&args.file, &args.sql));
    stdout.open(None)?.write(text.as_bytes(), true).map_err(Failure::NoResult)
}

/// What to type in a shell, in any directory and as often as wanted: tables that it exports are in a temporary directory, which it
/// removes. Relative paths in the query are those of the shell.
fn line(file: &Path, sql: &str) -> String {
    let file_word = quoted(&file.to_string_lossy());
    let tables = if file.join("sched.parquet").is_file() {
        format!("d={file_word}")
    } else {
        // A shell that a signal ends need not run what is for EXIT (dash).
        format!(
            r#"t=$(mktemp -d) && trap 'rm -rf "$t"' EXIT && trap 'exit 1' HUP INT TERM && d=$t/tables && scxprof export -f {file_word} --parquet "$d""#
        )
    };
    // A quote in a path is doubled in SQL.
    let views = r#"$(for f in "$d"/*.parquet; do n=${f##*/}; printf "CREATE VIEW %s AS FROM '%s';\n" "${n%.parquet}" "$(printf %s "$f" | sed "s/'/''/g")"; done)"#;
    format!(r#"({tables} && duckdb -cmd "{views}" -c {})"#, quoted(sql))
}

/// A word of a shell command.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+:@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

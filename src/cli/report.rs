//! `scxprof report`: the summary of a profile, by the way that `extract` goes.

use clap::Args;

use super::args::RESULT;
use super::decision::{Printed, Shown};
use super::extract::{self, ExtractArgs};
use super::failure::Failure;
use super::output::Stdout;

const EXAMPLES: &str = "\
Examples:
  scxprof report -f host.tar.gz                  what `run -v` says: who was sampled, and the subcells
  scxprof report -f host.tar.gz -v               what `run -vv` says: also the sharing matrix and the hot lines
  scxprof report -f perf.data --comm '^web'      some threads of what perf mem record wrote
  scxprof report -f host.tar.gz --html report.html   a page for a browser, to look at and to send
  scxprof report -f host.tar.gz --json | jq '.lines[0]'   the report, as --report FILE writes it
  scxprof report -f host.tar.gz -o /dev/null --sharing-csv -   the sharing matrix as CSV";

/// Print the summary of a recorded profile, without the configuration
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_arg("output", |arg| arg.help("Write the summary to FILE instead of stdout")),
    mut_arg("verbose", |arg| arg.help("Print full detail: each name, the sharing matrix and the hot lines")),
)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    extract: ExtractArgs,
    /// Print the JSON of --report instead (schema: docs/report.md)
    #[arg(long, help_heading = RESULT)]
    json: bool,
    /// Text, as perf calls it: it always is
    #[arg(long, hide = true)]
    stdio: bool,
}

/// Reads the profile, decides and prints what was found.
pub(super) fn run(args: &ReportArgs, stdout: Stdout) -> Result<(), Failure> {
    // A summary is what -v says, and with -v all that -vv says.
    let verbose = args.extract.verbose.saturating_add(1);
    let printed = if args.json { Printed::Json } else { Printed::Summary };
    extract::print(
        &args.extract,
        Shown { printed, verbose: if args.json { args.extract.verbose } else { verbose } },
        stdout,
    )
}

//! `scxprof doctor`: what this host can do, and a test of it.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::Command;
use std::time::Duration;

use anyhow::{anyhow, Context};
use clap::Args;

use super::args::seconds;
use super::failure::Failure;
use super::format;
use super::output;
use super::width;
use crate::doctor::{self, selftest, Style};
use crate::host::Roots;
use scxprof_base::escape;

/// The hidden subcommand that is the self-test's load.
pub(super) const LOAD: &str = "doctor-load";

const AFTER_HELP: &str = "\
Exit codes:
  0  at least one source works, if only for your own processes
  1  the self-test failed, or the result could not be written
  2  wrong usage
  3  no source works, or no run can begin (pid-namespace, cgroups)
Examples:
  sudo scxprof doctor                what works here, what does not, why, and what would help
  sudo scxprof doctor --self-test    sample a known load, and print a block for a bug report
  scxprof doctor --json              the same for programs (docs/doctor.md has the schema)";

/// Say what this host allows: each source and what it needs
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Sample a known load with each source that works, and compare
    #[arg(long)]
    self_test: bool,
    /// How long the self-test samples with each source
    #[arg(short = 't', long = "time", alias = "duration", value_name = "TIME", default_value = "3", requires = "self_test",
          allow_negative_numbers = true, value_parser = seconds)]
    time: Duration,
}

/// The JSON output.
#[derive(serde::Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    report: &'a doctor::Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    self_test: Option<&'a [selftest::Tested]>,
}

/// Examines the host and prints the result.
pub(super) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let roots = Roots::default();
    let report = doctor::examine(&roots);
    let tests = args.self_test.then(|| test(args, &roots, &report)).transpose()?;
    let text = match (&tests, args.json) {
        (tests, true) => {
            let json = Json { report: &report, self_test: tests.as_deref() };
            format::json(&json).context("cannot write JSON").map_err(Failure::NoResult)?
        }
        (Some(tests), false) => escape::lines(&selftest::block(&report, tests)),
        (None, false) => {
            let color = std::io::stdout().is_terminal() && may_color(|name| std::env::var_os(name));
            doctor::table(&report, Style { color, width: width::of(&std::io::stdout()) })
        }
    };
    output::print(text.as_bytes()).map_err(Failure::NoResult)?;
    if !report.any_source() {
        return Err(Failure::Unsupported(anyhow!("no source works here")));
    }
    if let Some(obstacle) = report.obstacle() {
        return Err(Failure::Unsupported(anyhow!("{obstacle}")));
    }
    match tests.iter().flatten().filter(|test| !test.passed).count() {
        0 => Ok(()),
        failed => Err(Failure::NoResult(anyhow!("the self-test failed with {failed} of the sources"))),
    }
}

/// Whether the environment allows colours.
fn may_color(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    // https://no-color.org: set, and not empty.
    let plain = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !plain && variable("TERM").is_none_or(|term| term != "dumb")
}

fn test(args: &DoctorArgs, roots: &Roots, report: &doctor::Report) -> Result<Vec<selftest::Tested>, Failure> {
    let command = || {
        // Independent of the binary's name and location.
        let mut command = Command::new("/proc/self/exe");
        command.arg(LOAD);
        command
    };
    selftest::run(report, roots, args.time, command)
        .context("cannot start the self-test's load")
        .map_err(Failure::NoResult)
}

/// The code of the self-test's load.
pub(super) fn load() -> Result<(), Failure> {
    super::load::run().context("the load").map_err(Failure::NoResult)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_left_out_where_the_environment_says_so() {
        let with = |name: &'static str, value: &'static str| move |asked: &str| (asked == name).then(|| value.into());
        assert!(may_color(|_| None) && may_color(with("NO_COLOR", "")) && may_color(with("TERM", "xterm")));
        assert!(!may_color(with("NO_COLOR", "1")) && !may_color(with("TERM", "dumb")));
    }
}

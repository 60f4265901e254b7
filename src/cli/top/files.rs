//! The files that keys write and read. A file may be on a dead mount: all of this is done by the worker.

use std::path::Path;

use anyhow::{anyhow, bail, Context, Result};

use super::super::input;
use super::super::output::{is_stdout, Output, Readers};
use super::keys::Replace;
use super::state::Asked;
use super::worker::Answer;
use crate::report::html;
use crate::session::{Live, SharingWindow};

/// Writes what is made to a file. One that exists is replaced only if that is wanted.
pub(super) fn write(asked: Asked, path: &Path, text: Result<String>, replace: Replace) -> Answer {
    let readers = if asked == Asked::Write { Readers::All } else { Readers::Owner };
    match text.and_then(|text| written(path, &text, readers, replace)) {
        Ok(true) => Answer::Said(Ok(format!("wrote {}", path.display()))),
        Ok(false) => Answer::Exists(asked, path.to_owned()),
        Err(error) => Answer::Said(Err(error)),
    }
}

/// True if the file was written, false if it exists and is not to be replaced.
fn written(path: &Path, text: &str, readers: Readers, replace: Replace) -> Result<bool> {
    if is_stdout(Some(path)) {
        bail!("name a file: stdout is the screen");
    }
    if replace == Replace::No && path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    let output = Output::open(Some(path), readers)?;
    if output.may_wait() {
        bail!("{} is no file", path.display());
    }
    output.write(text.as_bytes(), false)?;
    Ok(true)
}

/// The configuration of what was sampled so far.
pub(super) fn configuration(sharing: Option<&SharingWindow>) -> Result<String> {
    let sharing = sharing.context("nothing was decided yet: wait for the first groups")?;
    let reason = || sharing.interval.reason.clone().unwrap_or_else(|| "nothing was found to configure".to_owned());
    sharing.configuration.clone().ok_or_else(|| anyhow!("there is no configuration: {}", reason()))
}

/// The report of the last window, for a name that ends in `.html` as a page; for `.jsonl` the last accesses.
pub(super) fn report(live: &Live, sharing: Option<&SharingWindow>, path: &Path) -> Result<String> {
    let is = |wanted: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted));
    if is("jsonl") {
        let mut lines = Vec::new();
        live.write_accesses(&mut lines)?;
        return Ok(String::from_utf8(lines)?);
    }
    let report = sharing.and_then(|sharing| sharing.report.as_ref());
    let report = report.context("there is no report yet: wait for the first groups")?;
    if is("html") {
        return Ok(html::page(report)?);
    }
    Ok(report.to_json()?)
}

/// Loads a configuration, or none; what is said of it.
pub(super) fn load(live: &Live, path: Option<&Path>) -> Result<String> {
    let Some(path) = path else {
        live.load(None)?;
        return Ok("no configuration is loaded".to_owned());
    };
    let text = input::configuration_text("", path).map_err(|failure| anyhow!("{}", failure.sentence().trim_start()))?;
    let name = path.display().to_string();
    live.load(Some((name, text))).with_context(|| path.display().to_string())?;
    Ok(format!("loaded {}", path.display()))
}

//! What options of several commands have in common.

/// Headings of the options in every help.
pub(super) const WATCH: &str = "What to watch";
pub(super) const INPUT: &str = "Input";
pub(super) const RESULT: &str = "Result";
pub(super) const TUNING: &str = "Tuning";

/// A percentage on the command line.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("must be a percentage from 0 to 100".to_owned()),
    }
}

/// A number of seconds on the command line.
pub(super) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds <= 0.0 || seconds.is_nan() {
        return Err("must be more than 0 seconds".to_owned());
    }
    std::time::Duration::try_from_secs_f64(seconds).map_err(|_| "too many seconds".to_owned())
}

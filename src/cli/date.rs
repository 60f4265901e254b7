//! Dates of the Gregorian calendar, in UTC.

/// Year, month and day of so many days since 1970: 400 years have 146,097 days; years begin in March here, so that the leap day
/// is their last. Up to the year 9999; earlier dates than 1970 are not used.
pub(super) fn of_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (era * 400 + year, month, day)
}
